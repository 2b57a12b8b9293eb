"""Acts on prefixes: copy one to a node, give up a migration; a dialog each."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from core import wire
from dashboard.nodes.acts import fleet
from dashboard.parts import acting


@st.dialog("Copy a prefix to a node")
def copy_dialog(key: str, nodes: Sequence[str]) -> None:
    """Ask for the target and the reason, and start it."""
    st.markdown(f"Prefix `{key}`. The service chooses the quickest way that the engines offer.")
    target = st.selectbox("To node", list(nodes), key="copy_target", index=None)
    form = acting.Form()
    form.need(target, "To node: choose one.")
    reason = form.reason("copy_reason")
    if form.go("Copy", key="copy_do"):
        asked = wire.MigrationAsk(
            prefix=key, target=str(target), reason=reason, author=acting.author()
        )
        acting.carry_out(
            lambda: fleet().migrate(asked),
            f"The copy to {target} is on its way",
            "The Migrations view shows how it goes.",
        )


@st.dialog("Give up a migration")
def cancel_dialog(move: wire.MigrationView) -> None:
    """Ask for the reason, and cancel."""
    st.markdown(f"Prefix `{move.prefix}` from {move.source} to {move.target}, {move.state}.")
    form = acting.Form()
    reason = form.reason("cancel_reason")
    if form.go("Give it up", key="cancel_do"):
        why = wire.MigrationCancel(reason=reason, author=acting.author())
        acting.carry_out(
            lambda: fleet().cancel_migration(move.id, why), "The migration is given up"
        )
