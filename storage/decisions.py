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
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Join,
    Select,
    and_,
    func,
    literal,
    or_,
    select,
    true,
)

from core.domain import OutcomeKind
from core.errors import BadRequest, NotFound
from core.ports import Cursor, DecisionQuery, Page, StoredDecision
from storage.models import decisions, outcomes
from storage.rows import BOTH, to_stored
from storage.summary_models import FACETS, LEVELS_S, facets, summary_marks
from storage.types import from_micros, to_micros

LIMIT_MAX = 1_000
PREFIX_MIN = 8
"""Shorter texts are compared with whole ids only: too many ids would begin with them."""
OPEN = "open"
"""Pseudo outcome kind: placed, and no outcome so far."""
_HIGH = "\U0010ffff"
_RARE_KINDS = tuple(kind.value for kind in OutcomeKind if kind is not OutcomeKind.OK)
_BUDGET_S = 0.04
"""After this time no further window is begun."""
_WINDOW_MIN, _WINDOW_MAX = 2_000, 32_000
_WINDOW_S = 0.015
"""Windows grow and shrink towards this time."""
_BUCKET_US = LEVELS_S[0] * 1_000_000
JOINED = and_(outcomes.c.decided_us == decisions.c.at_us, outcomes.c.decision_id == decisions.c.id)
Statement = Select[*tuple[Any, ...]]
_PLACED = decisions.outerjoin(outcomes, JOINED)
_ENDED = outcomes.join(decisions, JOINED)
_SELECTED = {source: select(*BOTH).select_from(source) for source in (_PLACED, _ENDED)}
"""Made once: putting so many columns into a statement takes as long as running it."""


class _Along(NamedTuple):
    """The index a page is read along: where from, its time and key, what it decides by itself.

    `branches` share no row; a decision fits if it fits one of them.
    """

    source: Join
    at_us: ColumnElement[int]
    key: ColumnElement[str]
    branches: tuple[ColumnElement[bool], ...]
    decided: frozenset[str]
    """Fields of the query that need no further check."""


def page(connection: Connection, query: DecisionQuery, before: Cursor | None, limit: int) -> Page:
    """Up to `limit` decisions that fit `query`, strictly older than `before`, newest first."""
    _check(query, limit)
    along, wanted = _along(query), limit + 1
    rest = list(_rest(query, along.decided))
    base = _statement(query, along, before).where(*(condition for _, condition in rest))
    if not rest:
        return _page(_run(connection, base, along, wanted), limit)
    found: list[Any] = []
    ends_s = time.monotonic() + _BUDGET_S
    for lo_us, hi_us in _windows(connection, query, along, before):
        window = base.where(*_between(along.at_us, lo_us, hi_us))
        found += _run(connection, window, along, wanted - len(found))
        if len(found) >= wanted:
            break
        if lo_us is not None and time.monotonic() >= ends_s:
            reached = Cursor(at=from_micros(lo_us), id="")
            return Page(tuple(to_stored(row) for row in found), reached)
    return _page(found, limit)


def by_id(connection: Connection, id: str) -> StoredDecision:
    """The decision whose id is, or starts with, `id`."""
    if not id:
        raise BadRequest("id: expected a decision id or its beginning", field="id")
    both = _SELECTED[_PLACED].where(or_(decisions.c.id == id, _starts(decisions.c.id, id)))
    found = connection.execute(both.order_by(decisions.c.id).limit(2)).all()
    if not found:
        raise NotFound(f"no decision with id {id!r}", field="id")
    if len(found) > 1 and found[0].id != id:
        raise BadRequest(f"id: {id!r} is the beginning of more than one decision's id", field="id")
    return to_stored(found[0])


def by_request(connection: Connection, request_id: str) -> list[StoredDecision]:
    """All decisions of one request, oldest first."""
    mine = _SELECTED[_PLACED].where(decisions.c.request_id == request_id)
    rows = connection.execute(mine.order_by(decisions.c.at_us, decisions.c.id)).all()
    return [to_stored(row) for row in rows]


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


def _run(connection: Connection, statement: Statement, along: _Along, wanted: int) -> list[Any]:
    """The newest `wanted` rows of all branches."""
    newest = statement.order_by(along.at_us.desc(), along.key.desc()).limit(wanted)
    found = [connection.execute(newest.where(branch)).all() for branch in along.branches]
    merged = heapq.merge(*found, key=lambda row: (row.at_us, row.id), reverse=True)
    return list(islice(merged, wanted))


def _along(query: DecisionQuery) -> _Along:
    """The index that is likely to leave the fewest rows to check."""
    d, o = decisions.c, outcomes.c
    # Written as in the partial indexes' own conditions, so that the databases recognise them.
    if query.kind in _RARE_KINDS:
        failed = and_(o.kind == query.kind, o.kind != _inline("ok"))
        return _Along(_ENDED, o.decided_us, o.decision_id, (failed,), frozenset({"kind"}))
    if query.slo_missed:
        missed = o.slo_missed != _inline("")
        return _Along(_ENDED, o.decided_us, o.decision_id, (missed,), frozenset({"slo_missed"}))
    if query.text:
        return _Along(_PLACED, d.at_us, d.id, _named(query.text), frozenset({"text"}))
    if query.code is not None:
        decided = frozenset({"code"} if query.code == "*" else ())
        return _Along(_PLACED, d.at_us, d.id, (d.status.is_not(None),), decided)
    if query.tenant:
        tenant = and_(d.tenant == query.tenant, d.tenant != _inline(""))
        return _Along(_PLACED, d.at_us, d.id, (tenant,), frozenset({"tenant"}))
    if query.node is not None:
        apart = and_(d.decode_node == query.node, d.decode_node != d.prefill_node)
        branches = (d.prefill_node == query.node, apart)
        return _Along(_PLACED, d.at_us, d.id, branches, frozenset({"node"}))
    if query.below_best_match:
        below = and_(d.match_tokens < d.reachable_tokens, d.status.is_(None))
        return _Along(_PLACED, d.at_us, d.id, (below,), frozenset({"below_best_match"}))
    return _Along(_PLACED, d.at_us, d.id, (true(),), frozenset())


