"""The fleet as a decision reads it: one row of numbers per node, and the specs behind them.

A node's row (its slot) is reused after removal; `generation` tells rows of different lives
apart. One event loop owns the state, so a decision may read the arrays in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from core.domain import Health, NodeId, NodeSpec, Slot, Telemetry
from core.errors import Conflict, NotFound

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FLOATS = (
    "c0", "c1", "c2",            # prefill seconds: c0 + c1 (L - p) + c2 (L^2 - p^2)
    "d0", "d1", "d2",            # seconds between tokens: d0 + d1 b + d2 k
    "kv_capacity", "context_max", "batch_max", "queue_max", "compute", "weight", "kv_bytes",
    "queued_tokens",             # Q: uncached prompt tokens reserved, not yet prefilled
    "queued_s",                  # their predicted prefill seconds, the head's included
    "head_s", "head_started_s",  # predicted length and start of the prefill that runs now
    "prefilling",                # requests reserved whose first token has not come
    "decoding",                  # requests in the decode batch, or promised to it
    "kv_tokens",                 # tokens of KV that live requests hold or will hold
    "decode_kv",                 # the part of it that belongs to the decode batch
    "prompt_tokens",             # prompt tokens of requests in flight, cached or not
    "running", "waiting", "kv_usage", "telemetry_at_s",
    "strictest_tbt_s",           # least TBT limit among the requests of the decode batch
    "egress_until_s",            # when the fetches asked of the node are predicted to be sent
    "handover_until_s",          # when the KV of the prompts placed there is handed over
    "slow_start_at_s",           # recovery time; weight grows linearly from here
)  # fmt: skip
_BOOLS = ("alive", "prefills", "decodes", "healthy", "dead", "draining", "can_fetch")
_OUTLIVE_RESTART = (
    "c0", "c1", "c2", "d0", "d1", "d2", "kv_bytes", "layers", "compute",
    "healthy", "dead", "draining", "slow_start_at_s",
)  # fmt: skip
_LOAD = (
    "queued_tokens", "queued_s", "head_s", "head_started_s", "prefilling", "decoding",
    "kv_tokens", "decode_kv", "prompt_tokens", "strictest_tbt_s", "egress_until_s",
    "handover_until_s", "generation", "last_picked",
)  # fmt: skip
_INTS = ("generation", "last_picked", "block_size", "layers", "transfer_group")
SLOW_START_S = 30.0
"""How long a node that came back from death takes to regain its full weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """Cost coefficients of one node, from its profile or fitted (see core.plan.cost_model).

    prefill: (c0, c1, c2), seconds = c0 + c1 (L - p) + c2 (L^2 - p^2); tbt: (d0, d1, d2),
    seconds = d0 + d1 b + d2 k.
    """

    prefill: tuple[float, float, float]
    tbt: tuple[float, float, float]
    kv_bytes_per_token: float
    layers: int


class Cells:
    """Views of the load columns for reading and writing single cells.

    An array makes a scalar object for every cell it is asked for and every sum of two; a view of
    its memory yields plain numbers, several times quicker.
    """

    __slots__ = _LOAD

    queued_tokens: memoryview[float]
    queued_s: memoryview[float]
    head_s: memoryview[float]
    head_started_s: memoryview[float]
    prefilling: memoryview[float]
    decoding: memoryview[float]
    kv_tokens: memoryview[float]
    decode_kv: memoryview[float]
    prompt_tokens: memoryview[float]
    strictest_tbt_s: memoryview[float]
    egress_until_s: memoryview[float]
    handover_until_s: memoryview[float]
    generation: memoryview[int]
    last_picked: memoryview[int]

    def __init__(self, fleet: FleetState) -> None:
        for name in _LOAD:
            setattr(self, name, memoryview(getattr(fleet, name)))


