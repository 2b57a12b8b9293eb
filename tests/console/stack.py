"""The product as processes for the console's tests: emulated engines, service, console."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx
from oidc_provider import CLIENT, OidcProvider

from core.launcher import Child, Processes, answers, wait_until
from dashboard.launch import streamlit_command

MODEL = "demo"
START_S = 90.0
_SECRETS = """[auth]
redirect_uri = "{console}/oauth2callback"
cookie_secret = "a secret for the tests of signing in"
client_id = "{client}"
client_secret = "none"
server_metadata_url = "{issuer}/.well-known/openid-configuration"
expose_tokens = ["id"]
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stack:
    """Engines with the given roles, a service that knows them, and a console on it."""

    def __init__(
        self,
        folder: Path,
        *,
        roles: Sequence[str] = (),
        console: bool = True,
        speed: float = 2.0,
        provider: OidcProvider | None = None,
        kv_tokens: int | None = None,
    ) -> None:
        self._provider = provider
        self._folder = folder
        self._roles = roles
        self._console = console
        self._speed = speed
        self._kv_tokens = kv_tokens
        self._processes = Processes(folder / "logs")
        self.service: Child | None = None
        self.engines: dict[str, Child] = {}
        self.url = f"http://127.0.0.1:{free_port()}"
        self.console_url = f"http://127.0.0.1:{free_port()}"
        self.history_url = f"http://127.0.0.1:{free_port()}"
        self._history: Child | None = None

    def __enter__(self) -> Self:
        self._processes.__enter__()
        try:
            nodes = [self._engine(i, role) for i, role in enumerate(self._roles)]
            self._write_settings(nodes)
            self.start_service()
            if self._console:
                self._start_console()
        except BaseException:
            self._processes.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.signal_service(signal.SIGCONT)
        self._processes.stop()

    def start_service(self) -> None:
        """Start it (again) at the same address, and wait until it has seen its nodes."""
        config = str(self._folder / "settings.json")
        argv = [sys.executable, "-m", "core.cli", "serve", "--config", config]
        self.service = self._processes.start("service", argv)
        path = "/health/ready" if self._roles else "/health/live"
        wait_until(lambda: answers(self.url + path), self.service, timeout_s=START_S, what=path)

    def start_history(self) -> None:
        """Start the read-only instance over the same records; once is enough."""
        if self._history is None:
            config = str(self._folder / "settings.json")
            argv = [sys.executable, "-m", "core.cli", "serve", "--history-only", "--config", config]
            self._history = self._processes.start("history", argv)
            live = f"{self.history_url}/health/live"
            wait_until(lambda: answers(live), self._history, timeout_s=START_S, what=live)

    def stop_service(self) -> None:
        """End it at once, as a crash would."""
        assert self.service is not None
        self.service.process.kill()
        self.service.process.wait()

    def signal_service(self, number: signal.Signals) -> None:
        """Send a signal, for instance SIGSTOP to make it hang."""
        if self.service is not None and self.service.process.poll() is None:
            os.kill(self.service.process.pid, number)

    def send(self, count: int, *, base: int = 0, tenant: str = "team-a", tokens: int = 4) -> None:
        """Send completions whose prompts share their first 640 tokens; all must succeed."""
        with httpx.Client(base_url=self.url, timeout=60, trust_env=False) as client:
            for i in range(count):
                prompt = [*range(100 + base, 740 + base), *[200 + (base + i) % 50] * 40]
                body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": True}
                answer = client.post(
                    "/v1/completions", json=body, headers={"x-conductor-tenant": tenant}
                )
                assert answer.status_code == 200, answer.text

    def start_workload(self, *, rate: float, seed: int) -> None:
        """Seeded chat traffic until the stack ends."""
        argv = [sys.executable, "-m", "core.cli", "workload", "--url", self.url]
        argv += ["--model", MODEL, "--rate", str(rate), "--seed", str(seed)]
        self._processes.start("workload", argv)

    def fault(self, node: str, **faults: Any) -> None:
        """Make an engine misbehave; what it takes is in core/engines/emulated/faults.py."""
        url = json.loads((self._folder / f"{node}.json").read_text())["url"]
        answer = httpx.post(f"{url}/emulated/faults", json=faults, trust_env=False)
        assert answer.status_code == 200, answer.text

    def get(self, path: str, **params: Any) -> Any:
        """An answer of the admin API."""
        url = f"{self.url}/admin/v1{path}"
        answer = httpx.get(url, params=params, trust_env=False, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _engine(self, i: int, role: str) -> dict[str, Any]:
        name = f"{role}-{i + 1}"
        state = self._folder / f"{name}.json"
        argv = [
            sys.executable, "-m", "core.engines.emulated", "--name", name, "--role", role,
            "--model", MODEL, "--port", "0", "--events-port", "0", "--replay-port", "0",
            "--profile", "tiny-emulated", "--time-scale", str(self._speed),
            "--state-file", str(state),
        ]  # fmt: skip
        if self._kv_tokens is not None:
            argv += ["--kv-tokens", str(self._kv_tokens)]
        child = self._processes.start(name, argv)
        self.engines[name] = child
        wait_until(state.exists, child, timeout_s=START_S, what="its address")
        return {
            "id": name, "url": json.loads(state.read_text())["url"], "engine": "emulated",
            "role": role, "profile": "tiny-emulated", "speed": self._speed, "kv_transfer": "nixl",
            "links": ["roce"], "rack": f"rack-{'ab'[i % 2]}", "zone": "z1",
        }  # fmt: skip

    def _write_settings(self, nodes: list[dict[str, Any]]) -> None:
        host, _, port = self.url.removeprefix("http://").partition(":")
        settings: dict[str, Any] = {
            "server": {"host": host, "port": int(port)},
            "history": {"port": int(self.history_url.rpartition(":")[2])},
            "state_dir": str(self._folder),
            "limits": {"drain_s": 0.2},
            "auth": {"anonymous_role": "admin"},
            "records": {"keep_prompts": True},
            "nodes": nodes,
        }
        if self._provider is not None:
            oidc = {"issuer": self._provider.issuer, "client_id": CLIENT}
            settings["auth"]["oidc"] = {**oidc, "roles": {"sre": "operator"}}
        (self._folder / "settings.json").write_text(json.dumps(settings))

    def _start_console(self) -> None:
        host, _, port = self.console_url.removeprefix("http://").partition(":")
        argv, env = streamlit_command(host=host, port=int(port), api_url=self.url)
        if self._provider is not None:
            secrets = self._folder / "secrets.toml"
            secrets.write_text(_SECRETS.format(
                console=self.console_url, client=CLIENT, issuer=self._provider.issuer
            ))  # fmt: skip
            argv += ["--secrets.files", str(secrets)]
        child = self._processes.start("console", argv, env=env)
        health = f"{self.console_url}/_stcore/health"
        wait_until(lambda: answers(health), child, timeout_s=START_S, what="health")
