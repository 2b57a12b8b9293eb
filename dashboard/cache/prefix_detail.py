"""One prefix in full: tiles, who holds it, and what can be done with it."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard.cache import models as cm
from dashboard.cache.acts import copy_dialog
from dashboard.nodes.acts import fleet
from dashboard.overview.models import Notice
from dashboard.parts.components import heading, notice, tile_grid
from dashboard.parts.kept import kept
from dashboard.parts.page import act, part
from dashboard.parts.tables import SELECT, select_table

PREFIX_EVERY_S = 2.0


def show_prefix(state: wire.FleetState, key: str) -> None:
    """The prefix that ends with this block."""
    heading("Prefix", key)
    with part("The prefix"):
        found = kept("prefix", key, ttl_s=PREFIX_EVERY_S, read=lambda: fleet().prefix(key))
        if not found.listed:
            notice(
                Notice(
                    "none",
                    "Nobody is known to hold a block of this key",
                    "It may be where a tree of prompts starts, or it was evicted.",
                )
            )
            return
        tile_grid(cm.prefix_tiles(found))
        _holders(state, found)


def _holders(state: wire.FleetState, found: wire.PrefixView) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        heading("Its replicas", f"{SELECT} to open the node")
        free = cm.copy_targets(state.nodes, found)
        why_not = cm.no_copy(found, free)
        if act("Copy to a node …", key=f"copy_{found.key}", why_not=why_not):
            copy_dialog(found.key, free)
    if found.copyable is False and free:
        _dry_run(why_not)
    names = [h.node for h in found.holders]
    chosen = select_table(
        cm.holder_rows(found), key=f"holders_{found.key}", alt="Nodes that hold the prefix",
        choose=True,
    )  # fmt: skip
    if chosen is not None and chosen < len(names):
        st.switch_page("views/nodes.py", query_params={"node": names[chosen]})


def _dry_run(why_not: str) -> None:
    """Why no copy can be made, and the change after which one can."""
    st.caption(why_not)
    st.page_link(
        "views/tuning.py", label="Draft a dry run of migration",
        query_params={
            "draft": "migration.enabled:true;migration.dry_run:true", "group": "migration"
        },
    )  # fmt: skip
