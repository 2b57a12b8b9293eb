"""The console's first page in a browser that nobody inspects.

A driver's inspector makes Chromium read the chart library's source twice, so that a page which
takes a second and a half says three. Here the page is watched by an extension, which reports by a
request of its own.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.bench.console_browser import ARGS, THERE, WAIT_MS, browser_path
from tests.bench.elsewhere import LIKE_CONSOLE

_MANIFEST = {
    "manifest_version": 3, "name": "arrival", "version": "1",
    "content_scripts": [
        {"matches": ["http://127.0.0.1/*"], "js": ["arrival.js"], "run_at": "document_start"}
    ],
}  # fmt: skip
_ARRIVAL = """{
  const there = THERE;
  const look = () => there()
    ? fetch('http://127.0.0.1:PORT/' + performance.now(), { mode: 'no-cors' })
    : requestAnimationFrame(look);
  requestAnimationFrame(look);
}"""


class Cold(NamedTuple):
    """The first page of an empty browser, in seconds."""

    took_s: float
    """From the address until the page is there."""
    ran_s: float
    """The page's main thread computed since it began, nan off Linux."""
    waited_s: float
    """It could have computed but had no core: a browser has a machine of its own elsewhere."""


def open_cold(url: str) -> Cold:
    """Open a page in a browser of its own, which competes with the console as an equal."""
    with _arrivals() as arrivals, tempfile.TemporaryDirectory(prefix="conductor-bench-") as at:
        extension = Path(at) / "extension"
        extension.mkdir()
        (extension / "manifest.json").write_text(json.dumps(_MANIFEST))
        script = _ARRIVAL.replace("THERE", THERE).replace("PORT", str(arrivals.server_port))
        (extension / "arrival.js").write_text(script)
        command = [
            *LIKE_CONSOLE, browser_path(), "--headless=new", *ARGS, "--window-size=1440,1300",
            f"--user-data-dir={at}/profile", f"--load-extension={extension}", url,
        ]  # fmt: skip
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            took_s = arrivals.wait()
            return Cold(took_s, *_main_thread(browser.pid))
        finally:
            _end(browser)


class _Arrivals(HTTPServer):
    """Hears of the first page that is there."""

    def __init__(self) -> None:
        self.heard = threading.Event()
        self.at_s = math.nan
        super().__init__(("127.0.0.1", 0), _Arrival)

    def wait(self) -> float:
        """Seconds from the page's address until it was there."""
        if not self.heard.wait(WAIT_MS / 1e3):
            raise TimeoutError(f"the page is not there after {WAIT_MS / 1e3:.0f} s")
        return self.at_s


class _Arrival(BaseHTTPRequestHandler):
    server: _Arrivals

    def do_GET(self) -> None:
        self.server.at_s = float(self.path.removeprefix("/")) / 1e3
        self.server.heard.set()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing between the figures."""


@contextmanager
def _arrivals() -> Iterator[_Arrivals]:
    with _Arrivals() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def _main_thread(browser: int) -> tuple[float, float]:
    """Seconds that the page's main thread ran, and waited for a core: its is the busiest of all."""
    times = [(math.nan, math.nan)]
    for process in psutil.Process(browser).children(recursive=True):
        with suppress(psutil.NoSuchProcess, OSError):
            if "--type=renderer" in process.cmdline():
                stat = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat")
                ran, waited, _ = stat.read_text().split()
                times.append((int(ran) / 1e9, int(waited) / 1e9))
    return max(times[1:] or times)


def _end(browser: subprocess.Popen[bytes]) -> None:
    all_of_it = [*psutil.Process(browser.pid).children(recursive=True), browser]
    for process in all_of_it:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    browser.wait(10)
    psutil.wait_procs([p for p in all_of_it if isinstance(p, psutil.Process)], timeout=10)
