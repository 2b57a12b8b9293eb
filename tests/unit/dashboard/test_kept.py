"""Answers that all sessions share for a while."""

from __future__ import annotations

import pytest

from dashboard.parts import kept as module
from dashboard.parts.kept import Kept


def test_an_answer_is_read_again_when_it_is_too_old_and_failures_are_not_kept() -> None:
    now = [0.0]
    store, asked = Kept(lambda: now[0]), []

    def read() -> int:
        asked.append(now[0])
        if now[0] == 10.0:
            raise ValueError
        return len(asked)

    assert [store.get("k", 5.0, read), store.get("k", 5.0, read)] == [1, 1]
    now[0] = 10.0
    with pytest.raises(ValueError):
        store.get("k", 5.0, read)
    now[0] = 11.0
    assert store.last("k") == 1
    assert store.last("unknown") is None
    assert store.get("k", 5.0, read) == 3
    assert store.get("other", 5.0, read) == 4


def test_it_holds_a_bounded_number_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 3)
    store = Kept(lambda: 0.0)
    for key in range(5):
        store.get(key, 1.0, lambda: 0)
    assert store.get(0, 1.0, lambda: 7) == 7
    assert store.get(4, 1.0, lambda: 7) == 0
