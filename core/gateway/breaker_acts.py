"""Operators' acts on breakers: a node's, and the global one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from core import wire
from core.domain import NodeId
from core.errors import Invalid
from core.fleet.breaker import check_manual
from core.fleet.switch import Signal, State, following
from core.fleet.transition import TransitionEvent
from core.gateway.audited import asked_facts
from core.gateway.committed import Act, Cause, Word
from core.gateway.lifecycle import OPERATOR
from core.gateway.standing import FLEET, KeptBreaker, as_data

if TYPE_CHECKING:
    from core.gateway.service import Service


_SIGNALS = {"trip": Signal.TRIP, "reset": Signal.RESET, "hold": Signal.HOLD}
_CAUSES = {"trip": "manual_trip", "reset": "manual_reset", "hold": "manual_reset"}


class _OfNode:
    """One node's breaker on the board."""

    name = "node_breaker"

    def __init__(self, service: Service, node: NodeId) -> None:
        self.node = node
        self._board = service.conductor.breakers
        self._slot = service.conductor.fleet.slot(node)
        self.switch = self._board.switch(self._slot)

    def trip(
        self, now: float, *, reason: str, actor: str, for_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        return self._board.trip(self._slot, now, reason=reason, actor=actor, for_s=for_s)

    def reset(
        self, now: float, *, reason: str, actor: str, hold_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        return self._board.reset(self._slot, now, reason=reason, actor=actor, hold_s=hold_s)


class _OfFleet:
    """The global breaker."""

    name, node = "global_breaker", ""

    def __init__(self, service: Service) -> None:
        breaker = service.conductor.detector.breaker
        self.switch, self.trip, self.reset = breaker.switch, breaker.trip, breaker.reset


async def switch_node(
    service: Service, node: NodeId, asked: wire.BreakerAction, *, author: str = ""
) -> None:
    """Trip, reset or hold a node's breaker. NotFound for the node, Invalid names a field."""
    service.conductor.fleet.slot(node)

    def check() -> Act:
        machine = _OfNode(service, node)
        ours, turn = service.lifecycle.standing(node), _Turn(service, machine, asked, author)
        kept = msgspec.structs.replace(ours, breaker=turn.kept)
        return service.node_acts.said(node, kept, turn.make, turn.event)

    facts, action = asked_facts(asked), f"breaker.{asked.action}"
    await service.node_acts.run(action, node, asked.reason, facts, check)


async def switch_global(service: Service, asked: wire.BreakerAction, *, author: str = "") -> None:
    """Trip, reset or hold the global breaker. Invalid names a field."""
    machine = _OfFleet(service)

    def check() -> Act:
        turn = _Turn(service, machine, asked, author)

        async def make() -> None:
            turn.make()

        word = Word(name=FLEET, data={} if turn.kept is None else as_data(turn.kept))
        before = {"breaker": machine.switch.state.value}
        return Act(do=make, word=word, events=(turn.event,), before=before)

    cause = Cause(
        action=f"breaker.{asked.action}",
        target="(global)",
        reason=asked.reason,
        after=asked_facts(asked),
    )
    await service.committer.run(cause, check)


class _Turn:
    """One act on a breaker, checked: what stays of it, its event, and how to make it."""

    def __init__(
        self, service: Service, machine: _OfNode | _OfFleet, asked: wire.BreakerAction, author: str
    ) -> None:
        _check(asked)
        self._service, self._machine, self._asked = service, machine, asked
        self._actor = author.strip() or OPERATOR
        self.kept = self._kept(service.clock.wall())
        self.event = (f"{machine.name}.{self._after}", machine.node, self._facts())

    @property
    def _after(self) -> State:
        return following(self._machine.switch.state, _SIGNALS[self._asked.action])

    def _kept(self, at: datetime) -> KeptBreaker | None:
        asked, reason = self._asked, self._asked.reason
        if asked.action == "reset":
            return None
        state: Literal["tripped", "held"] = "tripped" if asked.action == "trip" else "held"
        until = None if asked.seconds is None else at + timedelta(seconds=asked.seconds)
        return KeptBreaker(state=state, reason=reason, actor=self._actor, until=until)

    def _facts(self) -> dict[str, object]:
        asked = self._asked
        found: dict[str, object] = {
            "before": self._machine.switch.state.value,
            "cause": _CAUSES[asked.action],
            "reason": asked.reason,
            "actor": self._actor,
        }
        return found if asked.seconds is None else {**found, "ends_in_s": asked.seconds}

    def make(self) -> None:
        """Move the breaker. What it tells of the move is stored already."""
        service, asked, machine = self._service, self._asked, self._machine
        now, seconds = service.clock.now(), asked.seconds
        if asked.action == "trip":
            events = machine.trip(now, reason=asked.reason, actor=self._actor, for_s=seconds)
        else:
            events = machine.reset(now, reason=asked.reason, actor=self._actor, hold_s=seconds)
        for event in events:
            if event.cause == _CAUSES[asked.action]:
                service.counters[f"transition.{event.machine}.{event.after}"] += 1
            else:
                service.conductor.note(event)


def _check(asked: wire.BreakerAction) -> None:
    check_manual(asked.reason, asked.seconds)
    if asked.action == "reset" and asked.seconds is not None:
        raise Invalid("seconds: a reset has no end; hold keeps it closed", field="seconds")
    if asked.action == "hold" and asked.seconds is None:
        raise Invalid("seconds: how long the breaker is to be kept closed", field="seconds")
