"""What all pages share: the service's feed, the reader's time zone, range and live switch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from core import wire
from dashboard import oidc
from dashboard.api.client import AdminClient, Refused, ServiceError
from dashboard.api.feed import REFUSALS, Feed, Look
from dashboard.launch import DEFAULT_URL, HISTORY_VARIABLE, URL_VARIABLE
from dashboard.parts.store import Kept
from dashboard.parts.theme import Palette, palette
from dashboard.parts.window import CHOICES, CUSTOM, LIVE_RANGE, Window, fixed, relative

REFRESH_VARIABLE = "CONDUCTOR_REFRESH_S"
"""Environment variable with the seconds between two refreshes."""
REFRESH_S, REFRESH_LEAST_S, REFRESH_MOST_S = 2.0, 0.5, 60.0
READERS_MAX = 256
"""Tokens whose clients are kept."""
WHO_S = 5.0
"""How long an answer about who is signed in is believed; the service checks each request."""
WHO_MEANWHILE_S = 15.0
"""So old it still serves while a thread asks again, so that a service that hangs holds up no page.
Rights that were taken away show at the refresh after; the service heeds them at once."""
WHO_WAIT_S = 1.5
"""The first page of a reader is not held up longer than this by a service that hangs."""
COOKIE = "conductor_session"
"""Holds the token; set by the sign-in page, out of reach of scripts."""
ROLES = ("viewer", "operator", "admin")
"""Each may do what those before it may."""
LOCAL_TIME = "local"
"""Choice of the browser's own time zone."""
ENVIRONMENT_VARIABLE = "CONDUCTOR_ENVIRONMENT"
_WAITS = "waits_for_answers"
Rights = tuple[str, ...]
_ROLE = "role"
T = TypeVar("T")
_making = threading.Lock()
_run: ContextVar[dict[str, Any] | None] = ContextVar("run", default=None)


@contextmanager
def one_run() -> Iterator[None]:
    """Within, what cannot change while a page is drawn is found out once: who reads, and how."""
    outer = _run.set({})
    try:
        yield
    finally:
        _run.reset(outer)


def _once(name: str, find: Callable[[], T]) -> T:
    found = _run.get()
    if found is None:
        return find()
    if name not in found:
        found[name] = find()
    result: T = found[name]
    return result


def service_url() -> str:
    """Address of the service this console shows."""
    return os.environ.get(URL_VARIABLE, DEFAULT_URL).rstrip("/")


def environment() -> str:
    """Name of the installation, for those who run several."""
    return os.environ.get(ENVIRONMENT_VARIABLE, "local")


def token() -> str:
    """Token of who is signed in at this browser; empty for nobody."""
    return _once("token", _token)


def _token() -> str:
    found = st.context.cookies.get(COOKIE)
    return found if isinstance(found, str) and found else oidc.token(service_url())


def peer() -> str:
    """Address of the browser; empty where it is not known."""
    found = st.context.ip_address
    return found if isinstance(found, str) else ""


@lru_cache(maxsize=READERS_MAX)  # by far cheaper to ask than Streamlit's own
def _client(url: str, token: str, peer: str) -> AdminClient:
    return AdminClient(url, token, peer=peer)


def client() -> AdminClient:
    """The reader's own client: it acts as who is signed in, and reads what is that person's."""
    return _once("client", _own_client)


def _own_client() -> AdminClient:
    with _making:  # one for all who come at the same time
        return _client(service_url(), token(), peer())


def rights() -> Rights:
    """Readers for whom this is the same are given the same answers by the service, except of
    what is a person's own (who they are, their saved views), which nobody keeps.

    The role, for whoever is signed in: nothing else of a caller makes a difference to what a GET
    route answers. It holds while the service has confirmed the reader's own token; until then, and
    for readers without a token, it is `own_rights`, where the service checks every question.
    """
    return _once("rights", _sure_rights)


def own_rights() -> Rights:
    """Of nobody but those with the same token, or without one at the same address."""
    shown = token()
    return ("token", shown) if shown else ("address", peer())


def _sure_rights() -> Rights:
    said = _said()
    if said is None or not said.role:
        return own_rights()
    shared = (_ROLE, said.role)
    # While the service is away its last answers stay: they are from when this was confirmed.
    sure = _feed(service_url(), shared).good_s <= said.at_s + WHO_MEANWHILE_S
    return shared if sure else own_rights()


@lru_cache(maxsize=READERS_MAX)
def _feed(_url: str, _rights: Rights) -> Feed:
    return Feed()


def feed() -> Feed:
    """The poller of everybody with the same rights; at rest when none of them looks."""
    return _once("feed", lambda: _feed_of(rights()))


def _feed_of(rights: Rights) -> Feed:
    with _making:
        found = _feed(service_url(), rights)
    found.lend(client())
    return found


@st.cache_resource(show_spinner=False, max_entries=READERS_MAX)
def _history(url: str, token: str) -> AdminClient:
    return AdminClient(url, token)


def history_url() -> str:
    """Address of the read-only instance over the same records; empty without one."""
    return os.environ.get(HISTORY_VARIABLE, "").rstrip("/")


def reader() -> AdminClient:
    """Where stored records are read: the service, or its read-only twin while it is down."""
    last = feed().look()
    if last.error and not last.unreadable and history_url():
        return _history(history_url(), token())
    return client()


@dataclass(frozen=True, slots=True)
class User:
    """Who reads, and what that person may do. No name: nobody is signed in."""

    name: str = ""
    role: str = ""


