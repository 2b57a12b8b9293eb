"""Settings: saved views, who may do what (users, tokens, API keys), and the audit of it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd  # type: ignore[import-untyped]
import streamlit as st

from core import wire
from dashboard import session
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts import format as fmt
from dashboard.parts.components import heading, notice
from dashboard.parts.page import act, page, part
from dashboard.parts.tables import ROW_PX, data_table, plain_table, table_height
from dashboard.settings import forms
from dashboard.settings import models as sm
from dashboard.settings.saved import views_section

ADMIN = "admin"


def main(_state: wire.FleetState) -> None:
    """The reader, then what an administrator sees."""
    acting.told()
    reader = session.user()
    heading("You", "what the service takes this browser for")
    who = f"{reader.name}," if reader.name else "Nobody is signed in; this browser reads as"
    st.write(f"{who} {sm.ROLES.get(reader.role, 'nobody in particular')}")
    with part("Saved views"):
        views_section()
    if not session.may(ADMIN):
        role = reader.role or "nobody in particular"
        text = f"You are {role}; sign in as an administrator."
        if not session.known():
            text = "The service has not said yet who you are."
        notice(Notice("none", "Users, tokens, keys and the audit need the role admin", text))
        return
    calls = forms.identity()
    with part("Users"):
        _users(calls.users().users)
    with part("Tokens"):
        _tokens(calls.tokens().tokens)
    with part("API keys"):
        _keys(calls.keys().keys)
    with part("The audit"):
        _audit()


def _users(users: Sequence[wire.UserView]) -> None:
    heading("Users", f"people who sign in with a password; {session.zone_name()}")
    if users:
        plain_table(sm.user_rows(users, session.zone()), key="users", alt="Users")
    else:
        st.caption("No local user yet: whoever acts does so with a token.")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if act("New user …", key="new_user", least=ADMIN):
            forms.new_user()
        if users:
            names = [u.name for u in users]
            name = st.selectbox("User", names, key="pick_user", width=220)
            if act("Change …", key="change_user", least=ADMIN):
                forms.change_user(next(u for u in users if u.name == name))


def _tokens(tokens: Sequence[wire.TokenView]) -> None:
    whose = "for programs, and of people who are signed in"
    heading("Tokens and sessions", f"{whose}; {session.zone_name()}")
    rows = sm.token_rows(tokens, now=session.now(), zone=session.zone())
    if rows:
        plain_table(rows, key="tokens", alt="Tokens and sessions")
    if act("New token …", key="new_token", least=ADMIN):
        forms.new_token()
    good = {t.id: t.name for t in tokens if t.id in _good(rows)}
    _revoking("token", good)


def _keys(keys: Sequence[wire.KeyView]) -> None:
    heading("API keys", f"of the data plane: a tenant with its limits; {session.zone_name()}")
    rows = sm.key_rows(keys, now=session.now(), zone=session.zone())
    if rows:
        plain_table(rows, key="keys", alt="API keys")
    else:
        st.caption("No key yet: the data plane takes requests as its settings say.")
    if act("New API key …", key="new_key", least=ADMIN):
        forms.new_key()
    _revoking("key", {k.id: k.name for k in keys if k.id in _good(rows)})


def _good(rows: Sequence[dict[str, object]]) -> set[object]:
    return {r["Id"] for r in rows if r["State"] == "✓ good"}


def _revoking(kind: str, good: dict[str, str]) -> None:
    if not good:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        id = st.selectbox(
            f"Good {kind}s", list(good), key=f"pick_{kind}", width=320,
            format_func=lambda i: f"{good[i]} ({i})",
        )  # fmt: skip
        if act("Revoke …", key=f"revoke_{kind}", least=ADMIN):
            forms.revoke(kind, str(id), good[str(id)])


def _audit() -> None:
    heading("Audit", f"administrative acts; can only be added to; {session.zone_name()}")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        actor = st.text_input("Who", key="audit_actor", bind="query-params", width=150)
        action = st.text_input("Act (may end in *)", key="audit_action", bind="query-params",
                               width=170)  # fmt: skip
        target = st.text_input("On", key="audit_target", bind="query-params", width=150)
        check = st.button("Verify all of it", key="audit_verify",
                          help="Read every entry again and compare the digests")  # fmt: skip
    calls = forms.identity()
    if check:
        well, words = sm.check_words(calls.verify())
        notice(Notice("ok" if well else "bad", words))
    found = calls.audit(actor=actor.strip(), action=action.strip(), target=target.strip())
    if not found.entries:
        st.caption("No act matches.")
        return
    frame = pd.DataFrame(sm.audit_rows(found.entries))
    frame["Time"] = pd.to_datetime(frame["Time"], utc=True).dt.tz_convert(session.zone())
    data_table(
        frame, key="audit", hide_index=True, row_height=ROW_PX, placeholder=fmt.NONE,
        height=table_height(len(frame)), alt="Administrative acts, newest first",
        column_config={
            "Time": st.column_config.DatetimeColumn(
                f"Time ({session.zone_name()})", format="YYYY-MM-DD HH:mm:ss"
            ),
        },
    )  # fmt: skip
    more = "; older ones: narrow the filters" if found.next else ""
    st.caption(f"The newest {fmt.counted(len(frame), 'act')}{more}.")


page(main, key="settings", empty=None, live=False)
