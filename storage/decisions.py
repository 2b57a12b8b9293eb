"""Questions about decisions: filtered pages, newest first, and one decision by its id.

A page is read along one index in time order and stops as soon as it is full; no total is counted
and nothing is skipped over by OFFSET. What the index does not decide is checked row by row, in
windows of a bounded number of rows, for a bounded time: a page may come back short, or empty,
with a cursor to go on from. Policies, revisions and models that occur seldom are found by the
roll-ups' facets, which say in which ten seconds they occur at all.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from core.domain import OutcomeKind
from core.errors import BadRequest, NotFound
from core.ports import Cursor, DecisionQuery, Page, StoredDecision
from storage.models import decisions, outcomes
from storage.rows import BOTH, BRIEF, to_stored
from storage.summary_models import FACETS, LEVELS_S, facets, summary_marks
from storage.types import from_micros, to_micros
from storage.walks import (
    ENDED,
    PLACED,
    RARE_KINDS,
    Branch,
    Walk,
    below,
    of_node,
    starts,
    walk_of,
)

LIMIT_MAX = 1_000
OPEN = "open"
"""Pseudo outcome kind: placed, and no outcome so far."""
_BUDGET_S = 0.04
"""After this time no further window is begun."""
_WINDOW_MIN, _WINDOW_MAX = 1_000, 32_000
_WINDOW_S = 0.015
"""Windows grow and shrink towards this time."""
_BUCKET_US = LEVELS_S[0] * 1_000_000
Statement = Select[*tuple[Any, ...]]
_SELECTED = {
    (source, whole): select(*(BOTH if whole else BRIEF)).select_from(source)
    for source in (PLACED, ENDED)
    for whole in (True, False)
}
"""Made once: putting so many columns into a statement takes as long as running it."""


class _Within(NamedTuple):
    """Times [lo, hi) in microseconds; None: no bound."""

    lo_us: int | None
    hi_us: int | None

    def bounds(self, at_us: ColumnElement[int]) -> Iterator[ColumnElement[bool]]:
        """As conditions; one a side, because SQLite walks an index from the first it reads."""
        if self.lo_us is not None:
            yield at_us >= self.lo_us
        if self.hi_us is not None:
            yield at_us < self.hi_us


def page(
    connection: Connection,
    query: DecisionQuery,
    before: Cursor | None,
    limit: int,
    *,
    whole: bool = True,
) -> Page:
    """Up to `limit` decisions that fit `query`, strictly older than `before`, newest first.

    Not `whole`: without candidates and exclusions, which no list shows.
    """
    _check(query, limit)
    along, wanted = walk_of(query, either_in_index=_is_sqlite(connection)), limit + 1
    rest = list(_rest(query, along.decided))
    reads = [
        (branch, _SELECTED[branch.source, whole].where(*rest, *_behind(branch, before)))
        for branch in along.branches
    ]
    within = _within(query, before)
    if not rest and along.entries is None:
        return _page(_run(connection, reads, within, wanted), limit)
    found: list[Any] = []
    ends_s = time.monotonic() + _BUDGET_S
    for window in _windows(connection, query, along, within):
        found += _run(connection, reads, window, wanted - len(found))
        if len(found) >= wanted:
            break
        lo_us = window.lo_us
        if lo_us not in (None, within.lo_us) and time.monotonic() >= ends_s:
            reached = Cursor(at=from_micros(lo_us), id="")
            return Page(tuple(to_stored(row) for row in found), reached)
    return _page(found, limit)


def by_id(connection: Connection, id: str) -> StoredDecision:
    """The decision whose id is, or starts with, `id`."""
    if not id:
        raise BadRequest("id: expected a decision id or its beginning", field="id")
    both = _SELECTED[PLACED, True].where(or_(decisions.c.id == id, starts(decisions.c.id, id)))
    found = connection.execute(both.order_by(decisions.c.id).limit(2)).all()
    if not found:
        raise NotFound(f"no decision with id {id!r}", field="id")
    if len(found) > 1 and found[0].id != id:
        raise BadRequest(f"id: {id!r} is the beginning of more than one decision's id", field="id")
    return to_stored(found[0])


def by_request(connection: Connection, request_id: str) -> list[StoredDecision]:
    """All decisions of one request, oldest first."""
    mine = _SELECTED[PLACED, True].where(decisions.c.request_id == request_id)
    rows = connection.execute(mine.order_by(decisions.c.at_us, decisions.c.id)).all()
    return [to_stored(row) for row in rows]


def _is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"


def _check(query: DecisionQuery, limit: int) -> None:
    if not 1 <= limit <= LIMIT_MAX:
        raise BadRequest(f"limit: {limit} is outside 1..{LIMIT_MAX}", field="limit")
    kinds = [kind.value for kind in OutcomeKind] + [OPEN]
    if query.kind is not None and query.kind not in kinds:
        raise BadRequest(f"kind: {query.kind!r} is not one of {', '.join(kinds)}", field="kind")


def _page(found: Sequence[Any], limit: int) -> Page:
    stored = tuple(to_stored(row) for row in found[:limit])
    if len(found) <= limit:
        return Page(stored, None)
    last = stored[-1].decision
    return Page(stored, Cursor(at=last.at, id=last.id))


def _run(
    connection: Connection, reads: Sequence[tuple[Branch, Statement]], within: _Within, wanted: int
) -> list[Any]:
    """The newest `wanted` rows of all branches; none is read back further than matters."""
    found: list[Any] = []
    for branch, base in reads:
        bounded = base.where(*within.bounds(branch.at_us), branch.rows)
        bounded = bounded.order_by(branch.at_us.desc(), branch.key.desc()).limit(wanted)
        more = connection.execute(bounded).all()
        merged = heapq.merge(found, more, key=lambda row: (row.at_us, row.id), reverse=True)
        found = list(islice(merged, wanted))
        if len(found) == wanted:
            within = within._replace(lo_us=found[-1].at_us)
    return found


def _within(query: DecisionQuery, before: Cursor | None) -> _Within:
    """The times in which the page lies."""
    hi_us = None if query.end is None else to_micros(query.end)
    if before is not None:
        hi_us = min(to_micros(before.at) + 1, hi_us if hi_us is not None else _HIGHEST)
    return _Within(None if query.start is None else to_micros(query.start), hi_us)


def _behind(branch: Branch, before: Cursor | None) -> Iterator[ColumnElement[bool]]:
    """Among rows of the cursor's time, those behind it; `_within` sees to the others."""
    if before is not None:
        yield or_(branch.at_us < to_micros(before.at), branch.key < before.id)


