"""What single requests were promised, what was expected of them, and what came.

Reads the newest so many decisions of a stretch of time, along the index by time, so that a busy
day costs no more than a busy minute; the answer says how far back it reaches.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, FromClause, func, select

from core.errors import BadRequest
from core.ports import Timing, Timings
from storage.models import decisions, ends, outcomes
from storage.types import from_micros, to_micros

LIMIT_MAX = 200_000
_EXPECTED = ("predicted_ttft_s", "predicted_tbt_s", "ttft_slo_s", "tbt_slo_s", "prefill_node")
_OBSERVED = ("ttft_s", "tbt_s")


def timings(connection: Connection, start: datetime, end: datetime, limit: int) -> Timings:
    """The newest requests with an outcome among the newest `limit` decisions, newest first."""
    newest, o = _newest(start, end, limit), outcomes.c
    same = ends(o, newest.c.at_us, newest.c.id)
    columns = [newest.c.at_us, *(newest.c[name] for name in _EXPECTED), *(o[n] for n in _OBSERVED)]
    statement = select(*columns).select_from(newest.join(outcomes, same))
    statement = statement.where(o.ttft_s.is_not(None)).order_by(newest.c.at_us.desc())
    found = [
        Timing(
            at=from_micros(at_us), predicted_ttft_s=ttft, predicted_tbt_s=tbt, ttft_slo_s=ttft_slo,
            tbt_slo_s=tbt_slo, prefill_node=node, ttft_s=observed_ttft, tbt_s=observed_tbt,
        )
        for at_us, ttft, tbt, ttft_slo, tbt_slo, node, observed_ttft, observed_tbt
        in connection.execute(statement)
    ]  # fmt: skip
    looked = select(func.min(newest.c.at_us), func.count()).select_from(newest)
    oldest_us, count = connection.execute(looked).one()
    return Timings(
        requests=tuple(found),
        covered_from=None if oldest_us is None else from_micros(oldest_us),
        complete=count < limit,
    )


def _newest(start: datetime, end: datetime, limit: int) -> FromClause:
    if not 1 <= limit <= LIMIT_MAX:
        raise BadRequest(f"must be in 1..{LIMIT_MAX}", field="limit")
    d = decisions.c
    return (
        select(d.id, d.at_us, *(d[name] for name in _EXPECTED))
        .where(d.at_us >= to_micros(start), d.at_us < to_micros(end))
        .order_by(d.at_us.desc())
        .limit(limit)
        .subquery("newest")
    )
