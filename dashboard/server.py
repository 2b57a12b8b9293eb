"""What `streamlit run` starts: the pages, and what is served beside them from our own origin."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import streamlit as st
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

import dashboard
from core.priority import give_way
from dashboard import front, sign_in
from dashboard.lighter import lighten
from dashboard.navigation import DEFAULT, address

_SCRIPTS = ("dashboard.server", "dashboard.app", "dashboard.views.")


async def _another_base(_request: Request) -> Response:
    """Streamlit's page looks for its server below a deep link's address before it asks the root.

    A 404 would do, but browsers report it as an error of the page. `null` is no configuration
    either: the page goes on to the root.
    """
    return JSONResponse(None, headers={"Cache-Control": "no-store"})


async def _first_page(request: Request) -> Response:
    """The first page's own name, which Streamlit does not know as an address."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(address(DEFAULT) + query, 302)


def read_rooms() -> None:
    """Import what pages are made of: the first reader would wait for it. Scripts are no modules."""
    for found in pkgutil.walk_packages(dashboard.__path__, "dashboard."):
        if not found.name.startswith(_SCRIPTS):
            importlib.import_module(found.name)


give_way()  # the scheduler goes first where both run on one machine
lighten()
read_rooms()
app = st.App(
    Path(__file__).with_name("app.py"),
    routes=[
        Route(f"/{DEFAULT}", _first_page),
        *front.routes(),
        *(Route(f"/{{page}}/_stcore/{name}", _another_base) for name in ("health", "host-config")),
        *sign_in.routes(),
    ],
)
