"""The kept prompt of a decision: for administrators, on their word, and entered in the audit."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import Refused, ServiceError
from dashboard.overview.models import Notice
from dashboard.parts import format as fmt
from dashboard.parts.components import heading, notice

_READ = "prompt_read"
"""Session key of the prompt that was read last: shown again without being read again."""


def prompt_panel(detail: wire.DecisionDetail) -> None:
    """A way to the prompt, for those whom the service tells that there may be one."""
    keeping = detail.prompt
    if keeping is None or session.user().role != "admin":
        st.session_state.pop(_READ, None)
        return
    heading("Prompt")
    if not keeping.on or keeping.expires_at is None:
        st.caption("No prompt text is kept (records.keep_prompts is off).")
        return
    st.caption(_terms(keeping.expires_at > session.now(), _clock(keeping)))
    if st.button("Read the prompt", key="prompt_button"):
        st.session_state[_READ] = _read(detail.row.id)
    read: wire.PromptView | None = st.session_state.get(_READ)
    if read is not None and read.decision_id == detail.row.id:
        st.code(read.text or "(no text)", language=None, wrap_lines=True)


def _terms(lasts: bool, clock: str) -> str:
    until = f"is deleted after {clock}" if lasts else f"was to be deleted after {clock}"
    return (
        "What looks like a secret or an address was replaced before the text was stored;"
        f" it {until}. Reading it is entered in the administrative audit."
    )


def _clock(keeping: wire.PromptKeeping) -> str:
    assert keeping.expires_at is not None
    return f"{fmt.moment(keeping.expires_at, session.zone())} {session.zone_name()}"


def _read(decision_id: str) -> wire.PromptView | None:
    try:
        return session.client().prompt(decision_id)
    except Refused as e:
        gone = e.status == 404
        what = "No prompt of this decision is kept" if gone else "The prompt could not be read"
        notice(Notice("none" if gone else "bad", what, str(e)))
    except ServiceError as e:
        notice(Notice("bad", "The prompt could not be read", str(e)))
    return None
