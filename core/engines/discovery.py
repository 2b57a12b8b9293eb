"""Joining what an operator registered with what the engine says of itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.domain import EventEndpoints, NodeId, NodeSpec, Role
from core.engines.addresses import check_never, parse_endpoint
from core.engines.base import Discovery
from core.errors import UsageError
from core.plan.transfer import kv_dtype_factor


@dataclass(frozen=True, slots=True)
class Joined:
    """The node as it should be scheduled, and what an operator should know about it."""

    spec: NodeSpec
    notes: tuple[str, ...]


def join(registered: NodeSpec, found: Discovery) -> Joined:
    """The registered spec completed by the engine's own figures.

    The engine decides what only it can know: block size, and whether it prefills or decodes.
    Where both tell a limit, the smaller one holds. Registered models and event addresses win,
    with a note where the engine contradicts them.
    """
    notes = list(found.notes)
    models = registered.models or found.models
    if missing := [m for m in registered.models if m not in found.models]:
        notes.append(f"registered models {missing} are not served; the engine has {found.models}")
    kv_dtype, dtype_notes = _kv_dtype(registered.kv_dtype, found.kv_dtype)
    events, event_notes = _events(registered, found)
    spec = replace(
        registered,
        models=models,
        adapters=dict(registered.adapters) or dict(found.adapters),
        block_size=found.block_size or registered.block_size,
        kv_capacity_tokens=_least(registered.kv_capacity_tokens, found.kv_capacity_tokens),
        context_tokens_max=_least(registered.context_tokens_max, found.context_tokens_max),
        batch_max=_least(registered.batch_max, found.batch_max),
        role=_role(registered, found),
        events=events,
        kv_dtype=kv_dtype,
    )
    return Joined(spec, (*notes, *dtype_notes, *event_notes))


def ranks(registered: NodeSpec, found: Discovery) -> list[NodeSpec]:
    """One spec per data-parallel rank where the server has several and none was chosen.

    The ranks keep separate caches, so each one is a node; they share the address and the group.
    """
    if registered.dp_rank is not None or found.dp_size <= 1:
        return [registered]
    return [
        replace(
            registered,
            id=NodeId(f"{registered.id}#{rank}"),
            dp_rank=rank,
            engine_group=registered.engine_group or str(registered.id),
        )
        for rank in range(found.dp_size)
    ]


def _events(
    registered: NodeSpec, found: Discovery
) -> tuple[EventEndpoints | None, tuple[str, ...]]:
    """Registered addresses, completed by discovered ones of the node's rank."""
    told = found.events.get(registered.dp_rank or 0)
    if registered.events is None:
        refused = "" if told is None else _refused(told)
        return (None, (refused,)) if refused else (told, ())
    if told is None or told.live != registered.events.live:
        return registered.events, ()
    return (
        replace(
            registered.events,
            replay=registered.events.replay or told.replay,
            topic=registered.events.topic or told.topic,
        ),
        (),
    )


def _refused(told: EventEndpoints) -> str:
    """Why an address that the engine named is not connected to; empty where it may be."""
    try:
        for text in filter(None, (told.live, told.replay)):
            address = parse_endpoint(text, field="events")
            if address.ip is not None:
                check_never(address.ip, field="events")
    except UsageError as error:
        return f"the engine's event address is not followed: {error.message}"
    return ""


def _kv_dtype(registered: str, told: str) -> tuple[str, tuple[str, ...]]:
    """The registered dtype, else the engine's; one whose size is not known counts as 16 bits."""
    if told in ("", "auto", registered):
        return registered, ()
    if registered != "auto":
        return registered, (f"registered kv_dtype {registered}; the engine has {told}",)
    try:
        kv_dtype_factor(told)
    except UsageError:
        return registered, (f"the engine's KV dtype {told} is counted as 16 bits a value",)
    return told, ()


def _least(registered: int, found: int) -> int:
    known = [x for x in (registered, found) if x > 0]
    return min(known, default=0)


def _role(registered: NodeSpec, found: Discovery) -> Role:
    """A server started for one role cannot play the other; a registered role narrows BOTH."""
    return found.role or registered.role