def user() -> User:
    """The reader as the service sees it; one who only reads while the service does not say."""
    found = _known()
    if not isinstance(found, wire.WhoAmI):
        return User(role=ROLES[0])
    return User("" if found.anonymous else found.name, found.role or "")


def known() -> bool:
    """Whether the service has said who reads."""
    return isinstance(_known(), wire.WhoAmI)


def answers() -> bool:
    """Whether the service answers now, and has said who reads.

    Where it does not the page is drawn anew once it does: what was disabled would stay so.
    """
    found = known() and not feed().look().error
    if not found:
        st.session_state[_WAITS] = True
    return found


def answers_again() -> bool:
    """Whether a page that was drawn without answers can be drawn as it should; said once."""
    found = bool(st.session_state.get(_WAITS)) and answers()
    if found:
        del st.session_state[_WAITS]
    return found


def must_sign_in() -> bool:
    """Whether the service shows nothing to this browser as it is."""
    return _known() in REFUSALS


def _known() -> wire.WhoAmI | int | None:
    """What the service said last; nobody waits for one that is known not to answer, and whoever
    opens a page meanwhile is who the token's owner was."""
    said = _said()
    return None if said is None else said.who


@dataclass(frozen=True, slots=True)
class _Said:
    """Who a token's owner is, or the status of a refusal, and when the service said so."""

    who: wire.WhoAmI | int
    at_s: float
    """By the monotonic clock."""

    @property
    def role(self) -> str:
        """Of somebody who is signed in; empty for everybody else."""
        who = self.who
        return "" if isinstance(who, int) or who.anonymous else who.role or ""


def _said() -> _Said | None:
    return _once("who", _ask_who)


def _ask_who() -> _Said | None:
    url, shown = service_url(), token()
    held: tuple[str, _Said] | None = st.session_state.get("who")
    last = held[1] if held is not None and held[0] == shown else None
    if last is not None and _away(last):
        return last
    at = "" if shown else peer()  # who shows nothing is somebody by the address alone
    found = _whos().get(
        (url, shown, at), WHO_S, lambda: _say(url, shown, at), meanwhile_s=WHO_MEANWHILE_S
    )
    if found is None:
        return last
    st.session_state["who"] = (shown, found)
    return found


def _away(last: _Said) -> bool:
    """Whether the service is known not to answer; one that refuses a token does."""
    look = _feed_of((_ROLE, last.role) if last.role else own_rights()).look()
    return bool(look.error) and not look.refused


@st.cache_resource(show_spinner=False)
def _whos() -> Kept:
    return Kept()


def _say(url: str, token: str, peer: str) -> _Said | None:
    """What the service says now, else what it said last, with the time of then."""
    asked_s = time.monotonic()
    found = _who(url, token, peer)
    last: _Said | None = _whos().last((url, token, peer))
    return last if found is None else _Said(found, asked_s)


def _who(url: str, token: str, peer: str) -> wire.WhoAmI | int | None:
    """Who the token's owner is, or who has none at this address; the status of a refusal; or
    None without an answer."""
    with _making:
        asking = _client(url, token, peer)
    try:
        return asking.whoami(timeout_s=WHO_WAIT_S)
    except Refused as refused:
        return refused.status if refused.status in REFUSALS else None
    except ServiceError:
        return None


def may(least: str) -> bool:
    """Whether the reader's role is at least `least`."""
    answers()
    role = user().role
    return role in ROLES and ROLES.index(role) >= ROLES.index(least)


def live() -> bool:
    """Whether the pages follow the service."""
    return bool(st.session_state.get("live", True))


def refresh_every() -> float | None:
    """Interval of live fragments; None while paused."""
    return refresh_s(os.environ.get(REFRESH_VARIABLE, "")) if live() else None


def refresh_s(text: str) -> float:
    """The interval that `text` asks for, within its bounds; the default where it is no number."""
    try:
        asked = float(text)
    except ValueError:
        return REFRESH_S
    return min(max(asked, REFRESH_LEAST_S), REFRESH_MOST_S) if asked == asked else REFRESH_S


def look() -> Look:
    """The last look, one for a whole run; while paused, the one at the moment of pausing."""
    found = _once("look", _last_look)
    if found.state is None and not found.error and (run := _run.get()):
        run.pop("look", None)  # nothing yet: worth another wait
    return found


def _last_look() -> Look:
    held: Look | None = st.session_state.get("held_look")
    if not live() and held is not None:
        return held
    current = feed().look()
    if live():
        st.session_state.pop("held_look", None)
    elif current.state is not None:
        st.session_state["held_look"] = current
    return current


def chosen_range() -> str:
    """Key of the chosen time range."""
    found = st.session_state.get("range") or LIVE_RANGE
    return found if found in CHOICES else LIVE_RANGE


def window() -> Window:
    """The stretch of time to show; while paused it stands still."""
    held: Look | None = st.session_state.get("held_look")
    end = held.good_at if held is not None and held.good_at and not live() else now()
    if chosen_range() != CUSTOM:
        return relative(chosen_range(), end)
    return fixed(st.session_state.get("from"), st.session_state.get("to"), end)


def zone() -> tzinfo:
    """The reader's time zone: UTC, or the browser's."""
    return _once("zone", _zone)


def _zone() -> tzinfo:
    if st.session_state.get("tz", "UTC") != LOCAL_TIME:
        return UTC
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


def zone_name() -> str:
    """Name of the zone, for headings."""
    return str(zone()) if zone() is not UTC else "UTC"


def colours() -> Palette:
    """The palette of the reader's theme."""
    return _once("colours", lambda: palette(st.context.theme.type))


def now() -> datetime:
    """Wall clock, UTC."""
    return datetime.now(UTC)
