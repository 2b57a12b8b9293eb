"""The parameters that each page takes in its address, and what is said of those it does not."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard.breaker.models import MACHINES
from dashboard.cache import models as cache
from dashboard.changes import models as changes
from dashboard.decisions.models import OUTCOMES
from dashboard.flow.models import MEASURES
from dashboard.nodes.models import ONLY
from dashboard.overview.models import ORDERS, Notice
from dashboard.parts.address import complaints
from dashboard.parts.components import notice

Values = Sequence[str]
ANY: Values = ()
SWITCH: Values = ("true", "false")
PARAMETERS: dict[str, dict[str, Values]] = {
    "overview": {"rows": ORDERS},
    "nodes": {"node": ANY, "find": ANY, "only": ONLY},
    "cache": {"view": cache.VIEWS, "prefix": ANY, "trail": ANY, "colour": cache.MODES},
    "flow": {"measure": MEASURES},
    "tuning": {"draft": ANY, "base": ANY, "group": ANY, "revision": ANY},
    "breaker": {"machine": tuple(MACHINES)},
    "lab": {"job": ANY},
    "decisions": {
        "decision": ANY, "q": ANY, "node": ANY, "outcome": ("any", *OUTCOMES), "policy": ANY,
        "model": ANY, "tenant": ANY, "rev": ANY, "below_best": SWITCH, "slo_missed": SWITCH,
        "different": SWITCH,
    },
    "changes": {
        "event": ANY, "lane": (changes.ALL, *changes.LANES), "change_node": ANY, "by": ANY,
        "holds": ANY,
    },
    "settings": {"audit_actor": ANY, "audit_action": ANY, "audit_target": ANY},
}  # fmt: skip
"""Page -> parameter -> the values it takes, none where it takes any text."""
_HELD, _SEEN = "unheeded", "unheeded_seen"


def heed(page: str) -> None:
    """Look at the address before any widget has dropped from it what it does not know.

    What is found stays until the reader has seen it or goes to another page.
    """
    ours: dict[str, str] = st.session_state.get("written_ends", {})
    given = {n: v for n, v in st.query_params.to_dict().items() if v != ours.get(n)}
    seen: set[str] = st.session_state.setdefault(_SEEN, set())
    found = [n for n in complaints(given, PARAMETERS.get(page, {})) if n.title not in seen]
    before, held = st.session_state.get(_HELD, ("", []))
    if before != page:
        seen.clear()
        held = []
    known = {n.title for n in held}
    st.session_state[_HELD] = (page, [*held, *(n for n in found if n.title not in known)])


def also_unheeded(found: Notice) -> None:
    """Say with the rest what only the page could find out, before a widget drops it."""
    page, held = st.session_state[_HELD]
    if found.title in st.session_state[_SEEN] or any(found.title == n.title for n in held):
        return
    st.session_state[_HELD] = (page, [*held, found])
    st.rerun()


def show_unheeded() -> None:
    """Say what of the address is not used."""
    held: list[Notice] = st.session_state[_HELD][1]
    if not held:
        return
    for found in held:
        notice(found)
    st.button(
        "Seen", key="unheeded_close", on_click=_seen, help="Close what is said of the address"
    )


def _seen() -> None:
    page, held = st.session_state[_HELD]
    st.session_state[_SEEN].update(n.title for n in held)
    st.session_state[_HELD] = (page, [])
