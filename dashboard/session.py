"""What all pages share: the service's feed, the reader's time zone, range and live switch."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from dashboard.client import AdminClient
from dashboard.feed import Feed, Look
from dashboard.launch import DEFAULT_URL, URL_VARIABLE
from dashboard.theme import Palette, palette

REFRESH_S = 2.0
RANGES: dict[str, timedelta] = {
    "5m": timedelta(minutes=5),
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
}
"""Choices of the time range; the first is kept in memory by the service, in finer steps."""
LIVE_RANGE = "5m"
LOCAL_TIME = "local"
"""Choice of the browser's own time zone."""
ENVIRONMENT_VARIABLE = "CONDUCTOR_ENVIRONMENT"


def service_url() -> str:
    """Address of the service this console shows."""
    return os.environ.get(URL_VARIABLE, DEFAULT_URL).rstrip("/")


def environment() -> str:
    """Name of the installation, for those who run several."""
    return os.environ.get(ENVIRONMENT_VARIABLE, "local")


@st.cache_resource(show_spinner=False)
def _feed(url: str) -> Feed:
    return Feed(AdminClient(url))


def feed() -> Feed:
    """The poller, one a process."""
    return _feed(service_url())


def client() -> AdminClient:
    """The client the poller uses; safe to share."""
    return feed().client


def live() -> bool:
    """Whether the pages follow the service."""
    return bool(st.session_state.get("live", True))


def refresh_every() -> float | None:
    """Interval of live fragments; None while paused."""
    return REFRESH_S if live() else None


def look() -> Look:
    """The last look; while paused, the one at the moment of pausing."""
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
    return found if found in RANGES else LIVE_RANGE


def zone() -> tzinfo:
    """The reader's time zone: UTC, or the browser's."""
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
    return palette(st.context.theme.type)


def now() -> datetime:
    """Wall clock, UTC."""
    return datetime.now(UTC)
