"""`conductor doctor`: is everything here, reachable, and of one mind? One check a line."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from core.engines.probe import EngineProbe, make_client
from core.engines.registry import adapter
from core.errors import BadRequest, ConductorError
from core.launcher import require_free
from core.prompt import Prompts
from core.settings import NodeSettings, Settings
from core.wiring import make_prompts, start_tunables
from storage import migrate

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `level` is ok, note or failed; `detail` says what was seen."""

    name: str
    level: str
    detail: str

    @property
    def failed(self) -> bool:
        """Whether something has to be mended before traffic may come."""
        return self.level == "failed"

    @property
    def colour(self) -> str:
        """The level's colour in a table."""
        return {"ok": "green", "note": "yellow"}.get(self.level, "red")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


async def checks(settings: Settings) -> list[Check]:
    """Every check, in the order an operator would make them."""
    found = [*_local(settings)]
    if not settings.nodes:
        detail = "no [[nodes]] in the settings: `conductor up` starts an emulated fleet"
        return [*found, Check("nodes", "note", detail)]
    try:
        prompts = make_prompts(settings)
    except ConductorError as e:
        found.append(Check("tokenizers", "failed", e.message))
        prompts = Prompts({})
    async with make_client(timeout_s=_TIMEOUT_S) as client:
        nodes = [_node(node, client, prompts) for node in settings.nodes]
        try:
            lists = await asyncio.gather(*nodes)
        finally:
            prompts.close()
    return found + [check for several in lists for check in several]


def _local(settings: Settings) -> Iterator[Check]:
    yield Check("python", "ok", sys.version.split()[0])
    for module in ("streamlit", "plotly", "zmq", "uvloop"):
        there = importlib.util.find_spec(module) is not None
        yield Check(f"package {module}", "ok" if there else "failed", "" if there else "missing")
    yield _tried("tunables", lambda: f"policy {start_tunables(settings).policy}")
    yield _tried("state_dir", lambda: _state_dir(settings.state_dir))
    yield _tried("database", lambda: _database(settings))
    for what, address in (("server", settings.server), ("console", settings.console)):
        yield _port(what, address.host, address.port)
    if settings.history.port:
        yield _port("history", settings.server.host, settings.history.port)


def _tried(name: str, act: Any) -> Check:
    try:
        return Check(name, "ok", act())
    except ConductorError as e:
        return Check(name, "failed", e.message)


def _state_dir(folder: Path) -> str:
    """What a start would find; nothing is made."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is no folder" if not there.is_dir() else "is not writable by this user"
        raise BadRequest(f"{there} {what}: neither records nor the first token could be kept")
    return str(folder) if there == folder.absolute() else f"{folder} will be created"


def _database(settings: Settings) -> str:
    url = settings.database
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).exists():
        return f"{url} will be created at the first start"
    version, newest = migrate.current(url), migrate.head()
    migrate.check_known(version)
    return f"{url} at schema {version}" + ("" if version == newest else f", newest is {newest}")


def _port(what: str, host: str, port: int) -> Check:
    try:
        require_free(host, port, what=what)
    except ConductorError:
        return Check(f"{what} address", "note", f"{host}:{port} is in use (running already?)")
    return Check(f"{what} address", "ok", f"{host}:{port} is free")


async def _node(node: NodeSettings, client: httpx.AsyncClient, prompts: Prompts) -> list[Check]:
    """Reachability, models, events and tokenizer parity of one node."""
    spec, name = node.spec(), f"node {node.id}"
    probe = EngineProbe(spec, adapter(spec.engine), client)
    try:
        seen = await probe.discover()
        reading = await probe.scrape()
    except ConductorError as e:
        return [Check(name, "failed", f"{spec.url}: {e.message}")]
    models = spec.models or seen.models
    capacity = seen.kv_capacity_tokens or reading.telemetry.kv_capacity_tokens
    block = seen.block_size or reading.telemetry.block_size
    out = [
        Check(name, "ok", f"{spec.url} serves {', '.join(models)}; block {block}, KV {capacity}")
    ]
    events = spec.events or seen.events.get(spec.dp_rank or 0)
    if events and node.events != "off":
        out.append(Check(f"{name} events", "ok", f"KV events at {events.live}"))
    else:
        why = "KV events are off" if node.events == "off" else "no KV events"
        out.append(Check(f"{name} events", "note", f"{why}: routing history is used instead"))
    out += [Check(f"{name} note", "note", note) for note in seen.notes]
    return out + [await _parity(name, probe, model, prompts) for model in models]


async def _parity(name: str, probe: EngineProbe, model: str, prompts: Prompts) -> Check:
    label = f"{name} tokens of {model}"
    if prompts.tokenizer(model) is None:
        return Check(label, "note", "no tokenizer_dir for the model: the engine is asked instead")
    try:
        parity = await probe.parity(model, prompts.local_ids)
    except ConductorError as e:
        return Check(label, "failed", e.message)
    if parity.mismatches:
        return Check(label, "failed", f"differ from the engine's: {parity.mismatches[0]}")
    return Check(label, "ok", f"{parity.compared} prompts give the engine's own ids")
