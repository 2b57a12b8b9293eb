"""`conductor up`: the whole product in one command, on this machine.

Starts, in order: an emulated fleet (where the settings name no nodes), the service, the console,
and gentle traffic. Prints the two addresses, waits, and stops everything.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from core.admin_call import print_error
from core.domain import Role
from core.errors import ConductorError
from core.identity import admin_file
from core.launcher import Processes, StopSignal, answers, require_free, wait_until
from core.settings import EmulationSettings, Settings

_ENGINE_START_S = 30.0
_SERVICE_START_S = 60.0
_CONSOLE_START_S = 90.0
_WATCH_S = 0.5


@dataclass(frozen=True, slots=True)
class Planned:
    """One emulated engine to start."""

    name: str
    role: Role


def run_up(settings: Settings, config: Path | None) -> int:
    """Run until Ctrl-C or SIGTERM (0), or until a part dies (1)."""
    out = Console(stderr=True, highlight=False)
    stop = StopSignal()
    stop.listen(signal.SIGINT, signal.SIGTERM)
    server, console = settings.server, settings.console
    require_free(server.host, server.port, what="server")
    require_free(console.host, console.port, what="console")
    with Processes(settings.state_dir / "logs") as processes:
        try:
            _start_all(processes, settings, config, out, stop)
        except ConductorError as e:
            if stop.is_set():
                return 0
            print_error(e.message)
            return 1
        code = _watch(processes, stop, out)
        out.print("stopping ...")
    return code


def planned_engines(e: EmulationSettings) -> list[Planned]:
    """The emulated fleet: prefill nodes, then decode nodes, then nodes that do both."""
    counts = ((Role.PREFILL, e.prefill), (Role.DECODE, e.decode), (Role.BOTH, e.both))
    return [Planned(f"{role.value}-{i + 1}", role) for role, n in counts for i in range(n)]


def _start_all(
    processes: Processes,
    settings: Settings,
    config: Path | None,
    out: Console,
    stop: StopSignal,
) -> None:
    emulate = not settings.nodes
    if emulate:
        out.print(f"starting {len(planned_engines(settings.emulation))} emulated engines ...")
        config = _start_engines(processes, settings)
    if stop.is_set():
        return
    out.print("starting the service and the console ...")
    url = _url(settings.server.host, settings.server.port)
    console_url = _url(settings.console.host, settings.console.port)
    given = ["--config", str(config)] if config else []
    service = processes.start("service", [*_conductor(), "serve", *given])
    history = _history_url(settings, out)
    read = ["--history-url", history] if history else []
    console = processes.start("console", [*_conductor(), "console", *given, "--url", url, *read])
    wait_until(
        lambda: stop.is_set() or answers(f"{url}/health"),
        service,
        timeout_s=_SERVICE_START_S,
        what="answer to /health",
    )
    wait_until(
        lambda: stop.is_set() or answers(f"{console_url}/_stcore/health"),
        console,
        timeout_s=_CONSOLE_START_S,
        what="answer to its health check",
    )
    if history and not stop.is_set():  # once the service has brought the schema up to date
        processes.start("history", [*_conductor(), "serve", "--history-only", *given])
    rate = settings.emulation.requests_per_s
    if emulate and rate > 0 and not stop.is_set():
        traffic = ["--url", url, "--model", settings.emulation.model, "--rate", str(rate)]
        processes.start("workload", [*_conductor(), "workload", *traffic])
    if not stop.is_set():
        print(f"service  {url}\nconsole  {console_url}", flush=True)
        token = admin_file.read(settings.state_dir)
        if token is not None:
            print(f"sign in  {console_url}/sign-in?token={token}", flush=True)
        out.print("Ctrl-C stops everything")


def _history_url(settings: Settings, out: Console) -> str:
    """Where stored records are read while the service is down; empty where nothing may listen."""
    host, port = settings.server.host, settings.history.port
    if not port:
        return ""
    try:
        require_free(host, port, what="history")
    except ConductorError as e:
        out.print(f"no history while the service is down: {e.message}", markup=False)
        return ""
    return _url(host, port)


def _start_engines(processes: Processes, settings: Settings) -> Path:
    """Start the emulated fleet and write the configuration that names it."""
    folder = settings.state_dir / "emulation"
    folder.mkdir(parents=True, exist_ok=True)
    children = []
    for i, engine in enumerate(planned_engines(settings.emulation)):
        state = folder / f"{engine.name}.json"
        state.unlink(missing_ok=True)
        argv = _engine_argv(settings.emulation, engine, state, seed=i)
        children.append((engine, state, processes.start(engine.name, argv)))
    nodes: list[dict[str, Any]] = []
    for engine, state, child in children:
        wait_until(state.exists, child, timeout_s=_ENGINE_START_S, what="its address")
        nodes.append(_node(settings.emulation, engine, json.loads(state.read_text())))
    path = folder / "settings.json"
    document = settings.model_dump(mode="json", exclude_defaults=True)
    # Emulated engines share this machine's cores with everything else: when it is slow, requests
    # wait rather than being refused by what that slowness predicts.
    tunables = {"admission.mode": "off", **settings.tunable_changes()}
    document |= {"nodes": nodes, "tunables": tunables}
    if settings.auth.admin_token is not None:
        document["auth"]["admin_token"] = settings.auth.admin_token.get_secret_value()
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(json.dumps(document, indent=2))
    return path


def _engine_argv(e: EmulationSettings, engine: Planned, state: Path, *, seed: int) -> list[str]:
    options = {
        "name": engine.name,
        "role": engine.role.value,
        "model": e.model,
        "port": 0,
        "block-size": e.block_size,
        "kv-tokens": e.kv_tokens,
        "profile": e.profile,
        "time-scale": e.time_scale,
        "tick-ms": e.tick_ms,
        "seed": seed,
        "state-file": state,
    }
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [sys.executable, "-m", "core.engines.emulated", *flags]


def _node(e: EmulationSettings, engine: Planned, state: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": engine.name,
        "url": state["url"],
        "engine": "emulated",
        "role": engine.role.value,
        "block_size": e.block_size,
        "profile": e.profile,
        "speed": e.time_scale,
        "kv_transfer": "nixl",
        "links": ["roce"],
    }


def _conductor() -> list[str]:
    return [sys.executable, "-m", "core.cli"]


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _watch(processes: Processes, stop: StopSignal, out: Console) -> int:
    """Wait for a signal. A service or console that dies ends everything, with its last words; with
    stored records at hand the console stays open without the service."""
    told: set[str] = set()
    history = any(child.name == "history" for child in processes.children)
    while not stop.wait(_WATCH_S):
        for child in processes.dead():
            if child.name in told:
                continue
            told.add(child.name)
            code = child.process.returncode
            out.print(f"[red]{child.name} ended with code {code}[/]; {child.log} ends with:")
            out.print(child.tail(), markup=False)
            if child.name == "console" or (child.name == "service" and not history):
                return 1
            if child.name == "service":
                out.print("the console goes on with stored records; Ctrl-C stops everything")
    return 1 if "service" in told else 0
