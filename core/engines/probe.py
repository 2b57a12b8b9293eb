"""Asking one engine over HTTP: health, telemetry, discovery, tokens. Answers are bounded.

httpx, apart from the gateway's data plane, so that probes keep their own connections and
deadlines when traffic fills the pool.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlsplit

import httpx

from core.domain import NodeSpec, Telemetry
from core.engines.base import Discovery, EngineAdapter
from core.engines.guard import AddressGuard, GuardedTransport
from core.engines.health import Probe
from core.engines.parity import PROBES, Parity, Prompt, compare
from core.engines.pools import PoolPerEngine
from core.errors import EngineBroken, EngineFault, EngineTimeout, EngineUnreachable

ANSWER_BYTES_MAX = 1 << 20
_METRICS_EVERY = 4

Tokenizer = Callable[[str, Prompt], Sequence[int] | None]
"""(model, prompt) -> our token ids; None where we have no tokenizer for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One scrape: the gauges and which process they are of ("" where it does not tell)."""

    telemetry: Telemetry
    epoch: str


def make_client(
    *, timeout_s: float = 1.5, connections: int = 16, guard: AddressGuard | None = None
) -> httpx.AsyncClient:
    """The client all probes of a fleet share. Proxies of the environment are not used.

    connections: most at a time to one engine.
    guard: resolves and checks the nodes' names; by default addresses no node can have are refused.
    """
    limits = httpx.Limits(max_connections=connections, keepalive_expiry=30.0)
    certificates = httpx.create_ssl_context(trust_env=False)
    inner = PoolPerEngine(
        lambda: httpx.AsyncHTTPTransport(verify=certificates, limits=limits, trust_env=False)
    )
    return httpx.AsyncClient(
        transport=GuardedTransport(guard or AddressGuard(), inner),
        timeout=timeout_s,
        follow_redirects=False,
        trust_env=False,
    )


class EngineProbe:
    """HTTP questions to one node's engine."""

    def __init__(self, spec: NodeSpec, adapter: EngineAdapter, client: httpx.AsyncClient) -> None:
        self._spec = spec
        self._adapter = adapter
        self._client = client
        self._base = spec.url.rstrip("/")
        self._metrics_due = 0
        """Scrapes until the metrics page is read again, where a cheaper page tells the load."""
        self._last = Reading(telemetry=Telemetry(), epoch="")

    @property
    def host(self) -> str:
        """The node's host as we reach it."""
        return urlsplit(self._base).hostname or ""

    async def health(self, *, timeout_s: float) -> Probe:
        """One health check on a connection of its own, so that a refusal is seen as such."""
        try:
            answer = await self._client.get(
                self._base + self._adapter.health_path,
                timeout=timeout_s,
                headers={"connection": "close"},
            )
        except httpx.TimeoutException:
            return Probe.BAD
        except httpx.TransportError as error:
            return Probe.GONE if _refused(error) else Probe.CUT
        return Probe.GOOD if answer.status_code == 200 else Probe.BAD

    async def scrape(self, *, whole: bool = False) -> Reading:
        """Gauges and process identity; raises EngineFault where they cannot be read.

        Where a cheaper page has the load, the metrics page is read every few scrapes only, or
        when the `whole` picture is asked for: it takes an engine 10 to 50 ms to write.
        """
        adapter, rank = self._adapter, self._spec.dp_rank
        if whole or adapter.load_path is None or self._metrics_due <= 0:
            text = await self._page(adapter.metrics_path)
            telemetry = adapter.parse_metrics(text, dp_rank=rank)
            self._last = Reading(telemetry=telemetry, epoch=adapter.epoch(text))
            self._metrics_due = _METRICS_EVERY
        if adapter.load_path is None:
            return self._last
        self._metrics_due -= 1
        page = await self._page(adapter.load_path)
        load = adapter.parse_load(page.encode(), dp_rank=rank)
        return replace(self._last, telemetry=merged(self._last.telemetry, load))

    async def discover(self) -> Discovery:
        """What the engine says of itself; raises EngineFault where it does not list models."""
        first, *others = self._adapter.discovery_paths
        pages = {first: await self._page(first)}
        for path in others:
            try:
                pages[path] = await self._page(path)
            except EngineFault:
                continue
        return self._adapter.discover(pages, host=self.host)

    async def tokenize(self, model: str, prompt: Prompt) -> tuple[int, ...] | None:
        """The engine's own token ids; None where it does not tokenize."""
        body = self._adapter.tokenize_body(model, prompt)
        try:
            answer = await self._read("POST", self._adapter.tokenize_path, json=body)
        except EngineBroken:
            return None
        return self._adapter.parse_tokens(answer)

    async def parity(self, model: str, tokenizer: Tokenizer) -> Parity:
        """Compare our tokenization with the engine's on prompts where they tend to differ."""
        compared, mismatches = 0, []
        for prompt in PROBES:
            ours = tokenizer(model, prompt)
            theirs = None if ours is None else await self.tokenize(model, prompt)
            if ours is None or theirs is None:
                continue
            compared += 1
            if difference := compare(prompt, ours, theirs):
                mismatches.append(difference)
        return Parity(model=model, compared=compared, mismatches=tuple(mismatches))

    # ---- internals ------------------------------------------------------------------------

    async def _page(self, path: str) -> str:
        return (await self._read("GET", path)).decode("utf-8", "replace")

    async def _read(self, method: str, path: str, *, json: Any = None) -> bytes:
        """A 200 answer of bounded size, else the EngineFault that fits."""
        url = self._base + path
        try:
            async with self._client.stream(method, url, json=json) as answer:
                if answer.status_code != 200:
                    raise EngineBroken(f"{path} answered {answer.status_code}", field="status")
                return await _bounded(answer, path)
        except httpx.TimeoutException as error:
            raise EngineTimeout(f"{path} gave no answer in time") from error
        except httpx.HTTPError as error:
            raise EngineUnreachable(f"{path} failed: {type(error).__name__}") from error


async def _bounded(answer: httpx.Response, path: str) -> bytes:
    parts, size = [], 0
    async for part in answer.aiter_bytes():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise EngineBroken(f"{path} answered more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def merged(base: Telemetry, over: Telemetry | None) -> Telemetry:
    """`base` with everything `over` knows."""
    if over is None:
        return base
    known = {f.name: getattr(over, f.name) for f in fields(over)}
    return replace(base, **{k: v for k, v in known.items() if v is not None})


def _refused(error: BaseException | None) -> bool:
    """Whether a refused connection stands anywhere behind the error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
            return True
        if isinstance(error, ExceptionGroup):
            return any(_refused(e) for e in error.exceptions)
        error = error.__cause__ or error.__context__
    return False
