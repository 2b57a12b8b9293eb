"""What every page promises: it says which condition holds, and why, in plain words.

`page` runs a page's body and takes care of the conditions around it: forbidden, loading, service
down, stale, nothing there yet. `part` does the same for one part of a page, so that a table which
cannot be read does not take the rest with it. `act` is a button that says why it is disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import Refused, ServiceError, Unreachable
from dashboard.api.control import ControlClient
from dashboard.api.feed import Look
from dashboard.live import live as follow
from dashboard.overview import models as vm
from dashboard.parts import format as fmt
from dashboard.parts.components import notice
from dashboard.parts.kept import kept

Body = Callable[[wire.FleetState], None]
Empty = Callable[[wire.FleetState], vm.Notice | None]
SKELETON_PX = 260
RECORDED_EVERY_S = 10.0


def page(
    body: Body,
    *,
    key: str,
    empty: Empty | None = vm.no_nodes_notice,
    history: Callable[[], None] | None = None,
    least: str = "viewer",
    live: bool = True,
) -> None:
    """Run a page.

    `body` is given the last state and draws below any message; it is left out while `empty`
    gives a reason that there is nothing to show. `history` draws what stored records alone can
    show, for when the service is down and was never seen, or has nothing to show now. `least` is
    the role that may look. With `live` the page is a fragment that follows the service; pages
    whose widgets must not be disturbed pass False and hand what is live to `live` themselves.
    """
    if not session.may(least):
        notice(vm.forbidden_notice(least, session.user().role))
        return

    def run() -> None:
        _run(body, empty, history)

    if live:
        follow(run, key=key)
    else:
        run()


def connection() -> Look:
    """Say what stands between the reader and fresh data, and give the last look."""
    look, zone = session.look(), session.zone()
    clock = f"{fmt.clock(look.good_at, zone)} {session.zone_name()}" if look.good_at else ""
    if session.live() or look.state is None:
        message = vm.connection_notice(
            look, now=session.now(), clock=clock, url=session.service_url()
        )
        if message is not None:
            notice(message)
    return look


@contextmanager
def part(what: str) -> Iterator[None]:
    """Draw one part of a page; a read that fails is said in its place."""
    try:
        yield
    except ServiceError as e:
        notice(failure_notice(what, e))


def failure_notice(what: str, e: ServiceError) -> vm.Notice:
    """Why a part cannot be shown."""
    if isinstance(e, Refused) and e.status in (401, 403):
        return vm.Notice("warn", f"{what}: not allowed", str(e))
    if isinstance(e, Refused) and e.status in (501, 503):
        return vm.Notice("warn", f"{what}: not available", str(e))
    if isinstance(e, Unreachable):
        where = "The page tries again by itself." if session.live() else ""
        why = str(e)
        text = f"{why[:1].upper()}{why[1:]}. {where}".strip()
        return vm.Notice("bad", f"{what}: the service does not answer", text)
    return vm.Notice("bad", f"{what} cannot be read", str(e))


def act(label: str, *, key: str, least: str = "operator", why_not: str = "", **more: Any) -> bool:
    """A button for an act; disabled, with the reason as help, where the reader may not."""
    reason = why_not
    if not session.answers():
        reason = "The service does not answer."
    elif not session.may(least):
        reason = f"This needs the role {least}; you are {session.user().role}."
    if reason:
        more["help"] = reason
    return bool(st.button(label, key=key, disabled=bool(reason), **more))


def _run(body: Body, empty: Empty | None, history: Callable[[], None] | None) -> None:
    # Containers come first, so that nothing moves when one fills.
    top, main = st.container(), st.container()
    with top:
        look = connection()
    with main:
        if look.state is None:
            _without_state(look, history)
            return
        reason = empty(look.state) if empty is not None else None
        if reason is None:
            body(look.state)
            return
        notice(reason)
        if history is not None and _recorded():  # a pool may be empty for a night
            st.caption("From stored records:")
            with part("The records"):
                history()


def _recorded() -> bool:
    """Whether decisions are stored, of nodes that there may not be any more."""
    try:
        found = kept(
            "storage", ttl_s=RECORDED_EVERY_S,
            read=lambda: ControlClient(session.reader()).storage(),
        )  # fmt: skip
    except ServiceError:
        return False
    return found.database is not None and found.database.newest_at is not None


def _without_state(look: Look, history: Callable[[], None] | None) -> None:
    if not look.error:
        st.skeleton(height=SKELETON_PX)
        return
    if history is not None and session.history_url():
        notice(vm.Notice("none", "Stored records", "Read from the read-only instance."))
        with part("The records"):
            history()
