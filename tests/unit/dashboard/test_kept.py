"""Answers that all sessions share for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from core import wire
from dashboard import session
from dashboard.api.client import Unreachable
from dashboard.parts import store as module
from dashboard.parts.store import Kept


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


def test_one_reads_anew_while_the_others_get_the_answer_before_or_wait() -> None:
    now, reading, go_on = [0.0], threading.Event(), threading.Event()
    store = Kept(lambda: now[0])
    store.get("k", 5.0, lambda: "old")

    def slow() -> str:
        reading.set()
        assert go_on.wait(20)
        return "new"

    with ThreadPoolExecutor() as pool:
        now[0] = 6.0
        first = pool.submit(store.get, "k", 5.0, slow)
        assert reading.wait(20)
        assert store.get("k", 5.0, lambda: "unused") == "old"
        now[0] = 60.0
        waiting = pool.submit(store.get, "k", 5.0, lambda: "unused")
        go_on.set()
        assert (first.result(20), waiting.result(20)) == ("new", "new")


def test_an_equal_answer_stays_the_same_object_and_what_is_forgotten_does_not_return() -> None:
    now = [0.0]
    store = Kept(lambda: now[0])
    first = store.get("k", 5.0, lambda: ["a"])
    now[0] = 6.0
    assert store.get("k", 5.0, lambda: ["a"]) is first

    def overtaken() -> list[str]:
        store.clear()
        return ["from before the act"]

    now[0] = 12.0
    assert store.get("k", 5.0, overtaken) == ["from before the act"]
    assert store.get("k", 5.0, lambda: ["after"]) == ["after"]


def test_an_old_answer_is_shown_while_one_thread_reads_anew() -> None:
    now, gate, started = [0.0], threading.Event(), threading.Event()
    store, answers = Kept(lambda: now[0]), iter((1, 2, 3))

    def slow() -> int:
        started.set()
        assert gate.wait(10)
        return next(answers)

    assert store.get("k", 5.0, lambda: next(answers), meanwhile_s=60.0) == 1
    now[0] = 10.0
    assert [store.get("k", 5.0, slow, meanwhile_s=60.0) for _ in range(3)] == [1, 1, 1]
    assert started.wait(10)
    gate.set()
    _until(lambda: store.last("k") == 2 and not store._under_way)
    now[0] = 100.0
    assert store.get("k", 5.0, slow, meanwhile_s=60.0) == 3


def test_a_failure_in_the_thread_leaves_the_old_answer_and_the_next_tries_again() -> None:
    now, tries = [0.0], []
    store = Kept(lambda: now[0])
    store.get("k", 5.0, lambda: 1)
    now[0] = 10.0

    def fails() -> int:
        tries.append(None)
        raise Unreachable("gone")

    for expected in (1, 2):
        assert store.get("k", 5.0, fails, meanwhile_s=60.0) == 1
        _until(lambda n=expected: len(tries) == n and not store._under_way)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_who_reads_is_asked_again_beside_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that hangs holds nobody up; rights that are gone show at the next refresh."""
    now, released, store = [0.0], threading.Event(), Kept(lambda: now[0])
    answers = iter((wire.WhoAmI(name="ada", role="admin", kind="token"), 401))
    monkeypatch.setattr(session.st, "session_state", {})

    def ask(_url: str, _token: str, _peer: str) -> wire.WhoAmI | int:
        if now[0]:
            assert released.wait(10)
        return next(answers)

    feed = SimpleNamespace(look=lambda: SimpleNamespace(error=""))
    for name, stand_in in (
        ("_who", ask), ("_whos", lambda: store), ("feed", lambda: feed), ("token", lambda: "t"),
        ("_feed_of", lambda _rights: feed),
    ):  # fmt: skip
        monkeypatch.setattr(session, name, stand_in)
    assert session.may("admin")
    now[0] = session.WHO_S + 1
    assert session.may("admin") and not session.must_sign_in()  # while the thread still waits
    released.set()
    deadline = time.monotonic() + 10
    while not session.must_sign_in():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not session.may("operator")


def test_who_opens_a_page_while_the_service_is_away_is_who_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, look = [0.0], SimpleNamespace(error="", refused=False)
    store, feed = Kept(lambda: now[0]), SimpleNamespace(look=lambda: look)
    answers: list[wire.WhoAmI | None] = [wire.WhoAmI(name="ada", role="admin", kind="token"), None]
    for name, stand_in in (
        ("_who", lambda _url, _token, _peer: answers.pop(0)), ("_whos", lambda: store),
        ("feed", lambda: feed), ("_feed_of", lambda _rights: feed), ("token", lambda: "t"),
    ):  # fmt: skip
        monkeypatch.setattr(session, name, stand_in)
    monkeypatch.setattr(session.st, "session_state", {})
    assert session.known() and session.answers()
    now[0], look.error = 60.0, "away"
    monkeypatch.setattr(session.st, "session_state", {})  # another window
    assert session.user().name == "ada" and not session.answers()
    monkeypatch.setattr(session, "token", lambda: "nobody's")
    monkeypatch.setattr(session.st, "session_state", {})
    answers.append(None)
    assert not session.known() and session.user().role == "viewer"


def test_a_page_drawn_without_answers_is_drawn_anew_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts that were disabled for a moment would stay so: nothing else draws them again."""
    look = SimpleNamespace(error="away")
    admin = wire.WhoAmI(name="ada", role="admin", kind="token")
    monkeypatch.setattr(session.st, "session_state", {})
    monkeypatch.setattr(session, "feed", lambda: SimpleNamespace(look=lambda: look))
    monkeypatch.setattr(session, "_known", lambda: admin)
    assert session.may("admin") and not session.answers_again()  # not yet
    look.error = ""
    assert session.answers_again()
    assert not session.answers_again()
    assert session.may("admin") and not session.answers_again()
