"""Asking one engine over HTTP: health, telemetry, discovery, tokens. Answers are bounded.

httpx, apart from the gateway's data plane, so that probes keep their own connections and
deadlines when traffic fills the pool.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlsplit

import httpx

from core.domain import NodeSpec, Telemetry
from core.engines.base import Discovery, EngineAdapter
from core.engines.health import Probe
from core.engines.parity import PROBES, Parity, Prompt, compare
from core.errors import EngineBroken, EngineFault, EngineTimeout, EngineUnreachable

ANSWER_BYTES_MAX = 1 << 20

Tokenizer = Callable[[str, Prompt], Sequence[int] | None]
"""(model, prompt) -> our token ids; None where we have no tokenizer for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One scrape: the gauges and which process they are of ("" where it does not tell)."""

    telemetry: Telemetry
    epoch: str


def make_client(*, timeout_s: float = 1.5, connections: int = 512) -> httpx.AsyncClient:
    """The client all probes of a fleet share. Proxies of the environment are not used."""
    return httpx.AsyncClient(
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=connections, keepalive_expiry=30.0),
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
        self._filter: Mapping[str, Sequence[str]] | None = (
            {"name[]": adapter.metric_names} if adapter.metric_names else None
        )

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
        except httpx.TransportError as error:
            return Probe.GONE if _refused(error) else Probe.BAD
        return Probe.GOOD if answer.status_code == 200 else Probe.BAD

    async def scrape(self) -> Reading:
        """Gauges and process identity; raises EngineFault where the metrics cannot be read."""
        text = await self._metrics()
        rank = self._spec.dp_rank
        telemetry = self._adapter.parse_metrics(text, dp_rank=rank)
        if self._adapter.load_path is not None:
            try:
                page = await self._page(self._adapter.load_path)
            except EngineFault:
                page = ""
            telemetry = merged(telemetry, self._adapter.parse_load(page.encode(), dp_rank=rank))
        return Reading(telemetry=telemetry, epoch=self._adapter.epoch(text))

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

    async def _metrics(self) -> str:
        """The metrics page, filtered where the server can: 1 KB instead of 60."""
        path = self._adapter.metrics_path
        if self._filter is not None:
            page = await self._page(path, params=self._filter)
            if self._adapter.metric_names[0] in page:
                return page
            self._filter = None  # several processes share the page: it cannot be filtered
        return await self._page(path)

    async def _page(self, path: str, *, params: Any = None) -> str:
        return (await self._read("GET", path, params=params)).decode("utf-8", "replace")

    async def _read(self, method: str, path: str, *, params: Any = None, json: Any = None) -> bytes:
        """A 200 answer of bounded size, else the EngineFault that fits."""
        url = self._base + path
        try:
            async with self._client.stream(method, url, params=params, json=json) as answer:
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
