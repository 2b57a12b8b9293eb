"""Which index a page of decisions is read along, and what further indexes say of its entries.

How it works. One index is walked in time order: the one that is likely to leave the fewest rows.
Conditions on its further columns are checked inside it. What another index decides (a tenant or a
policy of a failed request, a node that only decoded) is asked of that index by the entry's time,
before any row is looked up: a probe, of about a microsecond. A probe may say yes of another
decision of the same microsecond, so the rows it leaves are checked once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Join, and_, func, literal, or_, select, true
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from core.domain import OutcomeKind
from core.ports import DecisionQuery
from storage.models import PREVAILING, decisions, ends, outcomes

PREFIX_MIN = 8
"""Shorter texts are compared with whole ids only: too many ids would begin with them."""
_ENTRY = outcomes.alias("entry")
"""Outcomes as the partial indexes hold them: walked without looking up their rows."""
_OTHER = decisions.alias("other")
"""Decisions as an index that is probed holds them."""
_AS_ASKED = outcomes.alias("as_asked")
_HIGH = "\U0010ffff"
RARE_KINDS = tuple(kind.value for kind in OutcomeKind if kind is not OutcomeKind.OK)
"""Ends that have a partial index."""
_Columns = ReadOnlyColumnCollection[str, Any]
_Condition = ColumnElement[bool]
PLACED = decisions.outerjoin(outcomes, ends(outcomes.c, decisions.c.at_us, decisions.c.id))
ENDED = _ENTRY.join(decisions, ends(_ENTRY.c, decisions.c.at_us, decisions.c.id)).join(
    outcomes, ends(outcomes.c, _ENTRY.c.decided_us, _ENTRY.c.decision_id)
)


class Branch(NamedTuple):
    """Rows that one index finds in time order: where from, their time and key, which they are."""

    source: Join
    at_us: ColumnElement[int]
    key: ColumnElement[str]
    rows: _Condition


class Walk(NamedTuple):
    """How a page is read: `branches` share no row; a decision fits if it fits one of them."""

    branches: tuple[Branch, ...]
    decided: frozenset[str]
    """Fields of the query that need no further check."""
    entries: Branch | None = None
    """What is walked, where that is more than the rows of the first branch."""
    lists_policy: bool = False
    """Whether the index is one of policies: it holds no entry of one that never occurs."""


def walk_of(query: DecisionQuery, *, either_in_index: bool) -> Walk:
    """The index that is likely to leave the fewest rows to check.

    either_in_index: whether the database checks an OR inside an index (SQLite), or looks up the
    row for it (Postgres).
    """
    return _of_outcomes(query) or _of_decisions(query, either_in_index)


def of_node(node: str) -> _Condition:
    """Prefilled or decoded there, as a check of a row."""
    d = decisions.c
    # Hidden from the planners' eyes: another index is not to be walked instead of the chosen one.
    prefill, decode = func.coalesce(d.prefill_node, ""), func.coalesce(d.decode_node, "")
    return or_(prefill == node, decode == node)


def below(d: _Columns) -> _Condition:
    """Placed where less than the best match was held."""
    return and_(d.match_tokens < d.reachable_tokens, d.status.is_(None))


def starts(column: ColumnElement[str], prefix: str) -> _Condition:
    """As LIKE 'prefix%', but along the index, and with no character special."""
    return and_(column >= prefix, column < prefix + _HIGH)


# -- along outcomes --------------------------------------------------------------------------------


def _of_outcomes(query: DecisionQuery) -> Walk | None:
    """Along those that failed, or missed a limit, where the query asks for them.

    A tenant's decisions of one policy or node are fewer still.
    """
    o, found = _ENTRY.c, _asked_outcomes(query, _ENTRY.c)
    if not found or (query.tenant and (query.policy is not None or query.node is not None)):
        return None
    chosen, *also = found
    probes = [*(_probe_outcome(o.decided_us, query) for _ in also), *_probes(query)]
    decided = frozenset({"kind" if query.kind in RARE_KINDS else "slo_missed"})
    if query.node is None:
        branches: tuple[Branch, ...] = (_ended(chosen, *probes),)
    else:
        # The index knows the prefill node, old rows apart that came without it; who only decoded
        # there is found by the decode nodes' index.
        d, node = decisions.c, query.node
        here = [func.coalesce(o.prefill_node, node) == node, *probes]
        here.append(func.coalesce(d.prefill_node, "") == node)
        apart = [_apart(d, node), _probe_outcome(d.at_us, query), *_checks(query)]
        if query.policy is not None:
            apart.append(d.policy == query.policy)
        branches = (_ended(chosen, *here), _placed(*apart))
        decided |= {"node"}
    return Walk(branches, decided, _ended(chosen) if len(branches) > 1 or probes else None)


def _asked_outcomes(query: DecisionQuery, o: _Columns) -> list[_Condition]:
    """What is asked of outcomes and has a partial index, written as in that index's condition, so
    that the databases recognise it."""
    found = []
    if query.kind in RARE_KINDS:
        found.append(and_(o.kind == query.kind, o.kind != _inline("ok")))
    if query.slo_missed:
        found.append(o.slo_missed != _inline(""))
    return found


def _checks(query: DecisionQuery) -> Iterator[_Condition]:
    """The same of the row that was looked up, because a probe goes by the time alone."""
    if query.kind in RARE_KINDS:
        yield func.coalesce(outcomes.c.kind, "") == query.kind
    if query.slo_missed:
        yield func.coalesce(outcomes.c.slo_missed, "") != ""


def _probes(query: DecisionQuery) -> Iterator[_Condition]:
    """What the decisions' indexes know of an outcome's tenant, policy and match."""
    at_us, tenant, policy = _ENTRY.c.decided_us, query.tenant, query.policy
    if tenant:
        yield _probe(at_us, lambda d: _of_tenant(d, tenant))
    elif policy not in (None, PREVAILING):
        yield _probe(at_us, lambda d: _of_policy(d, policy))
    if query.below_best_match:
        yield _probe(at_us, below)


def _probe(at_us: ColumnElement[int], condition: Callable[[_Columns], _Condition]) -> _Condition:
    """Whether a decision of that microsecond meets a condition that an index decides."""
    found = select(literal(1)).where(_OTHER.c.at_us == at_us, condition(_OTHER.c))
    # With an OFFSET no planner turns it into a join, which might walk the other index whole.
    return found.correlate_except(_OTHER).offset(0).exists()


def _probe_outcome(at_us: ColumnElement[int], query: DecisionQuery) -> _Condition:
    """Whether an outcome of a decision of that microsecond is as asked for."""
    *_, last = _asked_outcomes(query, _AS_ASKED.c)
    found = select(literal(1)).where(_AS_ASKED.c.decided_us == at_us, last)
    return found.correlate_except(_AS_ASKED).offset(0).exists()


def _ended(*rows: _Condition) -> Branch:
    return Branch(ENDED, _ENTRY.c.decided_us, _ENTRY.c.decision_id, and_(*rows))


# -- along decisions -------------------------------------------------------------------------------


def _of_decisions(query: DecisionQuery, either_in_index: bool) -> Walk:
    d, (rows, decided) = decisions.c, _rows(query, either_in_index)
    if "tenant" in decided:
        entries = _of_tenant(d, query.tenant or "")
    elif {"node", "policy"} <= decided:
        entries = _of_policy(d, query.policy)
    else:
        entries = rows[0]
    probes = []
    if query.below_best_match and not decided & {"below_best_match", "text", "code"}:
        probes.append(_probe(d.at_us, below))
    if "tenant" in decided and _asked_outcomes(query, outcomes.c):
        probes.append(_probe_outcome(d.at_us, query))
    several = probes or entries is not rows[0]
    return Walk(
        tuple(_placed(one, *probes) for one in rows),
        frozenset(decided),
        _placed(entries) if several else None,
        lists_policy="policy" in decided and "tenant" not in decided,
    )


def _rows(query: DecisionQuery, either_in_index: bool) -> tuple[tuple[_Condition, ...], set[str]]:
    """Conditions that one index decides, and the fields of the query they settle."""
    d, deviating = decisions.c, query.policy not in (None, PREVAILING)
    if query.text:
        return _named(query.text), {"text"}
    if query.code is not None:
        return (d.status.is_not(None),), {"code"} if query.code == "*" else set()
    if query.tenant:
        # The tenant's index knows the policy and both nodes.
        mine = _of_tenant(d, query.tenant)
        mine = mine if query.policy is None else and_(mine, d.policy == query.policy)
        return _on_node(mine, query.node, either_in_index), {"tenant", "policy", "node"}
    if query.node is not None and deviating:
        # The policy's index knows the prefill node, and the decode nodes' index the policy.
        here = and_(_of_policy(d, query.policy), d.prefill_node == query.node)
        return (here, and_(_apart(d, query.node), d.policy == query.policy)), {"node", "policy"}
    if query.node is not None:
        return (d.prefill_node == query.node, _apart(d, query.node)), {"node"}
    if deviating:
        return (_of_policy(d, query.policy),), {"policy"}
    if query.below_best_match:
        return (below(d),), {"below_best_match"}
    return (true(),), set()


def _on_node(mine: _Condition, node: str | None, either_in_index: bool) -> tuple[_Condition, ...]:
    """Those of `mine` on a node, by an index that knows both nodes."""
    d = decisions.c
    if node is None:
        return (mine,)
    if either_in_index:
        return (and_(mine, of_node(node)),)
    return (and_(mine, d.prefill_node == node), and_(mine, _apart(d, node)))


def _named(text: str) -> tuple[_Condition, ...]:
    """Decisions of that request, and those whose id begins so, each along its index."""
    d = decisions.c
    begins = starts(d.id, text) if len(text) >= PREFIX_MIN else d.id == text
    return (d.request_id == text, and_(begins, func.coalesce(d.request_id, "") != text))


def _placed(*rows: _Condition) -> Branch:
    return Branch(PLACED, decisions.c.at_us, decisions.c.id, and_(*rows))


# -- conditions as the partial indexes have them ---------------------------------------------------


def _apart(d: _Columns, node: str | None) -> _Condition:
    """Decoded there, prefilled elsewhere."""
    return and_(d.decode_node == node, d.decode_node != d.prefill_node)


def _of_policy(d: _Columns, policy: str | None) -> _Condition:
    return and_(d.policy == policy, d.policy != _inline(PREVAILING))


def _of_tenant(d: _Columns, tenant: str) -> _Condition:
    return and_(d.tenant == tenant, d.tenant != _inline(""))


def _inline(value: str) -> ColumnElement[str]:
    return literal(value, literal_execute=True)
