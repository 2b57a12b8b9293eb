"""Hard constraints: which nodes may take a request at all, each refusal with its reason (spec 3).

Constraints that do not depend on load are cached (`Standing`); the others cost one comparison
each. Reasons are worked out only for nodes that fell out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from core.domain import NodeId, Reason, Request
from core.fleet.state import FleetState

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Check = tuple[Reason, Bools]
Rows = Any
"""An int array, or slice(None) for all."""
Excluded = Mapping[Reason, tuple[NodeId, ...]]

_CACHE_MAX = 1024


@dataclass(frozen=True, slots=True)
class Standing:
    """Rows that pass the load-free constraints, how many, and why the others do not."""

    mask: Bools
    count: int
    excluded: Excluded
    rows: Rows
    """The rows that pass; slice(None) where all of the fleet's do."""


class StandingCache:
    """`Standing` by (fleet version, breakers, model, adapter, tenant, side)."""

    def __init__(self) -> None:
        self._cache: dict[tuple[object, ...], Standing] = {}
        self._allowed: Bools | None = None
        self._allowed_bytes = b""

    def get(self, fleet: FleetState, request: Request, allowed: Bools, *, decode: bool) -> Standing:
        """Standing of the fleet for one request; nodes that failed it before are out.

        allowed: by slot, as `BreakerBoard.allowed` gives it: never written again.
        """
        if allowed is not self._allowed:
            self._allowed, self._allowed_bytes = allowed, allowed.tobytes()
        key = (
            fleet.version,
            self._allowed_bytes,
            request.model,
            request.adapter,
            request.tenant,
            decode,
        )
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _CACHE_MAX:
                self._cache.clear()
            seen = allowed[: fleet.capacity]
            found = _narrow(fleet, fleet.alive, _standing_checks(fleet, request, seen, decode))
            self._cache[key] = found
        if not request.tried:
            return found
        again = [(Reason.ALREADY_TRIED, ~_rows(fleet, request.tried))]
        more = _narrow(fleet, found.mask, again)
        return replace(more, excluded=_joined(found.excluded, more.excluded))


def narrowed(fleet: FleetState, before: Standing, checks: list[Check]) -> Standing:
    """`before` after further checks, with the reasons of those that fell out."""
    mask = before.mask
    for _, good in checks:
        mask = mask & good
    count = int(np.count_nonzero(mask))
    if count == before.count:
        return before
    fallen = _narrow(fleet, before.mask, checks)
    return replace(fallen, excluded=_joined(before.excluded, fallen.excluded))


def prefill_checks(fleet: FleetState, request: Request, batches: Floats) -> list[Check]:
    """Constraints of the prefill side that depend on lengths and load.

    A prompt waits without KV, so only one larger than the whole cache lacks headroom for ever.
    """
    tokens = request.prompt_tokens
    return [
        (Reason.CONTEXT, fleet.context_max > tokens),
        (Reason.QUEUE_FULL, fleet.prefilling < fleet.queue_max),
        (Reason.BATCH_CAP, batches < fleet.queue_max + fleet.batch_max),
        (Reason.KV_HEADROOM, fleet.kv_capacity >= tokens),
    ]


def decode_checks(fleet: FleetState, request: Request, reserve: float, held: Floats) -> list[Check]:
    """Constraints of the decode side: context, a batch slot, and KV headroom.

    Headroom is for the prompt and `reserve` times the expected output, beside the tokens `held`
    by slot; an idle node takes any prompt that fits, since the output is but expected.
    """
    prompt = request.prompt_tokens
    room = fleet.kv_capacity - held >= prompt + request.output_tokens_expected * reserve
    if not room.all():
        room |= (held == 0) & (fleet.kv_capacity >= prompt)
    return [
        (Reason.CONTEXT, fleet.context_max > prompt),
        (Reason.BATCH_CAP, fleet.decoding < fleet.batch_max),
        (Reason.KV_HEADROOM, room),
    ]


def _standing_checks(
    fleet: FleetState, request: Request, allowed: Bools, decode: bool
) -> list[Check]:
    model, adapter = request.model, request.adapter
    checks = [(Reason.MODEL, fleet.serves_model(model))]
    if adapter:
        checks.append((Reason.ADAPTER, fleet.serves_model(model, adapter)))
    checks += [
        (Reason.TENANT, fleet.admits(request.tenant)),
        (Reason.ROLE, fleet.decodes if decode else fleet.prefills),
        (Reason.UNHEALTHY, fleet.healthy),
        (Reason.DRAINING, ~fleet.draining),
        (Reason.BREAKER_OPEN, allowed),
    ]
    return checks


def _narrow(fleet: FleetState, mask: Bools, checks: list[Check]) -> Standing:
    excluded: dict[Reason, tuple[NodeId, ...]] = {}
    for reason, good in checks:
        fallen = np.flatnonzero(mask & ~good)
        if len(fallen):
            nodes = tuple(fleet.node_at(slot) for slot in fallen.tolist())
            excluded[reason] = excluded.get(reason, ()) + nodes
            mask = mask & good
    left = np.flatnonzero(mask)
    rows = slice(None) if len(left) == len(mask) else left
    return Standing(mask, len(left), excluded, rows)


def _joined(before: Excluded, fallen: Excluded) -> Excluded:
    return {**before, **{why: before.get(why, ()) + nodes for why, nodes in fallen.items()}}


def _rows(fleet: FleetState, nodes: frozenset[NodeId]) -> Bools:
    mask = np.zeros(fleet.capacity, np.bool_)
    for node in nodes:
        if fleet.has(node):
            mask[fleet.slot(node)] = True
    return mask
