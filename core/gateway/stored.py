"""From stored records to the admin API's schemas, and back from its filters. Pure."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta

from core import wire
from core.domain import OutcomeKind
from core.errors import BadRequest
from core.explain import Explanation, Selection, explanation_text, why_no_tbt, why_no_ttft
from core.ports import (
    Cursor,
    DecisionQuery,
    DecisionRecord,
    OutcomeRecord,
    Page,
    StoredDecision,
    TimeBucket,
)


def query_of(asked: wire.DecisionQuery) -> DecisionQuery:
    """Filters as the store takes them."""
    code, kind = asked.code, None
    if asked.outcome == "rejected":
        code = code or "*"
    elif asked.outcome is not None:
        kind = str(asked.outcome)
    return DecisionQuery(
        start=_utc(asked.since),
        end=_utc(asked.until),
        node=asked.node,
        policy=asked.policy,
        model=asked.model,
        tenant=asked.tenant,
        revision=asked.revision,
        kind=kind,
        code=code,
        below_best_match=asked.below_best,
        slo_missed=asked.slo_missed,
        text=asked.id,
    )


def page_view(page: Page) -> wire.DecisionPage:
    """A page of rows with the cursor of the next one."""
    return wire.DecisionPage(
        rows=[row_view(stored) for stored in page.rows],
        next=cursor_text(page.next) if page.next else None,
    )


def row_view(stored: StoredDecision) -> wire.DecisionRow:
    """One decision with its outcome."""
    d = stored.decision
    return wire.DecisionRow(
        id=d.id,
        at=d.at,
        request_id=d.request_id,
        model=d.model,
        adapter=d.adapter,
        tenant=d.tenant,
        policy=d.policy,
        revision=d.revision,
        signal=d.signal,
        routed=d.placed,
        status=200 if d.status is None else d.status,
        code=d.code,
        message=d.message,
        prompt_tokens=d.prompt_tokens,
        output_tokens_expected=d.output_tokens_expected,
        prefill_node=d.prefill_node or "",
        decode_node=d.decode_node or "",
        match_tokens=d.match_tokens,
        reachable_tokens=d.reachable_tokens,
        prefix_tokens=d.prefix_tokens,
        fetch_from=d.fetch_from or "",
        fetch_tokens=d.fetch_tokens,
        predicted_queue_s=d.predicted_queue_s or 0.0,
        predicted_transfer_s=d.predicted_transfer_s or 0.0,
        predicted_prefill_s=d.predicted_prefill_s or 0.0,
        predicted_ttft_s=d.predicted_ttft_s or 0.0,
        predicted_tbt_s=d.predicted_tbt_s or 0.0,
        decide_s=d.decide_s,
        waited_s=d.waited_s,
        tied=d.tied,
        retries=d.attempt,
        ttft_slo_s=d.ttft_slo_s,
        tbt_slo_s=d.tbt_slo_s,
        outcome=outcome_view(stored.outcome) if stored.outcome else None,
    )


def outcome_view(o: OutcomeRecord) -> wire.OutcomeView:
    """How a request ended."""
    return wire.OutcomeView(
        kind=OutcomeKind(o.kind),
        status=o.status,
        error=o.error,
        ttft_s=o.ttft_s,
        tbt_s=o.tbt_s,
        tpot_s=o.tpot_s,
        e2e_s=o.e2e_s,
        prompt_tokens=o.prompt_tokens,
        cached_tokens=o.cached_tokens,
        output_tokens=o.output_tokens,
        slo_missed=o.slo_missed,
        no_ttft=why_no_ttft(o),
        no_tbt=why_no_tbt(o),
        finished_at=o.finished_at,
    )


def detail_view(e: Explanation) -> wire.DecisionDetail:
    """A decision with everything that explains it."""
    return wire.DecisionDetail(
        row=row_view(StoredDecision(e.decision, e.outcome)),
        verdict=e.verdict,
        missed_match=e.missed_match,
        prefill=_selection(e.prefill),
        decode=_selection(e.decode) if e.decode is not None else None,
        explanation=explanation_text(e),
        notes=_notes(e.decision),
    )


def series_points(buckets: list[TimeBucket], step: timedelta) -> list[wire.SeriesPoint]:
    """Stored buckets as points; steps without decisions appear empty."""
    points: list[wire.SeriesPoint] = []
    for b in buckets:
        while points and points[-1].at + step < b.start and len(points) < 10_000:
            points.append(wire.SeriesPoint(at=points[-1].at + step))
        points.append(
            wire.SeriesPoint(
                at=b.start,
                requests=b.decisions,
                rejected=b.rejected,
                finished=b.finished,
                errors=b.failed,
                aborted=b.aborted,
                good=max(b.finished - b.failed - b.aborted - b.slo_missed, 0),
                ttft_s=_spread(b.finished, b.ttft_p50_s, b.ttft_p90_s, b.ttft_p99_s),
                tbt_s=_spread(b.finished, b.tbt_p50_s, b.tbt_p90_s, b.tbt_p99_s),
                hit_achieved=_share(b.match_tokens, b.prompt_tokens),
                hit_reachable=_share(b.reachable_tokens, b.prompt_tokens),
                hit_reported=_share(b.cached_tokens, b.reported_prompt_tokens),
                prompt_tokens=b.prompt_tokens,
                output_tokens=b.output_tokens,
                per_node=dict(b.per_node),
            )
        )
    return points


def cursor_text(cursor: Cursor) -> str:
    """A cursor as an opaque text for URLs."""
    plain = f"{cursor.at.isoformat()}|{cursor.id}".encode()
    return base64.urlsafe_b64encode(plain).decode().rstrip("=")


def cursor_of(text: str) -> Cursor:
    """The cursor that `cursor_text` wrote; BadRequest for anything else."""
    try:
        plain = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        at, _, id_ = plain.decode().partition("|")
        return Cursor(at=_aware(datetime.fromisoformat(at)), id=id_)
    except (ValueError, binascii.Error):
        raise BadRequest("is no cursor of a page before", field="cursor") from None


def _selection(s: Selection) -> wire.SelectionView:
    return wire.SelectionView(
        sense=s.sense,
        formula=s.formula,
        tied=s.tied,
        size=s.size,
        candidates=[
            wire.CandidateView(
                rank=c.rank,
                node=c.node,
                total=c.total,
                chosen=c.chosen,
                inputs=dict(c.inputs),
                terms=dict(c.terms),
                why_not=c.why_not,
            )
            for c in s.candidates
        ],
        excluded={
            x.reason: [*x.nodes, *([f"and {x.more} more"] if x.more else [])] for x in s.excluded
        },
    )


def _notes(d: DecisionRecord) -> list[str]:
    return d.notes.splitlines()


def _spread(
    count: int, p50: float | None, p90: float | None, p99: float | None
) -> wire.Quantiles | None:
    if p50 is None or p90 is None or p99 is None:
        return None
    return wire.Quantiles(count=count, mean=None, p50=p50, p90=p90, p99=p99)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else _aware(at)


def _aware(at: datetime) -> datetime:
    """A time without a zone is taken as UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
