"""Pipeline groups in the service: planned for long prompts, carried out where nodes offer it.

Theory. A placed prompt whose single-node prediction misses its TTFT limit, or whose uncached part
is long, asks for a group (`core.plan.cpp`). Where nodes declare a common `pipeline_group` and can
do it (emulated engines that prefill and decode), the group is carried out: the last stage gets the
client's request, the others their part of it. Elsewhere the plan is advice: a note of the
decision. A prompt that admission would refuse for its TTFT is served by a group that keeps it.

A group fails as a whole when one member does; the request then goes once the plain way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import orjson

from core.domain import Decision, EngineKind, NodeSpec, Outcome, Rejection, Request, Role
from core.errors import EngineBroken, EngineFault
from core.fleet.ledger import Hold, Reservation
from core.gateway.flights import Interrupt
from core.groups import GroupPlanner, begin_group
from core.plan.cpp import CppPlan
from core.plan.cpp_plan import brief

if TYPE_CHECKING:
    from core.gateway.attempt import Attempt
    from core.gateway.intake import Intake
    from core.gateway.service import Service

PATH = "/emulated/pipeline"
NO_LIMIT_S = 1e9
LATE = "predicted_ttft_slo"
_JSON = {"content-type": "application/json", "accept": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A plan that will be carried out."""

    plan: CppPlan
    nodes: tuple[NodeSpec, ...]
    """By stage."""
    prefix_tokens: int
    """That every member holds: whole blocks, at most the plan's."""
    chunks: tuple[int, ...]
    """Of everything behind it."""


class Pipelines:
    """Plans for the requests of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._conductor = service.conductor
        self._planner = GroupPlanner(service.conductor)
        self._found: tuple[str, Group] | None = None
        self.totals: Counter[str] = Counter()

    def considered(
        self, decided: Decision | Rejection, now: float, *, carry: bool
    ) -> Decision | Rejection:
        """The same with what a group could do: a plan for `take`, kept until the next decision,
        or a note. carry: whoever asks can carry a group out."""
        self._found = None
        self._planner.rate.add(now)
        if isinstance(decided, Rejection):
            return self._instead(decided, now, carry)
        if not self._planner.asks(decided):
            return decided
        group = self._executable(decided, now) if carry else None
        if group is not None:
            self._found = decided.id, group
            return decided
        plan = self._planner.best(decided, now)
        if plan is None:
            return decided
        self.totals["advised"] += 1
        note = f"pipeline advice: {self._told(plan)}"
        told: Decision = msgspec.structs.replace(decided, notes=(*decided.notes, note))
        return told

    def take(self, decision: Decision) -> Group | None:
        """The group that is to carry this decision out, if any."""
        found, self._found = self._found, None
        return found[1] if found is not None and found[0] == decision.id else None

    def begin(
        self, decision: Decision, group: Group, now: float
    ) -> tuple[Reservation, dict[int, Hold]]:
        """Count the group's load; the reservation's decision names the last stage."""
        meant = msgspec.structs.replace(
            decision,
            match_tokens=group.prefix_tokens,
            coming_tokens=0,
            notes=(*decision.notes, f"pipeline: {self._told(group.plan)}"),
        )
        made, holds = begin_group(self._conductor, meant, group.plan, now)
        made.alone = False  # a group's pace says nothing of a node's
        self.totals["started"] += 1
        return made, holds

    # -- planning ----------------------------------------------------------------------------

    def _instead(self, refused: Rejection, now: float, carry: bool) -> Decision | Rejection:
        """A group for a prompt that every single node would serve too late."""
        if refused.code != LATE:
            return refused
        request = refused.request
        decided = self._conductor.decide(patient(request), now)
        if isinstance(decided, Rejection):
            return refused
        decided = msgspec.structs.replace(decided, id=refused.id, request=request)
        group = self._executable(decided, now) if carry else None
        if group is not None and group.plan.ttft_s <= self._limit_s(request):
            self._found = decided.id, group
            return decided
        plan = self._planner.best(decided, now)
        if plan is None:
            return refused
        self.totals["advised"] += 1
        text = f"{refused.message}; pipeline advice: {self._told(plan)}"
        told: Rejection = msgspec.structs.replace(refused, message=text)
        return told

    def _limit_s(self, request: Request) -> float:
        t = self._conductor.tunables
        return (request.ttft_slo_s or t.slo.ttft_s) * t.admission.ttft_slack

    def _executable(self, decision: Decision, now: float) -> Group | None:
        """The best group within nodes that declare one."""
        if decision.disaggregated:
            return None
        plans = (self._planner.best(decision, now, mask) for mask in self._declared())
        best = min((p for p in plans if p is not None), key=lambda p: p.cost, default=None)
        return None if best is None else self._group(decision, best)

    def _declared(self) -> list[np.ndarray]:
        """By declared group: the slots of nodes that can take part."""
        fleet = self._conductor.fleet
        masks: dict[str, np.ndarray] = {}
        for slot, spec in fleet.slots():
            able = spec.engine is EngineKind.EMULATED and spec.role is Role.BOTH and spec.url
            if spec.pipeline_group and able:
                empty = np.zeros(fleet.capacity, np.bool_)
                masks.setdefault(spec.pipeline_group, empty)[slot] = True
        return [mask for mask in masks.values() if mask.sum() > 1]

    def _group(self, decision: Decision, plan: CppPlan) -> Group | None:
        fleet = self._conductor.fleet
        nodes = tuple(fleet.spec_at(stage.slot) for stage in plan.stages)
        sizes = {node.block_size for node in nodes}
        if len(sizes) != 1:
            return None
        size = sizes.pop()
        match = self._conductor.match(decision.request.keys)
        held = min(int(match[stage.slot]) for stage in plan.stages)
        prefix = min(held, plan.prefix_tokens) // size * size
        more = plan.prefix_tokens - prefix
        longest = self._conductor.tunables.cpp.chunk_tokens
        first = [min(longest, more - at) for at in range(0, more, longest)]
        return Group(plan=plan, nodes=nodes, prefix_tokens=prefix, chunks=(*first, *plan.chunks))

    def _told(self, plan: CppPlan) -> str:
        return brief(plan, lambda slot: self._conductor.fleet.node_at(slot))


def patient(request: Request) -> Request:
    """The request as if its first token could take any time."""
    out: Request = msgspec.structs.replace(request, ttft_slo_s=NO_LIMIT_S)
    return out


def can_group(intake: Intake) -> bool:
    """Whether the prompt's ids are known, and there is one prompt with one answer."""
    body, prompt = intake.body, intake.prompt
    if body is None or prompt is None or not prompt.exact:
        return False
    asked = body.get("prompt")
    several = isinstance(asked, list) and bool(asked) and isinstance(asked[0], (list, str))
    return not several and body.get("n") in (None, 1)


