"""Signing in through an identity provider, by Streamlit's own login (`[auth]` in its secrets).

Streamlit fetches the ID token and keeps it in a signed cookie; this module hands it to the
service, which believes nothing but the provider's signature, and keeps the session that the
service gives in return, in this process alone. The ID token is handed over once: a browser that
comes back is known by it for as long as its session lasts.
"""

from __future__ import annotations

import hashlib
import os
import threading

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dashboard.api.client import AdminClient, Refused, ServiceError

NAME_VARIABLE = "CONDUCTOR_OIDC_NAME"
"""What the provider is called on the sign-in page."""
STEP, BEGIN, END = "provider", "sign-in", "sign-out"
"""Query parameter of the console's address, and its values."""
COOKIE = "_streamlit_user"
"""How the names of Streamlit's own cookies of a login begin."""
KEPT_MAX = 256
EXCHANGE_S = 15.0
_lock = threading.Lock()
_sessions: dict[str, str] = {}


def offered() -> str:
    """The provider's name for the sign-in page; empty where none is set up."""
    if not st.secrets.load_if_toml_exists() or not st.secrets.get("auth"):
        return ""
    return os.environ.get(NAME_VARIABLE, "") or "your organisation"


def step(url: str) -> None:
    """Begin or end a login where the address asks for it; the script does not go on then."""
    asked = st.query_params.get(STEP)
    if asked == BEGIN and offered():
        st.login()
        st.stop()
    if asked == END and _id_token():
        _leave(url)
        st.logout()
        st.stop()
    if asked:
        del st.query_params[STEP]


def token(url: str) -> str:
    """The token of who came through the provider; empty for nobody."""
    shown = _id_token()
    if not shown:
        return ""
    name = _name(shown)
    with _lock:
        known = _sessions.get(name, "")
    if known or st.session_state.get("oidc_asked") == name:
        return known
    return _exchanged(url, shown, name)


def problem() -> str:
    """Why the service did not let in who came through the provider; empty where it did."""
    found = st.session_state.get("oidc_problem", "") if _id_token() else ""
    return str(found)


def _exchanged(url: str, id_token: str, name: str) -> str:
    """Ask the service once; a refusal stands until the next login."""
    peer = st.context.ip_address
    client = AdminClient(url, peer=peer if isinstance(peer, str) else "")
    try:
        made = client.log_in_elsewhere(id_token, timeout_s=EXCHANGE_S).token
    except Refused as refused:
        st.session_state["oidc_asked"] = name
        st.session_state["oidc_problem"] = str(refused)
        return ""
    except ServiceError:
        return ""  # asked again with the next run
    finally:
        client.close()
    with _lock:
        _sessions[name] = made
        for old in list(_sessions)[:-KEPT_MAX]:
            del _sessions[old]
    return made


def _leave(url: str) -> None:
    with _lock:
        known = _sessions.pop(_name(_id_token()), "")
    if not known:
        return
    client = AdminClient(url, known)
    try:
        client.log_out()
    except ServiceError:
        pass  # it ends by its age
    finally:
        client.close()


def _id_token() -> str:
    # Asked for at every refresh: `st.user` itself looks for the file of secrets each time.
    run = get_script_run_ctx(suppress_warning=True)
    if run is None or not run.user_info.get("is_logged_in"):
        return ""
    found = st.user.tokens.get("id")
    return found if isinstance(found, str) else ""


def _name(id_token: str) -> str:
    return hashlib.sha256(id_token.encode()).hexdigest()