class Fixed:
    """What stays as it is between two changes of the nodes, as lists by slot."""

    __slots__ = (
        "block_size", "can_fetch", "decodes", "ids", "kv_bytes", "layers", "prefill",
        "prefill_alike", "slots", "tbt",
    )  # fmt: skip

    def __init__(self, fleet: FleetState) -> None:
        self.prefill = _shared(fleet.c0, fleet.c1, fleet.c2)
        """(c0, c1, c2); nodes that cost the same share one tuple."""
        live = [cost for cost, there in zip(self.prefill, fleet.ids, strict=True) if there]
        self.prefill_alike = len(set(live)) == 1
        """Whether prefill costs the same on every node."""
        self.tbt = _shared(fleet.d0, fleet.d1, fleet.d2)
        """(d0, d1, d2), likewise."""
        self.can_fetch: list[bool] = fleet.can_fetch.tolist()
        self.decodes: list[bool] = fleet.decodes.tolist()
        self.kv_bytes: list[float] = fleet.kv_bytes.tolist()
        self.layers: list[int] = fleet.layers.tolist()
        self.block_size: list[int] = fleet.block_size.tolist()
        self.slots = list(range(fleet.capacity))
        self.ids: list[NodeId] = [NodeId(node or "") for node in fleet.ids]


def _shared(a: Floats, b: Floats, c: Floats) -> list[tuple[float, float, float]]:
    """Rows of three columns, equal ones as one object."""
    seen: dict[tuple[float, float, float], tuple[float, float, float]] = {}
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    return [seen.setdefault(row, row) for row in rows]