# -- carrying out -------------------------------------------------------------------------------


async def run(attempt: Attempt, group: Group) -> Outcome:
    """All stages at once; the last one's answer is the client's."""
    told = _description(attempt, group)
    intake, lead = attempt.intake, group.nodes[-1]
    adapter = attempt.service.adapter(lead)
    body = adapter.forward_body(intake.upstream_body(), lead, attempt.decision)
    attempt.also = tuple(node.id for node in group.nodes[:-1])
    stages = [
        asyncio.create_task(_stage(attempt, group, s, told)) for s in range(len(group.nodes) - 1)
    ]
    try:
        return await attempt.relay(lead, attempt.body_for(lead, {**body, "pipeline": told}))
    finally:
        for task in stages:
            task.cancel()
        await asyncio.wait(stages)


def _description(attempt: Attempt, group: Group) -> dict[str, Any]:
    return {
        "name": f"{attempt.decision.id}-{attempt.service.new_request_id()[:6]}",
        "urls": [node.url for node in group.nodes],
        "layers": [stage.layers for stage in group.plan.stages],
        "chunks": list(group.chunks),
        "prefix_tokens": group.prefix_tokens,
    }


async def _stage(attempt: Attempt, group: Group, stage: int, told: dict[str, Any]) -> None:
    """One of the others: its answer says that all is handed on; its failure ends the group."""
    service, intake, node = attempt.service, attempt.intake, group.nodes[stage]
    assert intake.prompt is not None
    body: dict[str, Any] = {
        "model": intake.served,
        "prompt": intake.prompt.tokens,
        "max_tokens": 1,
        "pipeline": {**told, "stage": stage},
    }
    salt = intake.body.get("cache_salt") if intake.body else None
    if isinstance(salt, str):
        body["cache_salt"] = salt
    headers = service.adapter(node).forward_headers(node, request_id=attempt.exchange.request_id)
    data = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    try:
        url = node.url.rstrip("/") + PATH
        with await service.upstream.send("POST", url, data, headers | _JSON) as answer:
            text, _ = await answer.read_all(1 << 16)
            if answer.status != 200:
                why = service.adapter(node).error_message(text)
                raise EngineBroken(f"stage {stage} on {node.id} answered {answer.status}: {why}")
        _free(attempt, group, stage)
    except EngineFault:
        if not attempt.exchange.started:
            attempt.working = node.id
            attempt.flight.interrupt(Interrupt.NODE_DEAD)


def _free(attempt: Attempt, group: Group, stage: int) -> None:
    """The stage is over: its node is free for others."""
    attempt.held.release(group.plan.stages[stage].slot)
