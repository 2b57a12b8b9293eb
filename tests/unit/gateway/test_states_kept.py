"""The whole state is encoded once for those who ask at the same time, and anew after an act."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from core.gateway import overview


class _State:
    def __init__(self, number: int) -> None:
        self.number = number

    def model_dump_json(self) -> str:
        return str(self.number)


def test_one_encoding_serves_a_moment_and_ends_with_an_act(monkeypatch) -> None:
    now, made = [5.0], []

    def fleet_state(_: Any) -> _State:
        made.append(None)
        return _State(len(made))

    monkeypatch.setattr(overview, "fleet_state", fleet_state)
    service: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: now[0]))
    states = overview.States(service)
    assert states.encoded() == b"1"
    now[0] += states.FRESH_S / 2
    assert states.encoded() == b"1"
    states.forget()
    assert states.encoded() == b"2"
    now[0] += 2 * states.FRESH_S
    assert states.encoded() == b"3"
    assert states.encoded() == b"4", "a clock that stands still says nothing of age"
