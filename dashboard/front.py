"""What a browser is given before anything of a page: Streamlit's document and the chart library.

The library takes most of a second to load. Asked for by the first chart, that second would come
after all else; the document asks for it, so that it loads while the service is asked. It is read
from the installed plotly package: nothing is copied, nothing is fetched from elsewhere, and a
read-only installation works.
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path

import plotly
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route
from streamlit.file_util import get_static_dir

from dashboard.navigation import address, present

PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
LIBRARY = "/assets/plotly.min.js"
_EARLY = (
    f'<link rel="prefetch" as="script" href=".{LIBRARY}?v={plotly.__version__}" '
    f"data-chart-library><script>{Path(__file__).with_name('early.js').read_text()}</script>"
)
"""In the document's head."""


def routes() -> list[Route]:
    """For the console's server: the document at each page's address, and the library."""
    pages = [entry.name for entries in present().values() for entry in entries]
    documents = [Route(address(name), _document, methods=["GET"]) for name in pages]
    return [*documents, Route(LIBRARY, _library, methods=["GET"])]


async def _document(_request: Request) -> Response:
    return HTMLResponse(document(), headers={"Cache-Control": "no-cache"})


@lru_cache(maxsize=1)
def document() -> str:
    """Streamlit's document with the library in it; as it is, where it has another shape."""
    index = Path(get_static_dir()) / "index.html"
    return index.read_text(encoding="utf-8").replace("</head>", f"{_EARLY}</head>", 1)


async def _library(request: Request) -> Response:
    """Its address carries the version, so it may be kept for long."""
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(PLOTLY_JS, media_type="text/javascript", headers=headers)
    packed = await run_in_threadpool(packed_library)
    headers["Content-Encoding"] = "gzip"
    return Response(packed, media_type="text/javascript", headers=headers)


@lru_cache(maxsize=1)
def packed_library() -> bytes:
    """The library as it travels, packed once a process: that takes a fifth of a second."""
    return gzip.compress(PLOTLY_JS.read_bytes(), 6, mtime=0)
