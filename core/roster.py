"""The conductor's nodes: joining, changing, leaving, and what outcomes say about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from core.domain import (
    Decision,
    Health,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Reason,
    Request,
    Slot,
    Telemetry,
    Trust,
)
from core.errors import Invalid
from core.fleet.breaker import BreakerBoard
from core.fleet.hotspot import HotspotDetector
from core.fleet.ledger import Ledger, Reservation
from core.fleet.state import FleetState, NodeCost
from core.fleet.transition import TransitionEvent
from core.fleet.trust import Signal, TrustBoard
from core.index.coming import Coming
from core.index.prefix_index import PrefixIndex
from core.plan.calibration import Calibration
from core.plan.cost_model import prefill_coefficients, profile, tbt_coefficients
from core.plan.gathering import GATHERED
from core.plan.transfer import Topology, kv_dtype_factor
from core.policy.base import NamedPolicy

_APPROXIMATE_BLOCKS_MAX = 1_048_576
# An attribute of an enumeration costs more than the rest of a line in which it stands.
_OK, _APPROXIMATE = OutcomeKind.OK, Trust.APPROXIMATE
_BLIND = frozenset({"random", "round_robin"})
_RUNGS = dict.fromkeys(Trust, "ledger") | {
    trust: trust.value for trust in (Trust.EXACT, Trust.APPROXIMATE)
}


class Roster:
    """Keeps every structure that knows nodes in step; base of `core.conductor.Conductor`."""

    def __init__(
        self,
        *,
        fleet: FleetState,
        ledger: Ledger,
        index: PrefixIndex,
        topology: Topology,
        breakers: BreakerBoard,
        trust: TrustBoard,
        detector: HotspotDetector,
        learn: bool,
    ) -> None:
        self.fleet = fleet
        self.ledger = ledger
        self.index = index
        self.topology = topology
        self.breakers = breakers
        self.trust = trust
        self.detector = detector
        self.calibration = Calibration(fleet)
        self.learn = learn
        self.coming = Coming()
        self._readings: dict[NodeId, Telemetry] = {}
        self._events: list[TransitionEvent] = []
        ledger.on_close = self._closed
        ledger.on_first_token = self._first_token
        fleet.on_grow += [index.grow, topology.resize, trust.grow, breakers.grow]
        for widen in fleet.on_grow:
            widen(fleet.capacity)

    # -- nodes -----------------------------------------------------------------------------

    def register(self, spec: NodeSpec, now: float) -> Slot:
        """Add a node; it takes requests once a probe calls it healthy.

        Raises Conflict for a known id, NotFound for an unknown profile, Invalid for a figure
        that cannot be.
        """
        check_spec(spec)
        cost = node_cost(spec)
        slot = self.fleet.add(spec, cost)
        self._list(slot, spec)
        self.topology.set_node(slot, spec)
        self.breakers.add(slot, spec.id, now)
        signal = Trust.DEGRADED if spec.events else Trust.APPROXIMATE
        self.trust.add(slot, spec.id, now, signal=signal)
        self.calibration.add(spec.id, cost.prefill, cost.tbt)
        return slot

    def update_spec(self, spec: NodeSpec, now: float) -> None:
        """Take over what discovery learned; a new block size or signal empties the index."""
        check_spec(spec)
        old, slot = self.fleet.spec(spec.id), self.fleet.slot(spec.id)
        repriced = (old.profile, old.speed, old.mfu) != (spec.profile, spec.speed, spec.mfu)
        cost = node_cost(spec) if repriced else None
        self.fleet.update(spec, cost)
        if cost is not None:
            self.calibration.add(spec.id, cost.prefill, cost.tbt)
        self.topology.set_node(slot, spec)
        if _listing(old) != _listing(spec):
            self.index.remove_node(slot)
            self._list(slot, spec)
        if (old.events is None) != (spec.events is None):
            self.trust.remove(slot)
            signal = Trust.DEGRADED if spec.events else Trust.APPROXIMATE
            self.trust.add(slot, spec.id, now, signal=signal)

    def remove(self, node: NodeId, now: float) -> None:  # noqa: ARG002 (uniform signature)
        """Take a node out; requests on it go on, their late release changes nothing."""
        slot = self.fleet.slot(node)
        self.ledger.void(slot, int(self.fleet.generation[slot]))
        self.index.remove_node(slot)
        self.topology.remove_node(slot)
        self.breakers.remove(slot)
        self.trust.remove(slot)
        self.calibration.remove(node)
        self.fleet.remove(node)
        self._readings.pop(node, None)

    def drain(self, node: NodeId, on: bool, now: float) -> None:  # noqa: ARG002
        """Stop (or resume) placing new requests on the node."""
        self.fleet.drain(node, on)

    def set_health(self, node: NodeId, health: Health, now: float) -> None:
        """Note what probes found."""
        was = self.fleet.health(node)
        if was is health:
            return
        self.fleet.set_health(node, health, now)
        self.breakers.set_dead(self.fleet.slot(node), health is Health.DEAD)
        self.note(
            TransitionEvent(
                now_s=now, machine="health", node=node, before=was, after=health, cause="probe"
            )
        )

    def restarted(self, node: NodeId, now: float) -> None:
        """The engine lost its state: nothing cached, nothing in flight, old releases void."""
        slot = self.fleet.slot(node)
        self.ledger.void(slot, int(self.fleet.generation[slot]))
        self.fleet.restart(node)
        self.index.forget(slot)
        for event in self.breakers.restarted(slot, now):
            self.note(event)
        self.note(
            TransitionEvent(
                now_s=now, machine="node", node=node, before="running", after="running",
                cause="restarted",
            )
        )  # fmt: skip

    def telemetry(self, node: NodeId, t: Telemetry, now: float) -> None:
        """Take in one reading of a node's own gauges, and what it says of its cache's shape."""
        self.fleet.set_telemetry(node, t, now)
        self._readings[node] = t
        spec = self.fleet.spec(node)
        block = t.block_size or spec.block_size
        capacity = t.kv_capacity_tokens or spec.kv_capacity_tokens
        if (block, capacity) != (spec.block_size, spec.kv_capacity_tokens):
            self.update_spec(replace(spec, block_size=block, kv_capacity_tokens=capacity), now)

    def reading(self, node: NodeId) -> Telemetry:
        """The node's last reading, as it came: an empty one before the first."""
        return self._readings.get(node, Telemetry())

    def cache_signal(self, node: NodeId, signal: Signal, now: float, *, cause: str = "") -> None:
        """What the event stream says of its own completeness."""
        for event in self.trust.signal(self.fleet.slot(node), signal, now, cause=cause):
            self.note(event)

    # -- look-ups ----------------------------------------------------------------------------

    def block_sizes(self, model: str, adapter: str = "") -> tuple[int, ...]:
        """Block sizes in use by nodes of the model: a request brings keys for each."""
        rows = self.fleet.serves_model(model, adapter)
        return tuple(sorted({int(size) for size in self.fleet.block_size[rows]}))

    def signal(self, policy: NamedPolicy, slot: int, request: Request) -> str:
        """Rung of the degradation ladder that a choice stands on."""
        name = policy.name
        if name in _BLIND:
            return name
        if not request.keys:
            return "ledger"
        return _RUNGS[self.trust.trust(slot)]

    # -- what happened -------------------------------------------------------------------------

    def note(self, event: TransitionEvent) -> None:
        """Keep a transition for the audit; bounded by dropping the oldest."""
        if len(self._events) >= 10_000:
            del self._events[:5_000]
        self._events.append(event)

    def take_events(self) -> list[TransitionEvent]:
        """Transitions since the last call."""
        taken, self._events = self._events, []
        return taken

    def tick(self, now: float) -> None:
        """Let timers of breakers, trust and detector run out; call a few times a second."""
        self.coming.sweep(now)
        for machine in (self.breakers, self.trust, self.detector):
            for event in machine.tick(now):
                self.note(event)

    def group(self, keys: Mapping[int, Sequence[int]]) -> int | None:
        """Prefix group of a prompt, by its first block size."""
        for chain in keys.values():
            return self.detector.group_of(chain)
        return None

    def placed(self, r: Reservation, now: float, *, hotspot: bool, coming: bool) -> None:
        """Tell the index, breakers and detector that a decision is being carried out."""
        d = r.decision
        slots = self._current(d)
        if d.fetch_from is not None or d.handover_tokens:
            self._count_senders(d, slots, now)
        keys = d.request.keys
        for slot in slots:
            r.tickets[slot] = self.breakers.begin(slot)
            if self.trust.trust(slot) is _APPROXIMATE:
                chain = keys.get(self.fleet.fixed.block_size[slot])
                if chain:
                    self.index.record_route(slot, chain, now)
            elif coming and slot == d.prefill_slot:
                self._expect(r, now)
        if self.learn:
            for size, chain in keys.items():
                self.index.touch(chain, size, now)
        if hotspot and Reason.COLD_PREFIX not in d.excluded and GATHERED not in d.notes:
            # Requests that were gathered on purpose say nothing of how the policy spreads.
            self._watch(d, now)

    def _expect(self, r: Reservation, now: float) -> None:
        """The prompt's blocks are coming on its prefill node."""
        d, size = r.decision, self.fleet.fixed.block_size[r.decision.prefill_slot]
        chain = d.request.keys.get(size)
        if not chain:
            return
        self.coming.sweep(now)
        self.coming.begin(
            r.key,
            slot=d.prefill_slot,
            generation=d.prefill_generation,
            keys=chain,
            block_size=size,
            held_blocks=d.match_tokens // size,
            known_blocks=d.reachable_tokens // size,
        )

    def _current(self, d: Decision) -> list[Slot]:
        """The decision's slots that still stand for the nodes it meant."""
        generation, slot = self.fleet.cells.generation, d.prefill_slot
        slots = [slot] if generation[slot] == d.prefill_generation else []
        slot = d.decode_slot
        if slot != d.prefill_slot and generation[slot] == d.decode_generation:
            slots.append(slot)
        return slots

    def _count_senders(self, d: Decision, current: list[Slot], now: float) -> None:
        """Count the KV that nodes will send for the decision against their senders' time.

        A fetch is sent at once; a hand-over begins with its prefill, layer by layer.
        """
        fleet = self.fleet
        if d.fetch_from is not None and fleet.has(d.fetch_from) and d.prefill_slot in current:
            source = fleet.slot(d.fetch_from)
            seconds = self._sending_s(d.fetch_tokens, source, d.prefill_slot)
            until_s = fleet.cells.egress_until_s
            until_s[source] = max(until_s[source], now) + seconds
        if d.handover_tokens and len(current) == 2:
            source, start = d.prefill_slot, now + d.predicted.queue_s
            seconds = self._sending_s(d.handover_tokens, source, d.decode_slot)
            until_s = fleet.cells.handover_until_s
            until_s[source] = max(until_s[source], start) + seconds

    def _sending_s(self, tokens: int, source: Slot, target: Slot) -> float:
        size = tokens * self.fleet.fixed.kv_bytes[source]
        seconds = self.topology.seconds(size, source, target)
        return seconds if seconds < math.inf else 0.0

    def _watch(self, d: Decision, now: float) -> None:
        group = self.group(d.request.keys)
        serving = self.fleet.serves_model(d.request.model, d.request.adapter)
        serving = serving & self.fleet.healthy & self.fleet.prefills
        holders = [] if group is None else [s for s in self.index.holders(group) if serving[s]]
        events = self.detector.observe(
            group, now, chosen=d.prefill_slot, holders=holders, nodes=int(serving.sum())
        )
        for event in events:
            self.note(event)

    def _closed(self, r: Reservation, outcome: Outcome, now: float) -> None:
        """A reservation ended: judge the nodes, the cache signal and the cost model by it."""
        kind, record = outcome.kind, self.breakers.record
        fine = kind is _OK
        blames = not fine and kind is not OutcomeKind.REFUSED
        failed = (outcome.failed_node or self._working_node(r)) if blames else None
        for slot, ticket in r.tickets.items():
            # The other leg's failure says nothing of this one.
            innocent = blames and _node(r.decision, slot) != failed
            judged = OutcomeKind.CLIENT_ABORT if innocent else kind
            for event in record(slot, judged, now, ticket=ticket):
                self.note(event)
        if fine:
            self.coming.done(r.key, now)
            self._learn(r, outcome, now)
        else:
            self.coming.end(r.key)

    def _first_token(self, r: Reservation, now: float) -> None:
        """The first token came: breakers on trial need not wait for the end of the stream."""
        self.coming.done(r.key, now)
        for slot, ticket in r.tickets.items():
            for event in self.breakers.first_byte(Slot(slot), now, ticket=ticket):
                self.note(event)

    def _working_node(self, r: Reservation) -> NodeId:
        d = r.decision
        return d.decode if r.prefilled_s is not None else d.prefill

    def _learn(self, r: Reservation, outcome: Outcome, now: float) -> None:
        d = r.decision
        if self.learn:
            self.calibration.observe(r, outcome, self._current(d))
        stands = self.fleet.cells.generation[d.prefill_slot] == d.prefill_generation
        if d.fetch_from is not None or not stands or r.unsplit:
            return
        reported = outcome.cached_tokens if r.cached_tokens is None else r.cached_tokens
        slack = self.fleet.fixed.block_size[d.prefill_slot]
        events = self.trust.observe(
            d.prefill_slot, now, predicted=d.match_tokens, reported=reported, slack_tokens=slack
        )
        for event in events:
            self.note(event)
            if event.after not in ("live", "history"):
                self.index.forget(d.prefill_slot)

    def _list(self, slot: Slot, spec: NodeSpec) -> None:
        approximate = 0 if spec.events else _approximate_blocks(spec)
        self.index.add_node(slot, block_size=spec.block_size, approximate_blocks=approximate)


