"""Who is signed in, and the way in or out, as markup."""

from __future__ import annotations

from html import escape
from urllib.parse import urlencode, urlsplit

import streamlit as st

from dashboard import oidc
from dashboard.session import User

NEXT = "next"
"""Query parameter of the sign-in page: the address, below the root, to come back to."""


def who_markup(user: User, here: str = "") -> str:
    """The way in or out; who it is stands in the strip of badges. `here` is come back to."""
    if not user.name:
        return f'<a href="{escape(_sign_in(here), quote=True)}" target="_self">Sign in</a>'
    return f'<a href="/sign-out" target="_self" title="{escape(user.name)}">Sign out</a>'


def here() -> str:
    """Path and query of the page that is read; empty where the browser did not say."""
    path = urlsplit(st.context.url or "").path
    asked = urlencode(st.query_params.to_dict())
    return f"{path or '/'}?{asked}" if asked else path


def ask_to_sign_in() -> None:
    """In place of the pages, where the service shows nothing without a sign-in."""
    st.title("Conductor")
    if why := oidc.problem():
        st.error(why)
    link = escape(_sign_in(here()), quote=True)
    st.html(f'<p><a href="{link}" target="_self">Sign in</a> to see this fleet.</p>')


def _sign_in(here: str) -> str:
    return f"/sign-in?{urlencode({NEXT: here})}" if here not in ("", "/") else "/sign-in"
