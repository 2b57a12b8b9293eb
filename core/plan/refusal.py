"""Turns a case that cannot be placed, or only too late, into a Rejection with its figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from core.domain import DecisionId, Prediction, Reason, Rejection
from core.fleet.ledger import Ledger
from core.fleet.state import FleetState
from core.plan.admission import Forecast, Refusal, judge
from core.plan.case import NOTHING_TO_DECODE, Case
from core.plan.placement import DecodeChoice
from core.policy.constraints import Excluded
from core.tunables import Tunables

_RETRY_UNKNOWN_S = 1.0
_BUSY = frozenset({Reason.QUEUE_FULL, Reason.BATCH_CAP, Reason.KV_HEADROOM, Reason.TBT_SLO})


class Live(Protocol):
    """What refusals read of the conductor."""

    tunables: Tunables
    revision: int
    fleet: FleetState
    ledger: Ledger


class Refuser:
    """Makes rejections; `new_id` is shared with decisions so that ids sort together."""

    def __init__(self, live: Live, new_id: Callable[[], str]) -> None:
        self._live = live
        self._new_id = new_id

    def new_id(self) -> DecisionId:
        """The next decision id."""
        return DecisionId(self._new_id())

    def nobody(self, case: Case, excluded: Excluded, *, code: str = "no_candidates") -> Rejection:
        """No node may take the request: unknown model, too long a prompt, or nobody up."""
        request, fleet = case.request, self._live.fleet
        if not fleet.serves_model(request.model, request.adapter).any():
            name = request.adapter or request.model
            text = f"no node serves the model {name!r}"
            return self._make(case, 404, "unknown_model", text, excluded)
        reasons = set(excluded) - {Reason.MODEL, Reason.ADAPTER, Reason.ROLE, Reason.TENANT}
        if reasons == {Reason.CONTEXT}:
            text = f"the prompt of {request.prompt_tokens} tokens fits no node's context"
            return self._make(case, 400, "context_too_long", text, excluded)
        why = ", ".join(f"{len(nodes)} {reason.value}" for reason, nodes in excluded.items())
        text = f"no node can take the request now ({why or 'none registered'})"
        status = 429 if reasons and reasons <= _BUSY else 503
        return self._make(case, status, code, text, excluded, retry_after_s=_RETRY_UNKNOWN_S)

    def late(self, case: Case) -> Rejection | None:
        """429 where every candidate's predicted TTFT misses the limit."""
        t, c = self._live.tunables, case.c
        if t.admission.mode == "off" or self._in_time(case):
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
        t, p = self._live.tunables, case.predicted
        if t.admission.mode == "off" or decode.table is NOTHING_TO_DECODE:
            return None
        forecast = Forecast(
            ttft_s=0.0,
            queue_s=0.0,
            tbt_now_s=decode.tbt_now_s,
            tbt_then_s=decode.tbt_then_s,
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
        )
        return self._refused(case, refusal, predicted)

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
            load=float(case.c.load.mean()) if below else 0.0,
            priority=request.priority,
            top_priority=top,
        )

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
