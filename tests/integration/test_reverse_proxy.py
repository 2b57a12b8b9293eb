"""The bundled reverse proxy before stand-ins of its upstreams; needs nginx on the machine.

Deadlines are a second here instead of ten, ports are free ones; the rest is the file as shipped.
"""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from record_cases import wait_for

from core.launcher import answers
from tests.integration.engine_fleet import free_port

NGINX = Path(__file__).resolve().parents[2] / "docker" / "nginx"

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx on this machine")


class Upstream(http.server.ThreadingHTTPServer):
    """Answers with its name; streams three events under /v1/stream, each when it is let."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.name = name
        self.headers_seen: list[dict[str, str]] = []
        self.go = threading.Semaphore(0)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.headers_seen.append(dict(self.headers))
        if self.path == "/v1/stream":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for number in range(3):
                self.wfile.write(b"data: %d\n\n" % number)
                self.server.go.acquire(timeout=20)
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("content-length", str(len(self.server.name)))
        self.end_headers()
        self.wfile.write(self.server.name.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_) -> None:
        pass


@contextmanager
def upstreams():
    made = [Upstream(name) for name in ("service", "console", "engine")]
    try:
        yield made
    finally:
        for server in made:
            server.shutdown()
            server.server_close()


@contextmanager
def proxy(folder: Path, *, service: str, console: str, engine: str = "", backup: bool = False):
    port = free_port()
    routes = folder / "backup"
    routes.mkdir(parents=True)
    for path in (NGINX / "backup").glob("*.conf") if backup else ():
        text = path.read_text().replace("http://engine-3:8000", engine)
        (routes / path.name).write_text(text)
    text = (NGINX / "nginx.conf").read_text()
    for old, new in (
        (" /tmp/", f" {folder}/"),
        ("listen 8080", f"listen 127.0.0.1:{port}"),
        ("http://service:8080", service),
        ("http://console:8501", console),
        ("/etc/nginx/backup", str(routes)),
        ("client_header_timeout 10s", "client_header_timeout 1s"),
        ("client_body_timeout 10s", "client_body_timeout 1s"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text(text)
    argv = ["nginx", "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/console-page"), 20.0)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def ask(port: int, path: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b""


def closed_after_s(port: int, text: bytes, *, drip: bytes = b"") -> float:
    """Seconds until the proxy gives up a client that says `text`, then drips."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(0.2)
        client.sendall(text)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 20.0:
            try:
                if drip:
                    client.sendall(drip)
                if not client.recv(1_000):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        return time.monotonic() - began_s


def test_routes_headers_deadlines_and_streams(tmp_path):
    with (
        upstreams() as (service, console, _),
        proxy(tmp_path / "proxy", service=service.url, console=console.url) as port,
    ):
        for path in ("/v1/models", "/admin/v1/state", "/health/ready"):
            assert ask(port, path) == (200, b"service")
        assert ask(port, "/v1/completions", b"x" * 100) == (200, b"service")
        assert ask(port, "/nodes") == (200, b"console")
        assert ask(port, "/metrics") == (404, b"")
        assert ask(port, "/v1/completions", b"x" * (9 << 20))[0] == 413
        for path, seen in (("/v1/models", service), ("/nodes", console)):
            ask(port, path, **{"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "gopher"})
            assert seen.headers_seen[-1]["X-Forwarded-For"] == "127.0.0.1"
            assert seen.headers_seen[-1]["X-Forwarded-Proto"] == "http"
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n1"
        assert closed_after_s(port, head) < 15.0
        assert closed_after_s(port, b"GET /v1/models HTTP/1.1\r\nHost: ", drip=b"x") < 15.0
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/stream", timeout=20) as stream:
            for number in range(3):  # each arrives before the next one is let go
                assert stream.readline() == b"data: %d\n" % number
                assert stream.readline() == b"\n"
                service.go.release()


def test_without_the_service_engines_answer_only_where_that_was_asked_for(tmp_path):
    nobody = f"http://127.0.0.1:{free_port()}"
    with upstreams() as (_, console, engine):
        where = {"service": nobody, "console": console.url, "engine": engine.url}
        with proxy(tmp_path / "closed", **where) as port:
            assert ask(port, "/v1/models")[0] == 502
        with proxy(tmp_path / "open", **where, backup=True) as port:
            assert ask(port, "/v1/models") == (200, b"engine")
            assert ask(port, "/v1/completions", b"x" * 100) == (200, b"engine")
            assert ask(port, "/admin/v1/state")[0] == 502
