"""Operators' acts on migration: each is stored with its entry, then it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core import wire
from core.domain import NodeId
from core.gateway.audited import asked_facts
from core.gateway.committed import Act, Cause
from core.gateway.moves.move import Move, MoveState

if TYPE_CHECKING:
    from core.gateway.service import Service


async def start_move(service: Service, asked: wire.MigrationAsk, *, author: str) -> Move:
    """Copy a prefix because an operator wants it. NotFound for the node or where the prefix's
    tokens are not known; Conflict where the target holds it, or it is on its way there."""
    moves, made = service.moves, list[Move]()
    key, target = int(asked.prefix, 16), NodeId(asked.target)

    def check() -> Act:
        move, prefix = moves.by_hand(key, target, reason=asked.reason, author=author)
        made[:] = [move]

        async def launch() -> None:
            moves.launch(move, prefix, told=True)

        event = (f"migration.{move.state}", move.target, move.facts())
        return Act(do=launch, undo=lambda: moves.give_back(move), events=(event,))

    facts = asked_facts(asked)
    cause = Cause(action="migration.start", target=asked.target, reason=asked.reason, after=facts)
    await service.committer.run(cause, check)
    return made[0]


async def cancel_move(service: Service, id: str, *, reason: str, author: str) -> Move:
    """Give a planned or running move up. NotFound for any other."""
    moves, found = service.moves, list[Move]()

    def check() -> Act:
        move = moves.alive(id)
        found[:] = [move]

        async def end() -> None:
            moves.cancel(moves.alive(id), reason=reason, author=author)

        facts = {**move.facts(), "reason": reason or move.reason, "actor": author}
        event = (f"migration.{MoveState.CANCELLED}", move.target, facts)
        return Act(do=end, events=(event,))

    cause = Cause(action="migration.cancel", target=id, reason=reason)
    await service.committer.run(cause, check)
    return found[0]