def _node(d: Decision, slot: int) -> NodeId:
    return d.prefill if slot == d.prefill_slot else d.decode


def check_spec(spec: NodeSpec) -> None:
    """Invalid, naming the field, where a figure of the node cannot be."""
    for name in ("block_size", "batch_max", "queue_max"):
        if getattr(spec, name) < 1:
            raise Invalid(f"{name}: {getattr(spec, name)} is below 1", field=name)
    for name in ("kv_capacity_tokens", "context_tokens_max"):
        if getattr(spec, name) < 0:
            raise Invalid(f"{name}: {getattr(spec, name)} is below 0", field=name)
    kv_dtype_factor(spec.kv_dtype)
    if not 0 < spec.weight < math.inf:
        raise Invalid(f"weight: {spec.weight} is not a positive number", field="weight")


def node_cost(spec: NodeSpec) -> NodeCost:
    """Cost coefficients of a node from its profile, speed and utilisation."""
    cost = profile(spec.profile)
    return NodeCost(
        prefill=prefill_coefficients(cost, mfu=spec.mfu, speed=spec.speed),
        tbt=tbt_coefficients(cost, speed=spec.speed),
        kv_bytes_per_token=cost.kv_bytes_per_token * kv_dtype_factor(spec.kv_dtype),
        layers=cost.layers,
    )


def _approximate_blocks(spec: NodeSpec) -> int:
    """Blocks the routing history may credit: what the engine can hold."""
    if not spec.kv_capacity_tokens:
        return _APPROXIMATE_BLOCKS_MAX // 16
    return min(max(spec.kv_capacity_tokens // spec.block_size, 1), _APPROXIMATE_BLOCKS_MAX)


def _listing(spec: NodeSpec) -> tuple[int, bool, int]:
    approximate = 0 if spec.events else _approximate_blocks(spec)
    return spec.block_size, spec.events is not None, approximate
