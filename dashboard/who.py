"""Who is signed in, and the way in or out, as markup."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard import oidc
from dashboard.session import User


def who_markup(user: User) -> str:
    """The way in or out; who it is stands in the strip of badges."""
    if not user.name:
        return '<a href="/sign-in" target="_self">Sign in</a>'
    return f'<a href="/sign-out" target="_self" title="{escape(user.name)}">Sign out</a>'


def ask_to_sign_in() -> None:
    """In place of the pages, where the service shows nothing without a sign-in."""
    st.title("Conductor")
    if why := oidc.problem():
        st.error(why)
    st.html('<p><a href="/sign-in" target="_self">Sign in</a> to see this fleet.</p>')
