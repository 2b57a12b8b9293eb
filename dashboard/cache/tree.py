"""The tree view of the Cache page: search, breadcrumb, icicle, its table, the chosen prefix."""

from __future__ import annotations

from functools import partial
from html import escape

import streamlit as st
from pydantic import ValidationError

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.cache import figures as cache_figures
from dashboard.cache import models as cm
from dashboard.cache.prefix_detail import show_prefix
from dashboard.nodes.acts import fleet
from dashboard.overview.models import Notice, not_used
from dashboard.parts.components import heading, notice
from dashboard.parts.kept import kept
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import failure_notice, part
from dashboard.parts.tables import SELECT, select_table

TRAIL = "trail"
"""Query parameter with the keys of the breadcrumb."""
TREE_EVERY_S = 4.0
MEANWHILE_S = 30.0
"""A tree that old is shown at once where nobody asked for a fresh one."""
_LOOKED_UP = "looked_up"


def tree_view(state: wire.FleetState) -> None:
    """Everything of the view; draws nothing that moves while it is looked at."""
    again = _search()
    _paste(state)
    given = st.query_params.get(TRAIL, "")
    trail = cm.trail_of(given)
    if given and cm.trail_text(trail) != given.lower():
        notice(not_used(TRAIL, given, f"{cm.KEY_WORDS}, or several with dots between"))
    with part("The tree"):
        root = trail[-1] if trail else ""
        budget = int(st.session_state.get("cells") or 400)
        tree = kept(
            "tree", root, budget, ttl_s=0.0 if again else TREE_EVERY_S,
            read=partial(fleet().tree, root, budget=budget),
            meanwhile_s=0.0 if again else MEANWHILE_S,
        )  # fmt: skip
        _tree(state, tree, trail)


def _search() -> bool:
    """What is looked for, and how it is drawn; whether a fresh tree is asked for."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Find a prefix by the key of its last block", key="prefix_key", width=330,
            placeholder="16 hexadecimal digits", on_change=_found,
        )  # fmt: skip
        st.segmented_control(
            "Colour", list(cm.MODES), default=cm.MODES[0], required=True, key="colour",
            bind="query-params",
        )  # fmt: skip
        st.select_slider("Cells at most", [100, 200, 300, 400], 400, key="cells", width=180)
        again = st.button("Refresh", key="tree_again")
    if text and cm.key_of(text) is None:
        notice(Notice("warn", "That is no key", f"It takes {cm.KEY_WORDS}."))
    return again


def _found() -> None:
    key = cm.key_of(st.session_state["prefix_key"])
    if key is not None:
        go_to([key])


def go_to(trail: list[str]) -> None:
    """Show the tree from the last of these keys on."""
    if trail:
        st.query_params[TRAIL] = cm.trail_text(trail)
    else:
        st.query_params.pop(TRAIL, None)


# -- a pasted prompt ---------------------------------------------------------------------------


def _paste(state: wire.FleetState) -> None:
    with st.expander("Where does a prompt lie? Paste it", key="paste"):
        if not state.models:
            st.caption("No node serves a model yet.")
            return
        with st.form("lookup", border=False):
            text = st.text_area(
                "Prompt", key="pasted", height=110,
                placeholder="text, a JSON list of token ids, or a JSON list of messages",
            )  # fmt: skip
            with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
                model = st.selectbox("Model", state.models, key="lookup_model", width=260)
                salt = st.text_input("Cache salt", key="lookup_salt", width=200)
                asked = st.form_submit_button("Look it up")
        if asked and text.strip():
            st.session_state[_LOOKED_UP] = _look_up(text, str(model), salt.strip())
        found = st.session_state.get(_LOOKED_UP)
        if found is not None:
            _answer(found)


def _look_up(text: str, model: str, salt: str) -> wire.LookupView | Notice:
    try:
        asked = wire.LookupAsk(model=model, cache_salt=salt, **cm.prompt_of(text))
        return fleet().lookup(asked)
    except ValidationError as e:
        return Notice("bad", "That prompt cannot be looked up", e.errors()[0]["msg"])
    except ServiceError as e:
        return failure_notice("The prompt", e)


def _answer(found: wire.LookupView | Notice) -> None:
    if isinstance(found, Notice):
        notice(found)
        return
    notice(cm.lookup_notice(found))
    for chain in found.chains:
        if chain.key:
            st.button(
                f"Show its {chain.matched_blocks} matched blocks of {chain.block_size} tokens "
                "in the tree",
                key=f"show_{chain.key}", on_click=go_to, args=([chain.root, chain.key],),
            )  # fmt: skip
    if found.nodes:
        select_table(cm.match_rows(found), key="matches", alt="Matches by node", percent=("Share",))


# -- the tree ----------------------------------------------------------------------------------


def _tree(state: wire.FleetState, tree: wire.CacheTree, trail: list[str]) -> None:
    _breadcrumb(tree, trail)
    if not tree.cells or not any(c.parent for c in tree.cells):
        _nothing(tree, trail)
    else:
        mode = st.session_state.get("colour") or cm.MODES[0]
        _legend(mode)
        clicked = live_plot(
            cache_figures.icicle(tree.cells, mode, session.colours()), key="tree",
            alt="Tree of cached prefixes", clicks=True,
        )  # fmt: skip
        if clicked and clicked not in ("start", trail[-1] if trail else ""):
            go_to(cm.went_to(trail, tree.cells, clicked))
            st.rerun()
    if trail:
        show_prefix(state, trail[-1])
    rows = cm.tree_rows(tree.cells)
    if rows:
        with st.expander(f"The same as a table; {SELECT} to go there"):
            keys = [str(row["Prefix"]) for row in rows]
            select_table(
                rows, key=f"tree_rows_{len(trail)}", alt="Runs of blocks",
                on_select=lambda chosen: go_to(cm.went_to(trail, tree.cells, keys[chosen])),
            )  # fmt: skip


def _breadcrumb(tree: wire.CacheTree, trail: list[str]) -> None:
    names: dict[str, str] = st.session_state.setdefault("root_names", {})
    names.update(cm.root_names(tree.cells))
    used = f"{tree.entries:,} of at most {tree.entries_max:,} blocks listed"
    heading("Prefix tree", f"{used}; a click goes deeper")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button("All prompts", key="crumb_all", disabled=not trail, on_click=go_to, args=([],))
        for i, key in enumerate(trail):
            st.button(
                f"→ {cm.crumb(key, names)}", key=f"crumb_{i}", help=key,
                disabled=i == len(trail) - 1, on_click=go_to, args=(trail[: i + 1],),
            )  # fmt: skip


def _legend(mode: str) -> None:
    items = "".join(
        f"<span><i style='background:{colour}'></i>{escape(words)}</span>"
        for colour, words in cache_figures.legend(mode, session.colours())
    )
    st.html(f"<div class='cd-legend'>{items}</div>")


def _nothing(tree: wire.CacheTree, trail: list[str]) -> None:
    if trail:
        notice(Notice("none", "Nothing continues this prefix", "It ends here, or is not listed."))
    elif tree.entries:
        notice(Notice("none", "Nothing is shown", "The listed blocks have no known beginning."))
    else:
        notice(
            Notice(
                "none",
                "The index lists no block",
                "Nodes with an event stream fill it as they compute prompts; others are followed "
                "by what was sent to them.",
            )
        )
