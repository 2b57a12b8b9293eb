"""How the requests of a stretch of time fared: by tenant, model and nodes, and one by one.

Both read at most the newest so many decisions of the stretch, along the index by time, so that a
busy day costs no more than a busy minute; the answer says how far back it reaches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    RowMapping,
    Select,
    and_,
    case,
    func,
    literal,
    null,
    select,
)

from core.domain import OutcomeKind
from core.errors import BadRequest
from core.ports import RequestShare, RequestShares, Timing, Timings
from storage.models import decisions, outcomes
from storage.types import from_micros, to_micros

LIMIT_MAX = 200_000
PAIRS_MAX = 500
OWNERS_MAX = 2_000
_OWNERS = ("tenant", "model")
_KEYS = (*_OWNERS, "prefill_node", "decode_node")
_COUNTS = (
    "decisions", "rejected", "finished", "failed", "aborted", "ttft_missed", "tbt_missed",
    "slo_missed", "prompt_tokens", "match_tokens",
)  # fmt: skip
_COLUMNS = (*_COUNTS, "oldest_us")


def shares(
    connection: Connection, start: datetime, end: datetime, limit: int, *, by_node: bool = True
) -> RequestShares:
    """The newest `limit` decisions of [start, end) by tenant and model, the largest groups first.

    With `by_node` by nodes too. A fleet has more pairs of nodes than anybody reads: what is not
    among the `PAIRS_MAX` largest groups is added up by tenant and model, so that sums stay sums
    of everything.
    """
    newest = _newest(start, end, limit, "status", "prompt_tokens", "match_tokens", *_KEYS)
    keys = _KEYS if by_node else _OWNERS
    sums = [column.label(name) for name, column in _sums(newest).items()]
    grouped = (
        select(*(newest.c[name] for name in keys), *sums)
        .select_from(_with_outcomes(newest))
        .group_by(*(newest.c[name] for name in keys))
        .cte("grouped")
    )
    rows = connection.execute(_both(grouped) if by_node else _by_owner(grouped)).mappings().all()
    totals = [row for row in rows if row["whole"]]
    owners = [_request_share(row) for row in totals]
    listed = [_request_share(row) for row in rows if not row["whole"]]
    return RequestShares(
        groups=(*listed, *_remains(owners, listed)) if by_node else tuple(owners),
        decisions=int(totals[0]["all_decisions"]) if totals else 0,
        covered_from=_time(int(totals[0]["all_oldest_us"])) if totals else None,
    )


def _sums(newest: FromClause) -> dict[str, ColumnElement[Any]]:
    """What is added up of each group; `oldest_us` is its oldest decision."""
    ended, missed = outcomes.c.decision_id.is_not(None), outcomes.c.slo_missed
    return {
        "decisions": func.count(),
        "rejected": _count(newest.c.status.is_not(None)),
        "finished": _count(ended),
        "failed": _count(and_(ended, outcomes.c.kind.not_in(_NOT_FAILED))),
        "aborted": _count(outcomes.c.kind == OutcomeKind.CLIENT_ABORT.value),
        "ttft_missed": _count(missed.in_(("ttft", "ttft+tbt"))),
        "tbt_missed": _count(missed.in_(("tbt", "ttft+tbt"))),
        "slo_missed": _count(missed != ""),
        "prompt_tokens": func.sum(newest.c.prompt_tokens),
        "match_tokens": func.sum(newest.c.match_tokens),
        "oldest_us": func.min(newest.c.at_us),
    }


def _both(grouped: CTE) -> CompoundSelect[Any]:
    """The largest groups, and all of them by owner: the groups are made once."""
    columns = [grouped.c[name] for name in _KEYS]
    largest = (
        select(
            literal(0).label("whole"), *columns, *(grouped.c[name] for name in _COLUMNS),
            literal(0).label("all_decisions"), literal(0).label("all_oldest_us"),
        )
        .order_by(grouped.c.decisions.desc(), *columns)
        .limit(PAIRS_MAX)
        .subquery("largest")
    )  # fmt: skip
    return select(largest).union_all(_by_owner(grouped))


def _by_owner(grouped: CTE) -> Select[Any]:
    owners = [grouped.c[name] for name in _OWNERS]
    added = [
        (func.min if name == "oldest_us" else func.sum)(grouped.c[name]).label(name)
        for name in _COLUMNS
    ]
    whole = (
        select(
            literal(1).label("whole"), *owners, null().label("prefill_node"),
            null().label("decode_node"), *added,
            func.sum(func.sum(grouped.c.decisions)).over().label("all_decisions"),
            func.min(func.min(grouped.c.oldest_us)).over().label("all_oldest_us"),
        )
        .group_by(*owners)
        .order_by(func.sum(grouped.c.decisions).desc(), *owners)
        .limit(OWNERS_MAX)
        .subquery("owners")
    )  # fmt: skip
    return select(whole)


def _request_share(row: RowMapping) -> RequestShare:
    counts: dict[str, Any] = {name: int(row[name] or 0) for name in _COUNTS}
    return RequestShare(
        tenant=row["tenant"],
        model=row["model"],
        prefill_node=row["prefill_node"] or "",
        decode_node=row["decode_node"] or "",
        **counts,
    )


def _remains(owners: list[RequestShare], listed: list[RequestShare]) -> list[RequestShare]:
    """Of each owner what is in none of the listed groups."""
    counted: dict[tuple[str, str], Counter[str]] = {}
    for share in listed:
        counts = counted.setdefault((share.tenant, share.model), Counter())
        counts.update({name: getattr(share, name) for name in _COUNTS})
    left = []
    for owner in owners:
        counts = counted.get((owner.tenant, owner.model), Counter())
        if owner.decisions > counts["decisions"]:
            rest: dict[str, Any] = {n: getattr(owner, n) - counts[n] for n in _COUNTS}
            left.append(replace(owner, others=True, **rest))
    return left


def timings(connection: Connection, start: datetime, end: datetime, limit: int) -> Timings:
    """The newest requests with an outcome among the newest `limit` decisions, newest first."""
    names = ("predicted_ttft_s", "predicted_tbt_s", "ttft_slo_s", "tbt_slo_s", "prefill_node")
    newest = _newest(start, end, limit, "status", *names)
    statement = (
        select(
            newest.c.at_us,
            *(newest.c[name] for name in names),
            outcomes.c.ttft_s,
            outcomes.c.tbt_s,
        )
        .select_from(newest.join(outcomes, _same(newest)))
        .where(outcomes.c.ttft_s.is_not(None))
        .order_by(newest.c.at_us.desc())
    )
    found = [
        Timing(at=from_micros(row["at_us"]), **{k: v for k, v in row.items() if k != "at_us"})
        for row in connection.execute(statement).mappings()
    ]
    oldest = connection.scalar(select(func.min(newest.c.at_us)))
    return Timings(requests=tuple(found), covered_from=_time(oldest))


_NOT_FAILED = (OutcomeKind.OK.value, OutcomeKind.CLIENT_ABORT.value)


def _newest(start: datetime, end: datetime, limit: int, *names: str) -> FromClause:
    if not 1 <= limit <= LIMIT_MAX:
        raise BadRequest(f"must be in 1..{LIMIT_MAX}", field="limit")
    d = decisions.c
    chosen = [d.id, d.at_us, *(d[name] for name in names)]
    return (
        select(*chosen)
        .where(d.at_us >= to_micros(start), d.at_us < to_micros(end))
        .order_by(d.at_us.desc())
        .limit(limit)
        .subquery("newest")
    )


def _with_outcomes(newest: FromClause) -> FromClause:
    return newest.outerjoin(outcomes, _same(newest))


def _same(newest: FromClause) -> ColumnElement[bool]:
    o = outcomes.c
    return and_(o.decided_us == newest.c.at_us, o.decision_id == newest.c.id)


def _count(condition: ColumnElement[bool]) -> Any:
    return func.sum(case((condition, 1), else_=0))


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
