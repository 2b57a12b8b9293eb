"""A running product for the console's benchmarks: engines, service, console and traffic."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from core.launcher import Child, Processes, answers, wait_until
from dashboard.launch import streamlit_command
from tests.bench import elsewhere
from tests.bench.bench_gateway import free_port
from tests.bench.engine_host import MODEL

START_S = 900.0
PROBES = {"interval_s": 10.0, "timeout_s": 10.0, "scrape_interval_s": 4.0}
"""Rarer and more patient than by default: here the engines share the service's cores."""


@dataclass(slots=True)
class World:
    """Addresses and processes of what runs."""

    folder: Path
    processes: Processes
    url: str
    console_url: str = ""
    service: Child | None = None
    console: Child | None = None

    @property
    def console_process(self) -> psutil.Process:
        """Of the console; it must have been started."""
        assert self.console is not None
        return psutil.Process(self.console.process.pid)

    def state(self) -> dict[str, Any]:
        """GET /state."""
        found: dict[str, Any] = self.get("/state")
        return found

    def get(self, path: str, **params: str) -> Any:
        """An answer of the admin API."""
        address = f"{self.url}/admin/v1{path}"
        answer = httpx.get(address, params=params, trust_env=False, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def tokens(self, count: int) -> list[str]:
        """New tokens of so many viewers."""
        return [self._token(f"viewer-{number}") for number in range(count)]

    def _token(self, name: str) -> str:
        asked = {"name": name, "role": "viewer", "reason": "a reader of the benchmark"}
        address = f"{self.url}/admin/v1/tokens"
        answer = httpx.post(address, json=asked, trust_env=False, timeout=60)
        answer.raise_for_status()
        return str(answer.json()["token"])

    def start_console(self, **env: str) -> None:
        """Start a console, the former one being gone."""
        port = free_port()
        argv, own = streamlit_command(host="127.0.0.1", port=port, api_url=self.url)
        self.console = self.processes.start("console", argv, env=own | env)
        self.console_url = f"http://127.0.0.1:{port}"
        health = f"{self.console_url}/_stcore/health"
        wait_until(lambda: answers(health), self.console, timeout_s=START_S, what="health")

    def stop_console(self) -> None:
        """End the console that runs."""
        assert self.console is not None
        self.console.process.terminate()
        self.console.process.wait(20)

    def start_traffic(self, *, per_s: float, seed: int = 7) -> None:
        """Seeded conversations until the end."""
        argv = [*elsewhere.COMMAND, sys.executable, "-m", "core.cli", "workload", "--url", self.url]
        argv += ["--model", MODEL, "--rate", str(per_s), "--seed", str(seed)]
        self.processes.start("traffic", argv)


@contextmanager
def world(*, nodes: int, blocks: int = 0, database: str = "") -> Iterator[World]:
    """Engines and a service that knows them and has learned `blocks` of them.

    database: URL of a database that holds records already; empty for a new one.
    """
    with tempfile.TemporaryDirectory(prefix="conductor-bench-") as name:
        folder = Path(name)
        with Processes(folder / "logs") as processes:
            fleet = _engines(processes, folder, nodes, blocks)
            made = World(folder, processes, f"http://127.0.0.1:{free_port()}")
            _start_service(made, fleet, database)
            _wait_for(made, nodes, blocks)
            yield made


def _engines(processes: Processes, folder: Path, nodes: int, blocks: int) -> list[dict[str, Any]]:
    out = folder / "fleet.json"
    argv = [*elsewhere.COMMAND, sys.executable, "-m", "tests.bench.engine_host"]
    argv += ["--nodes", str(nodes), "--blocks", str(blocks), "--out", str(out)]
    child = processes.start("engines", argv)
    wait_until(out.exists, child, timeout_s=START_S, what="its engines")
    found: list[dict[str, Any]] = json.loads(out.read_text())["engines"]
    return found


def _start_service(made: World, fleet: list[dict[str, Any]], database: str) -> None:
    settings = {
        "server": {"port": int(made.url.rpartition(":")[2])},
        "state_dir": str(made.folder / "state"),
        "auth": {"anonymous_role": "admin"},
        "limits": {"drain_s": 0.2},
        "log_level": "error",
        "probe": PROBES,
        "nodes": [
            {
                "id": e["name"], "url": e["url"], "engine": "emulated", "role": e["role"],
                "profile": e["profile"], "rack": e["rack"], "zone": "z1", "kv_transfer": "nixl",
                "links": ["roce"],
            }
            for e in fleet
        ],
    }  # fmt: skip
    if database:
        settings["database_url"] = database
    config = made.folder / "settings.json"
    config.write_text(json.dumps(settings))
    argv = [sys.executable, "-m", "core.cli", "serve", "--config", str(config)]
    made.service = made.processes.start("service", argv)
    ready = f"{made.url}/health/ready"
    wait_until(lambda: answers(ready), made.service, timeout_s=START_S, what="readiness")


def _wait_for(made: World, nodes: int, blocks: int) -> None:
    """Until every node takes requests and the index holds what was announced."""
    assert made.service is not None
    least = int(blocks * 0.99)

    def there() -> bool:
        time.sleep(0.5)
        eligible = int(made.state()["totals"]["eligible"])
        return eligible == nodes and (not least or indexed(made) >= least)

    wait_until(there, made.service, timeout_s=START_S, what=f"{nodes} nodes and {least:,} blocks")


def indexed(made: World) -> int:
    """Distinct blocks in the index, as the service's own metrics say."""
    text = httpx.get(f"{made.url}/metrics", trust_env=False, timeout=60).text
    values = [line.split()[-1] for line in text.splitlines() if line.startswith(INDEX_METRIC)]
    return sum(int(float(value)) for value in values)


INDEX_METRIC = "conductor_index_entries"


def machine() -> str:
    """What else the machine did: a figure without it says little."""
    one, five, _ = os.getloadavg()
    return f"{os.cpu_count()} cores, load {one:.1f} (1 min) {five:.1f} (5 min)"
