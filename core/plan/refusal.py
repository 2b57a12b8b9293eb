"""Turns a case that cannot be placed, or only too late, into a Rejection with its figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from core.domain import DecisionId, Prediction, Reason, Rejection
from core.fleet.ledger import Ledger
from core.fleet.state import FleetState
from core.plan.admission import Forecast, Refusal, class_share, judge
from core.plan.case import NOTHING_TO_DECODE, Case
from core.plan.placement import DecodeChoice
from core.policy.constraints import Excluded
from core.tunables import Tunables

_RETRY_UNKNOWN_S = 1.0
_RETRY_LEAST_S = 0.1
_BUSY = frozenset({Reason.QUEUE_FULL, Reason.BATCH_CAP, Reason.KV_HEADROOM, Reason.TBT_SLO})
_NOT_MEANT = frozenset({Reason.MODEL, Reason.ADAPTER, Reason.ROLE, Reason.TENANT, Reason.NO_PATH})
"""Reasons of nodes that would never take such a request: they say nothing of the others."""
_NEVER_FITS = frozenset({Reason.CONTEXT, Reason.KV_HEADROOM})
"""On the prefill side both compare the prompt with what the node can ever hold."""


class Live(Protocol):
    """What refusals read of the conductor."""

    tunables: Tunables
    revision: int
    fleet: FleetState
    ledger: Ledger
    growth: float


class Refuser:
    """Makes rejections; `new_id` is shared with decisions so that ids sort together.

    `late` and `slow` judge by the admission rules and are asked where those are on.
    """

    def __init__(self, live: Live, new_id: Callable[[], str]) -> None:
        self._live = live
        self._new_id = new_id

    def new_id(self) -> DecisionId:
        """The next decision id."""
        return DecisionId(self._new_id())

    def nobody(self, case: Case) -> Rejection:
        """No node may prefill the request: unknown model, too long a prompt, or nobody up."""
        request, excluded = case.request, case.left.excluded
        fleet, name = self._live.fleet, request.adapter or request.model
        serving = fleet.serves_model(request.model, request.adapter)
        if not (serving & fleet.admits(request.tenant)).any():
            whom = f" to tenant {request.tenant!r}" if serving.any() else ""
            text = f"no node serves the model {name!r}{whom}"
            return self._make(case, 404, "unknown_model", text, excluded)
        reasons = set(excluded) - _NOT_MEANT
        if reasons and reasons <= _NEVER_FITS:
            text = f"the prompt of {request.prompt_tokens} tokens fits no node that serves {name!r}"
            return self._make(case, 400, "context_too_long", text, excluded)
        return self._unavailable(case, "no_candidates", excluded, reasons)

    def nowhere(self, case: Case, excluded: Excluded) -> Rejection:
        """The prompt was placed, but no node that its KV can get to may generate from it."""
        return self._unavailable(case, "no_decode_candidates", excluded, set(excluded) - _NOT_MEANT)

    def _unavailable(
        self, case: Case, code: str, excluded: Excluded, reasons: set[Reason]
    ) -> Rejection:
        why = ", ".join(f"{len(nodes)} {reason.value}" for reason, nodes in excluded.items())
        text = f"no node can take the request now ({why or 'none registered'})"
        full = reasons - {Reason.CONTEXT}
        busy = bool(full) and full <= _BUSY
        retry_s = self._room_s(case, excluded) if busy else _RETRY_UNKNOWN_S
        return self._make(case, 429 if busy else 503, code, text, excluded, retry_after_s=retry_s)

    def _room_s(self, case: Case, excluded: Excluded) -> float:
        """Predicted time until the first of the full nodes has room again."""
        fleet, ledger, now = self._live.fleet, self._live.ledger, case.now
        waits = []
        for reason in _BUSY & set(excluded):
            for slot in map(fleet.slot, excluded[reason]):
                if reason is Reason.QUEUE_FULL:
                    waits.append(float(fleet.head_started_s[slot] + fleet.head_s[slot]) - now)
                elif fleet.kv_capacity[slot] >= case.request.prompt_tokens:
                    waits.append(ledger.drain_s(slot, now))
        most = self._live.tunables.admission.retry_after_max_s
        return min(max(min(waits, default=_RETRY_UNKNOWN_S), _RETRY_LEAST_S), most)

    def late(self, case: Case) -> Rejection | None:
        """429 where every candidate's predicted TTFT misses the limit."""
        c = case.c
        if self._in_time(case):
            return None
        ttft = c.queue_s + c.transfer_s + c.fetched_prefill_s
        best = int(ttft.argmin())
        forecast = Forecast(ttft_s=float(ttft[best]), queue_s=float(c.queue_s[best]))
        refusal = self._judge(case, forecast)
        if refusal is None:
            return None
        predicted = Prediction(
            queue_s=float(c.queue_s[best]),
            transfer_s=float(c.transfer_s[best]),
            prefill_s=float(c.fetched_prefill_s[best]),
        )
        return self._refused(case, refusal, predicted)

    def _in_time(self, case: Case) -> bool:
        """Whether the chosen node alone already meets the full limit of the highest class."""
        t, request = self._live.tunables, case.request
        if self._live.ledger.top_priority > request.priority:
            return False
        limit = (request.ttft_slo_s or t.slo.ttft_s) * t.admission.ttft_slack
        return case.predicted.ttft_s <= limit

    def slow(self, case: Case, decode: DecodeChoice) -> Rejection | None:
        """429 where every decode node's predicted TBT misses the limit."""
        p = case.predicted
        if decode.table is NOTHING_TO_DECODE:
            return None
        forecast = Forecast(
            ttft_s=0.0,
            queue_s=0.0,
            tbt_now_s=decode.tbt_least_s,
            tbt_floor_s=decode.tbt_floor_s,
            decode_s=decode.decode_s,
        )
        refusal = self._judge(case, forecast)
        if refusal is None and not decode.feasible:
            refusal = self._others_slowed(case, decode)
        if refusal is None:
            return None
        predicted = Prediction(
            queue_s=p.queue_s,
            transfer_s=p.transfer_s + decode.transfer_s,
            prefill_s=p.prefill_s,
            tbt_s=decode.tbt_s,
            handover_s=decode.transfer_s,
        )
        return self._refused(case, refusal, predicted)

    def tbt_limit_s(self, case: Case) -> float:
        """The request's own limit on the time between tokens, as its class keeps it."""
        t, request, top = self._live.tunables, case.request, self._live.ledger.top_priority
        share = 1.0
        if top > request.priority:
            load = self._load(case)
            share = class_share(request.priority, t.admission, top_priority=top, load=load)
        return (request.tbt_slo_s or t.slo.tbt_s) * t.admission.tbt_slack * share

    def _others_slowed(self, case: Case, decode: DecodeChoice) -> Refusal:
        rules = self._live.tunables.admission
        limit = (case.request.tbt_slo_s or self._live.tunables.slo.tbt_s) * rules.tbt_slack
        return Refusal(
            code="predicted_tbt_slo",
            message=(
                f"predicted time between tokens {decode.tbt_s * 1e3:.3g} ms would break the "
                "limit of requests already decoding"
            ),
            predicted_s=decode.tbt_s,
            limit_s=limit,
            retry_after_s=min(decode.decode_s, rules.retry_after_max_s),
        )

    def _judge(self, case: Case, forecast: Forecast) -> Refusal | None:
        t, request, top = self._live.tunables, case.request, self._live.ledger.top_priority
        below = top > request.priority
        return judge(
            forecast,
            t.admission,
            ttft_slo_s=request.ttft_slo_s or t.slo.ttft_s,
            tbt_slo_s=request.tbt_slo_s or t.slo.tbt_s,
            load=self._load(case) if below else 0.0,
            priority=request.priority,
            top_priority=top,
        )

    def _load(self, case: Case) -> float:
        """Mean load by which lower classes give way: under early rejection, the expected one."""
        early = self._live.tunables.admission.early_rejection
        return float(case.c.load.mean()) * (self._live.growth if early else 1.0)

    def _refused(self, case: Case, refusal: Refusal, predicted: Prediction) -> Rejection:
        return self._make(
            case,
            refusal.status,
            refusal.code,
            refusal.message,
            case.left.excluded,
            retry_after_s=refusal.retry_after_s,
            predicted=predicted,
        )

    def _make(
        self,
        case: Case,
        status: int,
        code: str,
        message: str,
        excluded: Excluded,
        *,
        retry_after_s: float = 0.0,
        predicted: Prediction | None = None,
    ) -> Rejection:
        return Rejection(
            id=self.new_id(),
            request=case.request,
            now_s=case.now,
            policy=case.policy.name,
            revision=self._live.revision,
            status=status,
            code=code,
            message=message,
            retry_after_s=retry_after_s,
            predicted=predicted,
            reachable_tokens=int(case.match.max(initial=0)),
            candidates=case.table if case.table.nodes else None,
            excluded=excluded,
        )