def _statement(query: DecisionQuery, along: _Along, before: Cursor | None) -> Statement:
    statement = _SELECTED[along.source]
    start_us = None if query.start is None else to_micros(query.start)
    end_us = None if query.end is None else to_micros(query.end)
    statement = statement.where(*_between(along.at_us, start_us, end_us))
    if before is None:
        return statement
    edge_us = to_micros(before.at)
    older = or_(along.at_us < edge_us, along.key < before.id)
    return statement.where(along.at_us <= edge_us, older)


def _rest(
    query: DecisionQuery, decided: frozenset[str]
) -> Iterator[tuple[str, ColumnElement[bool]]]:
    """Filters that the index does not decide, by the query's fields."""
    d, o = decisions.c, outcomes.c
    # Hidden from the planners' eyes: another index is not to be walked instead of the chosen one.
    prefill, decode = func.coalesce(d.prefill_node, ""), func.coalesce(d.decode_node, "")
    tests: dict[str, tuple[bool, ColumnElement[bool]]] = {
        "policy": (query.policy is not None, d.policy == query.policy),
        "model": (query.model is not None, d.model == query.model),
        "revision": (query.revision is not None, d.revision == query.revision),
        "tenant": (query.tenant is not None, func.coalesce(d.tenant, "") == query.tenant),
        "node": (query.node is not None, or_(prefill == query.node, decode == query.node)),
        "code": (query.code is not None, _code(query.code)),
        "kind": (query.kind is not None, _kind(query.kind)),
        "slo_missed": (query.slo_missed, o.slo_missed != ""),
        "below_best_match": (
            query.below_best_match,
            and_(d.match_tokens < d.reachable_tokens, d.status.is_(None)),
        ),
        "text": (
            bool(query.text),
            or_(_starts(d.id, query.text or ""), d.request_id == query.text),
        ),
    }
    yield from (
        (name, condition)
        for name, (asked, condition) in tests.items()
        if asked and name not in decided
    )


def _named(text: str) -> tuple[ColumnElement[bool], ...]:
    """Decisions of that request, and those whose id begins so, each along its index."""
    d = decisions.c
    begins = _starts(d.id, text) if len(text) >= PREFIX_MIN else d.id == text
    return (d.request_id == text, and_(begins, func.coalesce(d.request_id, "") != text))


def _code(code: str | None) -> ColumnElement[bool]:
    placed = decisions.c.status.is_not(None)
    return placed if code == "*" else and_(placed, decisions.c.code == code)


def _kind(kind: str | None) -> ColumnElement[bool]:
    if kind == OPEN:
        return and_(outcomes.c.decision_id.is_(None), decisions.c.status.is_(None))
    return outcomes.c.kind == kind


def _windows(
    connection: Connection, query: DecisionQuery, along: _Along, before: Cursor | None
) -> Iterator[tuple[int | None, int | None]]:
    """Stretches of time [lo, hi), newest first, of a bounded number of the index's rows each.

    None stands for no bound. Stretches in which no row can fit are left out.
    """
    listed = {name: str(value) for name in FACETS if (value := getattr(query, name)) is not None}
    hi_us = None if query.end is None else to_micros(query.end)
    if before is not None:
        hi_us = min(to_micros(before.at) + 1, hi_us if hi_us is not None else _HIGHEST)
    lo_us = None if query.start is None else to_micros(query.start)
    rows = _WINDOW_MIN
    while True:
        if listed:
            occurs_us = _occurs_before(connection, listed, hi_us)
            if occurs_us is None or (lo_us is not None and occurs_us <= lo_us):
                return
            hi_us = occurs_us
        inside = _between(along.at_us, lo_us, hi_us)
        edge = select(along.at_us).where(*inside, along.branches[0])
        edge = edge.order_by(along.at_us.desc()).limit(1).offset(rows - 1)
        edge_us = connection.scalar(edge)
        began_s = time.monotonic()
        yield edge_us, hi_us
        if edge_us is None:
            return
        hi_us = edge_us
        wanted = rows * _WINDOW_S / max(time.monotonic() - began_s, 1e-3)
        rows = round(max(_WINDOW_MIN / 4, min(wanted, 4 * rows, _WINDOW_MAX)))


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


def _between(
    at_us: ColumnElement[int], lo_us: int | None, hi_us: int | None
) -> Iterator[ColumnElement[bool]]:
    if lo_us is not None:
        yield at_us >= lo_us
    if hi_us is not None:
        yield at_us < hi_us


def _starts(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    """As LIKE 'prefix%', but along the index, and with no character special."""
    return and_(column >= prefix, column < prefix + _HIGH)


def _inline(value: str) -> ColumnElement[str]:
    return literal(value, literal_execute=True)
