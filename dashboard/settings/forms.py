"""Dialogs of the Settings page: making users, tokens and keys, changing and ending them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.api.identity import IdentityClient
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts.components import notice
from dashboard.settings.models import ROLES

LIVES = {"never": None, "1 day": 1.0, "30 days": 30.0, "90 days": 90.0, "1 year": 365.0}
NAME_MAX = 64
"""Characters of a name; a field does not take a longer one that is pasted."""


def identity() -> IdentityClient:
    """Calls in the reader's name."""
    return IdentityClient(session.client())


def _with_password(key: str) -> AbstractContextManager[Any]:
    """Where a password is asked for: outside a form of Streamlit's, one that is left with Tab, for
    the button that shows it, never arrives."""
    return st.form(key, border=False)


@st.dialog("New user")
def new_user() -> None:
    """Name, role and a first password."""
    form = acting.Form()
    with _with_password("user_form"):
        name = st.text_input("Name", key="user_name", max_chars=NAME_MAX)
        role = _role("user_role")
        password = st.text_input("Password", type="password", key="user_password", max_chars=256)
        form.need(name.strip(), f"Name: give one, of at most {NAME_MAX} characters.")
        form.need(password, "Password: give one.")
        reason = form.reason("user_reason")
        going = form.go("Make the user", key="user_do", inside=True)
    if going:
        asked = wire.UserAsk(name=name.strip(), role=role, password=password, reason=reason)
        done = f"{name.strip()} may sign in as {role}"
        acting.carry_out(lambda: identity().add_user(asked), done)


@st.dialog("Change a user")
def change_user(user: wire.UserView) -> None:
    """Another role, another password, or shut out."""
    st.write(f"{user.name}, {user.role}")
    form = acting.Form()
    with _with_password("change_form"):
        role = _role("change_role", user.role)
        out = st.toggle("Shut out", value=user.disabled, key="change_disabled")
        password = st.text_input(
            "New password (empty: as it is)", type="password", key="change_password", max_chars=256
        )
        same = role == user.role and out == user.disabled and not password
        form.need(not same, "Role, Shut out, New password: change one of them.")
        reason = form.reason("change_reason")
        going = form.go("Change", key="change_do", inside=True)
    if going:
        asked = wire.UserChange(
            role=role if role != user.role else None,
            disabled=out if out != user.disabled else None,
            password=password or None,
            reason=reason,
        )
        done = f"{user.name} is changed"
        acting.carry_out(lambda: identity().change_user(user.name, asked), done)


@st.dialog("New token", width="medium", on_dismiss="rerun")
def new_token() -> None:
    """A token for a program or a person; shown once, in this dialog."""
    name = st.text_input("Name", key="token_name", max_chars=NAME_MAX)
    role = _role("token_role")
    days = LIVES[str(st.selectbox("Ends after", list(LIVES), index=2, key="token_days"))]
    form = acting.Form()
    form.need(name.strip(), f"Name: give one, of at most {NAME_MAX} characters.")
    reason = form.reason("token_reason")
    if form.go("Make the token", key="token_do"):
        asked = wire.TokenAsk(name=name.strip(), role=role, days=days, reason=reason)
        try:
            _shown_once(identity().add_token(asked).token)
        except ServiceError as e:
            notice(Notice("bad", "No token was made", str(e)))


@st.dialog("New API key", width="medium", on_dismiss="rerun")
def new_key() -> None:
    """A key of the data plane for a tenant; shown once, in this dialog."""
    with st.container(horizontal=True, gap="small"):
        name = st.text_input("Name", key="key_name", max_chars=NAME_MAX)
        tenant = st.text_input("Tenant", key="key_tenant", max_chars=NAME_MAX)
    form = acting.Form()
    with st.container(horizontal=True, gap="small"):
        rate = form.number("Requests/s (0: no limit)", 0.0, 0, 1e6, key="key_rate")
        once = form.number("At once (0: no limit)", 0, 0, 1_000_000, key="key_once")
        tokens = form.number("Tokens/min (0: no limit)", 0, 0, 10**12, key="key_tokens")
    days = LIVES[str(st.selectbox("Ends after", list(LIVES), key="key_days"))]
    form.need(name.strip(), f"Name: give one, of at most {NAME_MAX} characters.")
    form.need(
        tenant.strip(),
        f"Tenant: whose requests the key is for, in at most {NAME_MAX} characters.",
    )
    reason = form.reason("key_reason")
    if form.go("Make the key", key="key_do"):
        asked = wire.KeyAsk(
            name=name.strip(), tenant=tenant.strip(), requests_per_s=rate,
            concurrent_max=int(once), tokens_per_min=int(tokens), days=days, reason=reason,
        )  # fmt: skip
        try:
            _shown_once(identity().add_key(asked).key)
        except ServiceError as e:
            notice(Notice("bad", "No key was made", str(e)))


@st.dialog("Revoke")
def revoke(kind: str, id: str, name: str) -> None:
    """End a token or key, for good."""
    st.write(f"The {kind} {name} ends at once, for good.")
    form = acting.Form()
    reason = form.reason("revoke_reason")
    form.typed(name, "revoke_word")
    if form.go("Revoke", key="revoke_do"):
        calls = identity()
        end = calls.revoke_key if kind == "key" else calls.revoke_token
        acting.carry_out(lambda: end(id, reason), f"The {kind} {name} is revoked")


def _role(key: str, value: str = "viewer") -> Any:
    names = list(ROLES)
    found = st.selectbox(
        "Role", names, key=key, index=names.index(value) if value in names else 0,
        format_func=lambda r: ROLES[r],
    )  # fmt: skip
    return cast(Any, found)


def _shown_once(text: str) -> None:
    notice(Notice("ok", "Copy it now: it is shown this once", "The service keeps its digest only."))
    st.code(text, language=None)
