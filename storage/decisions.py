"""Questions about decisions: filtered pages, newest first, and one decision by its id.

A page is read along an index in time order and stops as soon as it is full, so its cost does not
depend on how much is stored; no total is counted and nothing is skipped over by OFFSET. Filters
on rare outcomes walk the partial indexes of `outcomes` instead of `decisions`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, literal, or_, select

from core.domain import OutcomeKind
from core.errors import BadRequest, NotFound
from core.ports import Cursor, DecisionQuery, Page, StoredDecision
from storage.models import decisions, outcomes
from storage.rows import BOTH, to_stored
from storage.types import to_micros

LIMIT_MAX = 1_000
OPEN = "open"
"""Pseudo outcome kind: placed, and no outcome so far."""
_HIGH = "\U0010ffff"
_RARE_KINDS = tuple(kind.value for kind in OutcomeKind if kind is not OutcomeKind.OK)
JOINED = and_(outcomes.c.decided_us == decisions.c.at_us, outcomes.c.decision_id == decisions.c.id)


def page(connection: Connection, query: DecisionQuery, before: Cursor | None, limit: int) -> Page:
    """Up to `limit` decisions that fit `query`, strictly older than `before`, newest first."""
    _check(query, limit)
    wanted = limit + 1
    branches = [
        connection.execute(statement.limit(wanted)).all() for statement in _branches(query, before)
    ]
    merged = heapq.merge(*branches, key=lambda row: (row.at_us, row.id), reverse=True)
    found = list(islice(merged, wanted))
    stored = tuple(to_stored(row) for row in found[:limit])
    if len(found) <= limit:
        return Page(stored, None)
    last = stored[-1].decision
    return Page(stored, Cursor(at=last.at, id=last.id))


def by_id(connection: Connection, id: str) -> StoredDecision:
    """The decision whose id is, or starts with, `id`."""
    if not id:
        raise BadRequest("id: expected a decision id or its beginning", field="id")
    both = _both().where(or_(decisions.c.id == id, _starts(decisions.c.id, id)))
    found = connection.execute(both.order_by(decisions.c.id).limit(2)).all()
    if not found:
        raise NotFound(f"no decision with id {id!r}", field="id")
    if len(found) > 1 and found[0].id != id:
        raise BadRequest(f"id: {id!r} is the beginning of more than one decision's id", field="id")
    return to_stored(found[0])


def by_request(connection: Connection, request_id: str) -> list[StoredDecision]:
    """All decisions of one request, oldest first."""
    mine = _both().where(decisions.c.request_id == request_id)
    rows = connection.execute(mine.order_by(decisions.c.at_us, decisions.c.id)).all()
    return [to_stored(row) for row in rows]


def _check(query: DecisionQuery, limit: int) -> None:
    if not 1 <= limit <= LIMIT_MAX:
        raise BadRequest(f"limit: {limit} is outside 1..{LIMIT_MAX}", field="limit")
    kinds = [kind.value for kind in OutcomeKind] + [OPEN]
    if query.kind is not None and query.kind not in kinds:
        raise BadRequest(f"kind: {query.kind!r} is not one of {', '.join(kinds)}", field="kind")


def _both() -> Select[*tuple[Any, ...]]:
    """Decisions beside their outcomes, if there are any."""
    return select(*BOTH).select_from(decisions.outerjoin(outcomes, JOINED))


def _branches(query: DecisionQuery, before: Cursor | None) -> Iterator[Select[*tuple[Any, ...]]]:
    """One statement, or two that share no row, each along one index."""
    rare = query.slo_missed or query.kind in _RARE_KINDS
    statement = _from_outcomes(query, before) if rare else _from_decisions(query, before)
    statement = statement.where(*_conditions(query))
    if query.node is None:
        yield statement
        return
    prefill, decode = decisions.c.prefill_node, decisions.c.decode_node
    if rare:
        yield statement.where(or_(prefill == query.node, decode == query.node))
        return
    yield statement.where(prefill == query.node)
    yield statement.where(decode == query.node, decode != prefill)


def _from_decisions(query: DecisionQuery, before: Cursor | None) -> Select[*tuple[Any, ...]]:
    at_us, key = decisions.c.at_us, decisions.c.id
    statement = _both().where(*_range(at_us, key, query, before))
    if query.kind == OPEN:
        statement = statement.where(outcomes.c.decision_id.is_(None), decisions.c.status.is_(None))
    elif query.kind is not None:
        statement = statement.where(outcomes.c.kind == query.kind)
    return statement.order_by(at_us.desc(), key.desc())


def _from_outcomes(query: DecisionQuery, before: Cursor | None) -> Select[*tuple[Any, ...]]:
    at_us, key = outcomes.c.decided_us, outcomes.c.decision_id
    statement = select(*BOTH).select_from(outcomes.join(decisions, JOINED))
    statement = statement.where(*_range(at_us, key, query, before))
    # Written as in the partial indexes' own conditions, so that the databases recognise them.
    if query.slo_missed:
        statement = statement.where(outcomes.c.slo_missed != _inline(""))
    if query.kind is not None:
        statement = statement.where(outcomes.c.kind == query.kind)
    if query.kind in _RARE_KINDS:
        statement = statement.where(outcomes.c.kind != _inline("ok"))
    return statement.order_by(at_us.desc(), key.desc())


def _range(
    at_us: ColumnElement[int], key: ColumnElement[str], query: DecisionQuery, before: Cursor | None
) -> Iterator[ColumnElement[bool]]:
    if query.start is not None:
        yield at_us >= to_micros(query.start)
    if query.end is not None:
        yield at_us < to_micros(query.end)
    if before is not None:
        edge = to_micros(before.at)
        yield at_us <= edge
        yield or_(at_us < edge, key < before.id)


def _conditions(query: DecisionQuery) -> Iterator[ColumnElement[bool]]:
    """Filters on the decision's own columns."""
    d = decisions.c
    plain = {
        d.policy: query.policy,
        d.model: query.model,
        d.tenant: query.tenant,
        d.revision: query.revision,
    }
    for column, value in plain.items():
        if value is not None:
            yield column == value
    if query.code is not None:
        yield d.status.is_not(None)
        if query.code != "*":
            yield d.code == query.code
    if query.below_best_match:
        yield and_(d.match_tokens < d.reachable_tokens, d.status.is_(None))
    if query.text:
        yield or_(_starts(d.id, query.text), d.request_id == query.text)


def _starts(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    """As LIKE 'prefix%', but along the index, and with no character special."""
    return and_(column >= prefix, column < prefix + _HIGH)


def _inline(value: str) -> ColumnElement[str]:
    return literal(value, literal_execute=True)
