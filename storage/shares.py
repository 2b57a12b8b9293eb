"""How the requests of a stretch of time fared: by tenant, model and nodes.

From the roll-ups where they are up to date, else from the rows; so all of the stretch is counted,
as of now. Rows are read at most so many, the newest, so that a store whose roll-ups are behind
costs no more than a busy minute; the answer says whether it is whole, and how far back it reaches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    select,
)

from core.domain import OutcomeKind
from core.errors import BadRequest
from core.ports import RequestShare, RequestShares
from storage import share_groups as sg
from storage.models import decisions, ends, outcomes
from storage.series import Stretch, cover
from storage.share_groups import COUNTS, KEYS, Groups
from storage.summary_models import LEVELS_S, SHARES, horizons, share_rollups
from storage.types import from_micros, to_micros

LIMIT_MAX = 200_000
ROWS_MAX = 50_000
"""Decisions that are read one by one where no limit is asked for."""
PAIRS_MAX = 500
OWNERS_MAX = 2_000
_NOT_FAILED = (OutcomeKind.OK.value, OutcomeKind.CLIENT_ABORT.value)
_WHOLE_US = 1 << 62
"""Length of one bucket for everything."""
Found = dict[int, Groups]
"""Groups by number of the bucket."""


def shares(
    connection: Connection,
    start: datetime,
    end: datetime,
    limit: int | None = None,
    *,
    by_node: bool = True,
) -> RequestShares:
    """The decisions of [start, end) by tenant and model, the largest groups first.

    With `limit` the newest so many of them, from the rows. With `by_node` by nodes too. A fleet
    has more pairs of nodes than anybody reads: what is not among the `PAIRS_MAX` largest groups
    is added up by tenant and model, so that sums stay sums of everything.
    """
    if limit is not None and not 1 <= limit <= LIMIT_MAX:
        raise BadRequest(f"must be in 1..{LIMIT_MAX}", field="limit")
    lo_us, hi_us = to_micros(start), to_micros(end)
    if limit is None:
        stretches = _stretches(connection, lo_us, hi_us)
    else:
        stretches = [Stretch(None, lo_us, hi_us)]
    parts, complete = _read(connection, stretches, limit or ROWS_MAX)
    found = sg.merged(parts)
    return RequestShares(
        groups=tuple(_by_node(found) if by_node else _owners(found)),
        decisions=found.decisions,
        covered_from=from_micros(found.oldest_us) if found.decisions else None,
        complete=complete,
    )


def from_rows(
    connection: Connection, lo_us: int, hi_us: int, step_us: int, limit: int | None = None
) -> Found:
    """Groups of the decisions in [lo, hi), of the newest `limit` of them, by bucket."""
    asked = {"lo_us": lo_us, "hi_us": hi_us} | ({} if limit is None else {"limit": limit})
    statement = _statement(step_us, limited=limit is not None)
    rows: dict[int, list[Any]] = defaultdict(list)
    oldest_us: dict[int, int] = {}
    for number, at_us, *row in connection.execute(statement, asked).all():
        rows[number].append(row)
        oldest_us[number] = min(at_us, oldest_us.get(number, at_us))
    return {number: sg.grouped(found, oldest_us[number]) for number, found in rows.items()}


def from_rollups(
    connection: Connection, level_s: int, lo_us: int, hi_us: int, step_us: int
) -> Found:
    """Groups of the roll-ups of one level that start in [lo, hi), by bucket."""
    r = share_rollups.c
    statement = select(r.start_us, r.oldest_us, r.data).order_by(r.start_us)
    statement = statement.where(r.level_s == level_s, r.start_us >= lo_us, r.start_us < hi_us)
    rows = connection.execute(statement).all()
    return {
        number: sg.merged(sg.unpacked(data, oldest_us) for _, oldest_us, data in found)
        for number, found in groupby(rows, key=lambda row: row[0] // step_us)
    }


def _stretches(connection: Connection, lo_us: int, hi_us: int) -> list[Stretch]:
    """Stretches that make up [lo, hi); what is older than the roll-ups comes from the rows."""
    since = select(horizons.c.before_us).where(horizons.c.name == SHARES)
    from_us = min(max(int(connection.scalar(since) or 0), lo_us), max(hi_us, lo_us))
    covered = cover(connection, from_us, hi_us, LEVELS_S)
    return [Stretch(None, lo_us, from_us), *covered] if lo_us < from_us else covered


def _read(
    connection: Connection, stretches: list[Stretch], rows_max: int
) -> tuple[list[Groups], bool]:
    """The groups of the stretches, the newest first, until `rows_max` rows were read; whether
    that was all."""
    parts: list[Groups] = []
    for level_s, lo_us, hi_us in reversed(stretches):
        if level_s is not None:
            parts += from_rollups(connection, level_s, lo_us, hi_us, _WHOLE_US).values()
            continue
        found = list(from_rows(connection, lo_us, hi_us, _WHOLE_US, rows_max).values())
        parts += found
        read = sum(groups.decisions for groups in found)
        if read == rows_max and _more(connection, lo_us, hi_us, read):
            return parts, False
        rows_max -= read
    return parts, True


def _more(connection: Connection, lo_us: int, hi_us: int, read: int) -> bool:
    """Whether there are decisions behind the newest `read` of [lo, hi)."""
    at_us = decisions.c.at_us
    statement = select(at_us).where(at_us >= lo_us, at_us < hi_us).order_by(at_us.desc())
    return connection.scalar(statement.offset(read).limit(1)) is not None


def _by_node(found: Groups) -> list[RequestShare]:
    """The largest groups, then what is left of the largest owners."""
    groups = [_share(found, row) for row in sg.capped(found, PAIRS_MAX).ranked()]
    left = {(g.tenant, g.model): g for g in groups if g.others}
    owners = ((g.tenant, g.model) for g in _owners(found))
    listed = [g for g in groups if not g.others]
    return listed + [left[owner] for owner in owners if owner in left]


def _owners(found: Groups) -> list[RequestShare]:
    owners = sg.by_owner(found)
    return [_share(owners, row) for row in owners.ranked()[:OWNERS_MAX]]


def _share(found: Groups, row: sg.Whole) -> RequestShare:
    tenant, model, prefill, decode = found.names(row)
    counts = dict(zip(COUNTS, row[sg.DECISIONS :].tolist(), strict=True))
    return RequestShare(
        tenant=tenant,
        model=model,
        prefill_node=prefill,
        decode_node=decode,
        others=bool(row[sg.OTHERS]),
        **counts,
    )


@cache
def _statement(step_us: int, *, limited: bool) -> Select[Any]:
    """By bucket and group: the oldest time and `COUNTS`. Made once, since that takes as long as
    reading ten seconds."""
    newest = _newest(limited=limited)
    # Written into the statement: databases must see the same expression in SELECT and GROUP BY.
    bucket = (newest.c.at_us // literal(step_us, literal_execute=True)).label("bucket")
    keys = [newest.c[name] for name in KEYS]
    sums = [column.label(name) for name, column in _sums(newest).items()]
    statement = select(bucket, func.min(newest.c.at_us), *keys, *sums)
    same = ends(outcomes.c, newest.c.at_us, newest.c.id)
    return statement.select_from(newest.outerjoin(outcomes, same)).group_by(bucket, *keys)


def _sums(newest: FromClause) -> Mapping[str, ColumnElement[Any]]:
    """What is added up of each group, in the order of `COUNTS`."""
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
    }


def _newest(*, limited: bool) -> FromClause:
    d = decisions.c
    names = ("id", "at_us", "status", "prompt_tokens", "match_tokens", *KEYS)
    within = (d.at_us >= bindparam("lo_us"), d.at_us < bindparam("hi_us"))
    chosen = select(*(d[name] for name in names)).where(*within)
    if limited:
        chosen = chosen.order_by(d.at_us.desc()).limit(bindparam("limit"))
    return chosen.subquery("newest")


def _count(condition: ColumnElement[bool]) -> Any:
    return func.sum(case((condition, 1), else_=0))