def _rest(query: DecisionQuery, decided: frozenset[str]) -> Iterator[ColumnElement[bool]]:
    """Conditions of the query that the index does not decide."""
    for name, condition in _CONDITIONS.items():
        value = getattr(query, name)
        asked = bool(value) if name in _ASKED_IF_SET else value is not None
        if asked and name not in decided:
            yield condition(value)


def _starts_or_request(text: str) -> ColumnElement[bool]:
    return or_(starts(decisions.c.id, text), decisions.c.request_id == text)


def _code(code: str | None) -> ColumnElement[bool]:
    placed = decisions.c.status.is_not(None)
    return placed if code == "*" else and_(placed, decisions.c.code == code)


def _kind(kind: str | None) -> ColumnElement[bool]:
    if kind == OPEN:
        return and_(outcomes.c.decision_id.is_(None), decisions.c.status.is_(None))
    if kind == OutcomeKind.OK:
        # Nearly all are. Said like this Postgres expects so, and stops when the page is full.
        return func.coalesce(outcomes.c.kind, "").not_in(("", *RARE_KINDS))
    return outcomes.c.kind == kind


_CONDITIONS: Mapping[str, Callable[[Any], ColumnElement[bool]]] = {
    "policy": lambda policy: decisions.c.policy == policy,
    "model": lambda model: decisions.c.model == model,
    "revision": lambda revision: decisions.c.revision == revision,
    "tenant": lambda tenant: func.coalesce(decisions.c.tenant, "") == tenant,
    "node": of_node,
    "code": _code,
    "kind": _kind,
    "slo_missed": lambda _: outcomes.c.slo_missed != "",
    "below_best_match": lambda _: below(decisions.c),
    "text": _starts_or_request,
}
"""What a field of the query asks of a row."""
_ASKED_IF_SET = frozenset({"slo_missed", "below_best_match", "text"})
"""Fields whose empty value asks for nothing; the others do so by None alone."""


def _windows(
    connection: Connection, query: DecisionQuery, along: Walk, within: _Within
) -> Iterator[_Within]:
    """Stretches of these times, newest first, of a bounded number of the index's entries each.

    Stretches in which no row can fit are left out.
    """
    listed = {name: str(value) for name in FACETS if (value := getattr(query, name)) is not None}
    if along.lists_policy:
        listed.pop("policy", None)
    lo_us, hi_us = within
    walked = along.branches[0] if along.entries is None else along.entries
    # Where indexes decide nearly all, few rows are looked up, so windows may be larger.
    rows, least = _WINDOW_MIN, _WINDOW_MIN
    if along.entries is not None:
        rows, least = 8 * _WINDOW_MIN, 4 * _WINDOW_MIN
    while True:
        if listed:
            occurs_us = _occurs_before(connection, listed, hi_us)
            if occurs_us is None or (lo_us is not None and occurs_us <= lo_us):
                return
            hi_us = occurs_us
        edge = select(walked.at_us).where(*_Within(lo_us, hi_us).bounds(walked.at_us), walked.rows)
        edge = edge.order_by(walked.at_us.desc()).limit(1).offset(rows - 1)
        edge_us = connection.scalar(edge)
        began_s = time.monotonic()
        yield _Within(lo_us if edge_us is None else edge_us, hi_us)
        if edge_us is None:
            return
        hi_us = edge_us
        wanted = rows * _WINDOW_S / max(time.monotonic() - began_s, 1e-3)
        rows = round(max(least, min(wanted, 4 * rows, _WINDOW_MAX)))


_HIGHEST = 1 << 62


def _occurs_before(connection: Connection, listed: dict[str, str], hi_us: int | None) -> int | None:
    """The newest time before `hi_us` up to which all the listed values may occur; None: never."""
    hi_us = _HIGHEST if hi_us is None else hi_us
    m, f = summary_marks.c, facets.c
    unknown = select(func.max(m.start_us)).where(m.level_s == LEVELS_S[0], m.start_us < hi_us)
    unknown_us = connection.scalar(unknown)
    newest = [
        connection.scalar(
            select(func.max(f.start_us)).where(f.kind == kind, f.value == value, f.start_us < hi_us)
        )
        for kind, value in listed.items()
    ]
    known = [start_us for start_us in newest if start_us is not None]
    if len(known) < len(newest):
        start_us = unknown_us
    else:
        start_us = max(min(known), unknown_us if unknown_us is not None else min(known))
    return None if start_us is None else min(hi_us, start_us + _BUCKET_US)
