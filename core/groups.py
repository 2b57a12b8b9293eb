"""Pipeline groups for placed requests: when a group beats the chosen node, and what it holds.

`decide` places a prompt on one node; for long prompts `GroupPlanner` asks the planner whether
several nodes together would bring the first token sooner at a price that the others can bear.
`begin_group` counts the group: the last stage's member, where the first token comes out, carries
the reservation, the other members are held for their part.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from core.conductor import Conductor
from core.domain import Decision, NodeSpec, Prediction, Slot
from core.fleet.ledger import Hold, Reservation
from core.fleet.load import queue_s
from core.plan.cost_model import profile
from core.plan.cpp import CppModel, CppNode, CppPlan, plan, wanted
from core.plan.crowding import ArrivalRate, Traffic


class GroupPlanner:
    """Plans groups for the requests of one conductor; tell it of every placed one."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self.rate = ArrivalRate()

    def plan(self, decision: Decision, now: float) -> CppPlan | None:
        """The best group for a placed prompt; None where one node does better or rules forbid.

        Candidates are the prefill nodes that could serve the request now; the cached prefix is
        the decision's own.
        """
        self.rate.add(now)
        return self.best(decision, now)

    def asks(self, decision: Decision) -> bool:
        """Whether a placed prompt asks for a group at all."""
        t, request = self.conductor.tunables, decision.request
        limit_s = request.ttft_slo_s or t.slo.ttft_s
        return bool(wanted(decision.new_tokens, decision.predicted.ttft_s, limit_s, t.cpp))

    def best(
        self, decision: Decision, now: float, within: np.ndarray | None = None
    ) -> CppPlan | None:
        """The same without counting an arrival; `within` leaves candidates by slot."""
        rules, request = self.conductor.tunables.cpp, decision.request
        ttft_slo_s = request.ttft_slo_s or self.conductor.tunables.slo.ttft_s
        single = decision.predicted
        if not rules.enabled or not wanted(decision.new_tokens, single.ttft_s, ttft_slo_s, rules):
            return None
        ledger = self.conductor.ledger
        return plan(
            self._nodes(decision, now, within),
            uncached_tokens=decision.new_tokens,
            prefix_tokens=decision.prefix_tokens,
            source=self._source(decision),
            model=_model(self.conductor.fleet.spec_at(decision.prefill_slot)),
            links=self.conductor.topology.row,
            single_queue_s=single.queue_s,
            single_ttft_s=single.ttft_s,
            ttft_slo_s=ttft_slo_s,
            rules=rules,
            traffic=Traffic(
                arrivals_per_s=self.rate.per_s(now), mean_prefill_s=ledger.mean_prefill_s
            ),
        )

    def _nodes(self, decision: Decision, now: float, within: np.ndarray | None) -> list[CppNode]:
        conductor, fleet = self.conductor, self.conductor.fleet
        able = _able(conductor, decision, now)
        if within is not None:
            able = able & within
        waits = queue_s(fleet, now)
        match = conductor.match(decision.request.keys)
        return [
            CppNode(
                slot=slot,
                prefill=(float(fleet.c0[slot]), float(fleet.c1[slot]), float(fleet.c2[slot])),
                queue_s=float(waits[slot]),
                match_tokens=int(match[slot]),
                place=fleet.spec_at(slot).place,
            )
            for slot in np.flatnonzero(able).tolist()
        ]

    def _source(self, decision: Decision) -> int:
        fleet, holder = self.conductor.fleet, decision.fetch_from
        return decision.prefill_slot if holder is None else fleet.slot(holder)


def begin_group(
    conductor: Conductor, decision: Decision, group: CppPlan, now: float
) -> tuple[Reservation, dict[int, Hold]]:
    """Count a group's load: the reservation on the last stage's node, holds on the others by slot.

    The caller releases each hold when its member is free again.
    """
    holds = {}
    share = 1.0 / len(group.stages)
    for stage in group.stages[:-1]:
        seconds = stage.end_s - stage.queue_s
        tokens = group.uncached_tokens * share
        holds[stage.slot] = conductor.ledger.hold(stage.slot, seconds, tokens=tokens, now=now)
    return conductor.begin(as_group(conductor, decision, group), now), holds


def as_group(conductor: Conductor, decision: Decision, group: CppPlan) -> Decision:
    """The decision as it stands once a group carries it out."""
    fleet, last = conductor.fleet, group.stages[-1]
    slot = Slot(last.slot)
    node, generation = fleet.node_at(slot), int(fleet.generation[slot])
    moved = decision.disaggregated
    members = ", ".join(fleet.node_at(stage.slot) for stage in group.stages)
    return replace(
        decision,
        prefill=node,
        prefill_slot=slot,
        prefill_generation=generation,
        decode=decision.decode if moved else node,
        decode_slot=decision.decode_slot if moved else slot,
        decode_generation=decision.decode_generation if moved else generation,
        fetch_from=None,
        fetch_tokens=0,
        predicted=Prediction(
            queue_s=last.queue_s,
            transfer_s=0.0,
            prefill_s=last.end_s - last.queue_s,
            tbt_s=decision.predicted.tbt_s,
        ),
        notes=(*decision.notes, f"pipeline group of {len(group.stages)}: {members}"),
    )


def _able(conductor: Conductor, decision: Decision, now: float) -> np.ndarray:
    """Slots whose nodes could prefill the request now, load aside."""
    fleet, request = conductor.fleet, decision.request
    able: np.ndarray = (
        fleet.serves_model(request.model, request.adapter)
        & fleet.admits(request.tenant)
        & fleet.prefills
        & fleet.healthy
        & ~fleet.draining
        & conductor.breakers.allowed(now)[: fleet.capacity]
        & (fleet.context_max > request.prompt_tokens)
    )
    return able


def _model(spec: NodeSpec) -> CppModel:
    p = profile(spec.profile)
    return CppModel(
        layers=p.layers,
        kv_bytes_per_token=p.kv_bytes_per_token,
        hidden_bytes_per_token=p.d_model * p.bytes_per_value,
    )
