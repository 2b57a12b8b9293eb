"""What an operator does to a node: buttons that say why they are disabled, a dialog each."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.fleet import FleetClient, NodeAct
from dashboard.parts import acting
from dashboard.parts.page import act

EFFECT: dict[NodeAct, str] = {
    "cordon": "It gets no new requests; those on it go on.",
    "drain": "It gets no new requests; the page shows when the last one on it has ended.",
    "uncordon": "It gets new requests again.",
    "undrain": "It gets new requests again.",
}
WEIGHT_MIN, WEIGHT_MAX = 0.01, 1000.0


def node_buttons(n: wire.NodeView) -> None:
    """One row of acts, as the node's state allows."""
    drained = n.drain is not None
    back: NodeAct = "uncordon" if n.drain and n.drain.state == "cordoned" else "undrain"
    acts: list[NodeAct] = [back] if drained else ["cordon", "drain"]
    with st.container(horizontal=True, gap="small"):
        for name in acts:
            if act(f"{name.capitalize()} …", key=f"node_{name}"):
                _take_out(n.id, name)
        if n.drain is not None and n.drain.state == "cordoned" and act("Drain …", key="node_drain"):
            _take_out(n.id, "drain")
        if act("Weight …", key="node_weight"):
            _weight(n.id, n.weight)
        if act("Note …", key="node_note"):
            _note(n.id, n.note.text if n.note else "")
        if act("Remove …", key="node_remove"):
            _remove(n.id)


def fleet() -> FleetClient:
    """Calls of the fleet's pages in the reader's name."""
    return FleetClient(session.client())


def records() -> FleetClient:
    """Calls that read records: of the service, or while that is down of its read-only twin."""
    return FleetClient(session.reader())


@st.dialog("Take in or out of service")
def _take_out(node: str, name: NodeAct) -> None:
    st.markdown(f"**{name.capitalize()} {node}.** {EFFECT[name]}")
    form = acting.Form()
    reason = form.reason("node_reason")
    if form.go(f"{name.capitalize()} {node}", key="node_do"):
        why = wire.ActionReason(reason=reason, author=acting.author())
        acting.carry_out(lambda: fleet().node_act(node, name, why), f"Done: {name} {node}")


@st.dialog("Weight")
def _weight(node: str, weight: float) -> None:
    st.markdown(
        f"Relative share of traffic of **{node}**, for the next decision on. Now {weight:g}."
    )
    form = acting.Form()
    value = form.number(
        "Weight", float(weight), WEIGHT_MIN, WEIGHT_MAX, key="node_weight_value", format="%.2f"
    )
    reason = form.reason("node_weight_reason")
    if form.go(f"Set the weight of {node}", key="node_do"):
        change = wire.NodeChange(weight=value, reason=reason, author=acting.author())
        acting.carry_out(lambda: fleet().change_node(node, change), f"{node} weighs {value:g} now")


@st.dialog("Note")
def _note(node: str, text: str) -> None:
    st.markdown(f"What others should know about **{node}**. An empty note clears it.")
    note = st.text_area("Note", text, max_chars=1000, key="node_note_text")
    if acting.Form().go("Keep the note", key="node_do"):
        change = wire.NodeChange(note=note.strip(), author=acting.author())
        acting.carry_out(lambda: fleet().change_node(node, change), f"The note of {node} is kept")


@st.dialog("Remove a node")
def _remove(node: str) -> None:
    st.markdown(
        f"**{node} is forgotten**: its cache, its breaker, its place in the fleet. Requests on "
        "it go on. Drain it first if nothing on it may be cut short by its shutdown."
    )
    form = acting.Form()
    reason = form.reason("node_remove_reason")
    form.typed(node, "node_remove_word")
    if form.go(f"Remove {node}", key="node_do"):
        why = wire.ActionReason(reason=reason, author=acting.author())
        acting.carry_out(lambda: _removed(node, why), f"{node} is removed")


def _removed(node: str, why: wire.ActionReason) -> None:
    fleet().remove_node(node, why)
    st.query_params.pop("node", None)