class FleetState:
    """Arrays over slots (attributes named in this module's tables) and the nodes' specs.

    `version` grows with every change of what nodes are (specs, health, draining), so that
    derived masks can be cached; load changes do not touch it.
    """

    c0: Floats
    c1: Floats
    c2: Floats
    d0: Floats
    d1: Floats
    d2: Floats
    kv_capacity: Floats
    context_max: Floats
    batch_max: Floats
    queue_max: Floats
    compute: Floats
    weight: Floats
    kv_bytes: Floats
    queued_tokens: Floats
    queued_s: Floats
    head_s: Floats
    head_started_s: Floats
    prefilling: Floats
    decoding: Floats
    kv_tokens: Floats
    decode_kv: Floats
    prompt_tokens: Floats
    running: Floats
    waiting: Floats
    kv_usage: Floats
    telemetry_at_s: Floats
    strictest_tbt_s: Floats
    egress_until_s: Floats
    handover_until_s: Floats
    slow_start_at_s: Floats
    alive: Bools
    prefills: Bools
    decodes: Bools
    healthy: Bools
    dead: Bools
    draining: Bools
    can_fetch: Bools
    generation: Ints
    last_picked: Ints
    block_size: Ints
    layers: Ints
    transfer_group: Ints
    """Nodes with the same number above 0 can move KV between prefill and decode."""
    cells: Cells
    """Views of the arrays of now; to be asked for anew, as arrays are replaced when they grow."""
    ids: list[NodeId | None]
    """Node by slot; None where no node stands."""

    def __init__(self, slots: int = 8) -> None:
        self.capacity = 0
        self.version = 0
        self.context_min = self.kv_capacity_min = self.queue_max_min = self.batch_max_min = np.inf
        """Least limits over the registered nodes: within them no limit has to be looked at."""
        self.telemetry_seen = self.any_can_fetch = False
        self.weighted = False
        """Whether any node's weight differs from 1."""
        self.slow_until_s = -np.inf
        """When the last slow start is over."""
        self.ids = []
        self._specs: list[NodeSpec | None] = []
        self._health: list[Health] = []
        self._slots: dict[NodeId, Slot] = {}
        self._groups: dict[str, int] = {"": 0}
        self.on_grow: list[Callable[[int], None]] = []
        self._grow(slots)

    def __len__(self) -> int:
        return len(self._slots)

    @cached_property
    def fixed(self) -> Fixed:
        """Lists of the columns that change only with the nodes, made anew after a change."""
        return Fixed(self)

    # -- nodes ---------------------------------------------------------------------------

    def add(self, spec: NodeSpec, cost: NodeCost) -> Slot:
        """Give the node a row; it is not eligible before a probe calls it healthy."""
        if spec.id in self._slots:
            raise Conflict(f"node {spec.id!r} is registered already", field="id")
        free = np.flatnonzero(~self.alive)
        if not len(free):
            self._grow(self.capacity * 2)
            free = np.flatnonzero(~self.alive)
        slot = Slot(int(free[0]))
        self._reset_row(slot)
        self._slots[spec.id] = slot
        self._health[slot] = Health.UNKNOWN
        self._fill(slot, spec)
        self._price(slot, cost)
        return slot

    def update(self, spec: NodeSpec, cost: NodeCost | None = None) -> None:
        """Replace what is known of a registered node; its load stays."""
        slot = self.slot(spec.id)
        self._fill(slot, spec)
        if cost is not None:
            self._price(slot, cost)

    def remove(self, node: NodeId) -> Slot:
        """Take the node out; reservations of its generation become void."""
        slot = self.slot(node)
        del self._slots[node]
        self._specs[slot] = self.ids[slot] = None
        self._reset_row(slot)
        self._rescale_compute()
        self._changed()
        return slot

    def restart(self, node: NodeId) -> Slot:
        """The node lost its state: a new generation with nothing in flight."""
        slot = self.slot(node)
        spec = self.spec(node)
        kept = {name: getattr(self, name)[slot] for name in _OUTLIVE_RESTART}
        self._reset_row(slot)
        for name, value in kept.items():
            getattr(self, name)[slot] = value
        self._fill(slot, spec)
        return slot

    def drain(self, node: NodeId, on: bool) -> None:
        """Stop (or resume) sending new requests to the node."""
        self.draining[self.slot(node)] = on
        self._changed()

    def set_health(self, node: NodeId, health: Health, now: float) -> None:
        """Note what probes found; coming back from death starts slowly."""
        slot = self.slot(node)
        was = self._health[slot]
        if was is health:
            return
        self._health[slot] = health
        self.healthy[slot] = health in (Health.HEALTHY, Health.SUSPECT)
        self.dead[slot] = health is Health.DEAD
        if was is Health.DEAD and self.healthy[slot]:
            self.slow_start_at_s[slot] = now
            self.slow_until_s = max(self.slow_until_s, now + SLOW_START_S)
        self._changed()

    def set_telemetry(self, node: NodeId, t: Telemetry, now: float) -> None:
        """Store the gauges a scrape brought; absent ones keep their last value."""
        slot = self.slot(node)
        self.telemetry_at_s[slot] = now
        self.telemetry_seen = True
        for name in ("running", "waiting", "kv_usage"):
            value = getattr(t, name)
            if value is not None:
                getattr(self, name)[slot] = value

    def set_cost(self, node: NodeId, prefill: tuple[float, float, float]) -> None:
        """Replace the node's prefill coefficients by fitted ones."""
        slot = self.slot(node)
        self.c0[slot], self.c1[slot], self.c2[slot] = prefill
        self._forget_fixed()
        self._rescale_compute()

    def set_tbt(self, node: NodeId, tbt: tuple[float, float, float]) -> None:
        """Replace the node's TBT coefficients by fitted ones."""
        slot = self.slot(node)
        self.d0[slot], self.d1[slot], self.d2[slot] = tbt
        self._forget_fixed()

    # -- look-ups ------------------------------------------------------------------------

    def slot(self, node: NodeId) -> Slot:
        """Row of a node; NotFound names it."""
        try:
            return self._slots[node]
        except KeyError:
            raise NotFound(f"unknown node {node!r}", field="node") from None

    def spec(self, node: NodeId) -> NodeSpec:
        """What was registered (and discovered) of a node."""
        spec = self._specs[self.slot(node)]
        assert spec is not None
        return spec

    def spec_at(self, slot: int) -> NodeSpec:
        """Spec of the node in a live row."""
        spec = self._specs[slot]
        assert spec is not None
        return spec

    def node_at(self, slot: int) -> NodeId:
        """Id of the node in a live row."""
        node = self.ids[slot]
        assert node is not None
        return node

    def health(self, node: NodeId) -> Health:
        """Latest health."""
        return self._health[self.slot(node)]

    def has(self, node: NodeId) -> bool:
        """Whether the node is registered."""
        return node in self._slots

    def nodes(self) -> list[NodeSpec]:
        """Specs of all registered nodes, by slot."""
        return [spec for spec in self._specs if spec is not None]

    def slots(self) -> Iterator[tuple[Slot, NodeSpec]]:
        """(slot, spec) of all registered nodes."""
        for i, spec in enumerate(self._specs):
            if spec is not None:
                yield Slot(i), spec

    def serves_model(self, model: str, adapter: str = "") -> Bools:
        """Rows whose node holds the model (and adapter); one that lists none serves none."""
        return self._rows(lambda spec: _serves(spec, model, adapter))

    def admits(self, tenant: str) -> Bools:
        """Rows whose node takes requests of the tenant."""
        return self._rows(lambda spec: not spec.tenants or tenant in spec.tenants)

    def _rows(self, test: Callable[[NodeSpec], bool]) -> Bools:
        mask = np.zeros(self.capacity, np.bool_)
        for slot, spec in self.slots():
            mask[slot] = test(spec)
        return mask

    # -- internals -----------------------------------------------------------------------

    def _grow(self, slots: int) -> None:
        for name in _FLOATS:
            self._widen(name, slots, np.float64)
        for name in _BOOLS:
            self._widen(name, slots, np.bool_)
        for name in _INTS:
            self._widen(name, slots, np.int64)
        for name in ("kv_capacity", "batch_max"):
            getattr(self, name)[self.capacity :] = np.inf
        self._specs += [None] * (slots - self.capacity)
        self.ids += [None] * (slots - self.capacity)
        self._health += [Health.UNKNOWN] * (slots - self.capacity)
        self.capacity = slots
        self.cells = Cells(self)
        self._changed()
        for notify in self.on_grow:
            notify(slots)

    def _widen(self, name: str, slots: int, kind: type) -> None:
        new: npt.NDArray[Any] = np.zeros(slots, kind)
        if self.capacity:
            new[: self.capacity] = getattr(self, name)
        setattr(self, name, new)

    def _reset_row(self, slot: int) -> None:
        generation = self.generation[slot] + 1
        for name in (*_FLOATS, *_BOOLS, *_INTS):
            getattr(self, name)[slot] = 0
        self.generation[slot] = generation
        self.kv_capacity[slot] = self.batch_max[slot] = np.inf
        self.last_picked[slot] = -1
        self.telemetry_at_s[slot] = -np.inf
        self.slow_start_at_s[slot] = -np.inf
        self.strictest_tbt_s[slot] = np.inf

    def _fill(self, slot: Slot, spec: NodeSpec) -> None:
        self._specs[slot], self.ids[slot] = spec, spec.id
        self.alive[slot] = True
        self.prefills[slot] = spec.role.prefills
        self.decodes[slot] = spec.role.decodes
        self.kv_capacity[slot] = spec.kv_capacity_tokens or np.inf
        self.context_max[slot] = spec.context_tokens_max or np.inf
        self.batch_max[slot] = spec.batch_max
        self.queue_max[slot] = spec.queue_max
        self.weight[slot] = spec.weight
        self.block_size[slot] = spec.block_size
        self.can_fetch[slot] = spec.can_fetch
        group = self._groups.setdefault(spec.kv_transfer, len(self._groups))
        self.transfer_group[slot] = group
        self._changed()

    def _price(self, slot: Slot, cost: NodeCost) -> None:
        self.c0[slot], self.c1[slot], self.c2[slot] = cost.prefill
        self.d0[slot], self.d1[slot], self.d2[slot] = cost.tbt
        self.kv_bytes[slot] = cost.kv_bytes_per_token
        self.layers[slot] = cost.layers
        self._forget_fixed()
        self._rescale_compute()

    def _rescale_compute(self) -> None:
        live = self.alive & (self.c1 > 0)
        if live.any():
            fastest = self.c1[live].min()
            self.compute[live] = fastest / self.c1[live]

    def _forget_fixed(self) -> None:
        self.__dict__.pop("fixed", None)

    def _changed(self) -> None:
        self.version += 1
        self._forget_fixed()
        live = self.alive
        self.any_can_fetch = bool(self.can_fetch.any())
        self.weighted = bool((self.weight[live] != 1.0).any())
        self.context_min = float(self.context_max.min(initial=np.inf, where=live))
        self.kv_capacity_min = float(self.kv_capacity.min(initial=np.inf, where=live))
        self.queue_max_min = float(self.queue_max.min(initial=np.inf, where=live))
        self.batch_max_min = float(self.batch_max.min(initial=np.inf, where=live))


def _serves(spec: NodeSpec, model: str, adapter: str) -> bool:
    if model not in spec.models:
        return False
    return not adapter or spec.adapters.get(adapter) == model
