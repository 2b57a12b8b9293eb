"""Operators' acts on breakers: a node's, and the global one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from core import wire
from core.domain import NodeId
from core.errors import Invalid
from core.fleet.transition import TransitionEvent
from core.gateway.lifecycle import OPERATOR

if TYPE_CHECKING:
    from core.gateway.service import Service


class Machine(Protocol):
    """What both kinds of breaker offer an operator."""

    def trip(
        self, now: float, *, reason: str, actor: str, for_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        """Shut, for `for_s` seconds or until a reset."""
        ...

    def reset(
        self, now: float, *, reason: str, actor: str, hold_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        """Close; with `hold_s`, kept closed for that long."""
        ...


class _OfNode:
    """One node's breaker on the board."""

    def __init__(self, service: Service, node: NodeId) -> None:
        self._board = service.conductor.breakers
        self._slot = service.conductor.fleet.slot(node)

    def trip(
        self, now: float, *, reason: str, actor: str, for_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        return self._board.trip(self._slot, now, reason=reason, actor=actor, for_s=for_s)

    def reset(
        self, now: float, *, reason: str, actor: str, hold_s: float | None = None
    ) -> tuple[TransitionEvent, ...]:
        return self._board.reset(self._slot, now, reason=reason, actor=actor, hold_s=hold_s)


def switch_node(
    service: Service, node: NodeId, asked: wire.BreakerAction, *, author: str = ""
) -> None:
    """Trip, reset or hold a node's breaker. NotFound for the node, Invalid names a field."""
    _switch(service, _OfNode(service, node), asked, author)
    service.lifecycle.save(node)


def switch_global(service: Service, asked: wire.BreakerAction, *, author: str = "") -> None:
    """Trip, reset or hold the global breaker. Invalid names a field."""
    _switch(service, service.conductor.detector.breaker, asked, author)
    service.lifecycle.save_fleet()


def _switch(service: Service, machine: Machine, asked: wire.BreakerAction, author: str) -> None:
    now, seconds = service.clock.now(), asked.seconds
    reason, actor = asked.reason, author.strip() or OPERATOR
    if asked.action == "trip":
        events = machine.trip(now, reason=reason, actor=actor, for_s=seconds)
    elif asked.action == "reset":
        if seconds is not None:
            raise Invalid("seconds: a reset has no end; hold keeps it closed", field="seconds")
        events = machine.reset(now, reason=reason, actor=actor)
    else:
        if seconds is None:
            text = "seconds: how long the breaker is to be kept closed"
            raise Invalid(text, field="seconds")
        events = machine.reset(now, reason=reason, actor=actor, hold_s=seconds)
    for event in events:
        service.conductor.note(event)
