"""What `streamlit run` starts: the pages, and the chart library from our own origin.

The library is read from the installed plotly package, so nothing is copied, nothing is fetched
from elsewhere, and a read-only installation works.
"""

from __future__ import annotations

from pathlib import Path

import plotly
import streamlit as st
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from core.priority import give_way
from dashboard import sign_in
from dashboard.lighter import lighten
from dashboard.navigation import DEFAULT, address

PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_A_YEAR = "public, max-age=31536000, immutable"


def chart_library() -> FileResponse:
    """The charting script; its address carries the version, so it may be kept for long."""
    return FileResponse(PLOTLY_JS, media_type="text/javascript", headers={"Cache-Control": _A_YEAR})


async def _serve_chart_library(_request: object) -> FileResponse:
    return chart_library()


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


give_way()  # the scheduler goes first where both run on one machine
lighten()
app = st.App(
    Path(__file__).with_name("app.py"),
    routes=[
        Route("/assets/plotly.min.js", _serve_chart_library),
        Route(f"/{DEFAULT}", _first_page),
        *(Route(f"/{{page}}/_stcore/{name}", _another_base) for name in ("health", "host-config")),
        *sign_in.routes(),
    ],
)
