"""The filters of the Decisions page: widgets whose values stand in the URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from core import wire
from dashboard.decisions.models import OUTCOMES
from dashboard.overview.models import not_used
from dashboard.parts.components import notice
from dashboard.parts.window import Window

ANY = "any"
"""First choice of each select box. Choices are their own labels: the address carries labels."""
PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class Filters:
    """What the reader asked for; empty means any."""

    node: str = ANY
    outcome: str = ANY
    policy: str = ANY
    tenant: str = ""
    model: str = ANY
    revision: str = ""
    q: str = ""
    below_best: bool = False
    slo_missed: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing is filtered out."""
        return self == Filters()


def query_of(f: Filters, *, window: Window, cursor: str | None) -> wire.DecisionQuery:
    """The API's query. A search for an id looks through everything, not only the range."""
    outcome: Any = _given(f.outcome)
    return wire.DecisionQuery(
        since=None if f.q else window.start,
        until=None if f.q or window.span is not None else window.end,
        node=_given(f.node),
        outcome=outcome,
        policy=_given(f.policy),
        tenant=f.tenant or None,
        model=_given(f.model),
        revision=_number(f.revision),
        id=f.q or None,
        below_best=f.below_best,
        slo_missed=f.slo_missed,
        limit=PAGE_SIZE,
        cursor=cursor,
    )


def _given(choice: str) -> str | None:
    return None if choice == ANY else choice


def filter_bar(state: wire.FleetState | None) -> Filters:
    """Draw the filters and read them."""
    nodes = [n.id for n in state.nodes] if state else []
    policies = [state.policy] if state else []
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Decision or request id", key="q", bind="query-params", width=210,
            placeholder="id or its beginning",
        )  # fmt: skip
        node = _choice("Node", "node", nodes, width=150)
        outcome = _choice("Outcome", "outcome", list(OUTCOMES), width=160)
        policy = _choice("Policy", "policy", policies, width=170)
        model = _choice("Model", "model", list(state.models) if state else [], width=150)
        tenant = st.text_input("Tenant", key="tenant", bind="query-params", width=120)
        revision = st.text_input("Revision", key="rev", bind="query-params", width=90)
        below = st.toggle("Below best match", key="below_best", bind="query-params")
        missed = st.toggle("Limit missed", key="slo_missed", bind="query-params")
        found = Filters(
            node=node, outcome=outcome, policy=policy, tenant=tenant.strip(), model=model,
            revision=revision.strip(), q=text.strip(), below_best=bool(below),
            slo_missed=bool(missed),
        )  # fmt: skip
        st.button("Clear", on_click=clear, disabled=found.empty, help="Remove all filters")
    if found.revision and _number(found.revision) is None:
        notice(not_used("rev", found.revision, "the number of a revision"))
    return found


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


def clear() -> None:
    """Set every filter back; a callback, since widgets may not be set once drawn."""
    for name in ("node", "outcome", "policy", "model"):
        st.session_state[name] = ANY
    for name in ("tenant", "q", "rev"):
        st.session_state[name] = ""
    for name in ("below_best", "slo_missed"):
        st.session_state[name] = False


def _choice(label: str, key: str, options: Sequence[str], *, width: int) -> str:
    """A select box whose first choice is "any"; a value from the address stays although unknown."""
    given = st.query_params.get(key) or st.session_state.get(key) or ANY
    known = list(dict.fromkeys([ANY, *options, given] if key != "outcome" else [ANY, *options]))
    chosen = st.selectbox(label, known, key=key, bind="query-params", width=width)
    return chosen or ANY
