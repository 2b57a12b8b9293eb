"""Replays a trace as real HTTP requests and measures what a client sees.

Prompts are token ids made from the trace's block ids, so that prompts share prefixes exactly as
`hash_ids` say. Each run salts its tokens (unless a seed fixes them), so that a fleet still warm
from an earlier run does not flatter this one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import orjson

from core.errors import EngineUnreachable, NotFound
from core.gateway.sse import SseFramer, event_data
from core.simulation.trace_stats import infinite_reuse, summary
from core.simulation.traces import Trace, TraceRequest

LOWEST_TOKEN = 100
_OK = 200
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=180.0)


@dataclass(slots=True)
class Seen:
    """One request as the client saw it; times in seconds."""

    prompt_tokens: int
    status: int = 0
    error: str = ""
    ttft_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    cached_tokens: int | None = None
    node: str = ""
    decode_node: str = ""

    @property
    def tbt_s(self) -> float | None:
        """Mean of the longest 10 % of the token gaps (F)."""
        if not self.gaps_s:
            return None
        longest = sorted(self.gaps_s)[-max(len(self.gaps_s) // 10, 1) :]
        return sum(longest) / len(longest)


class PromptMaker:
    """Token ids for block ids: equal ids give equal tokens, different ids different ones."""

    def __init__(self, block_tokens: int, *, salt: int, vocabulary: int) -> None:
        self._steps = np.arange(block_tokens, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._salt = salt
        self._span = np.uint64(vocabulary - LOWEST_TOKEN)

    def tokens(self, r: TraceRequest) -> np.ndarray:
        """The prompt of a trace request, uint32 of length `prompt_tokens`."""
        parts = [self._block(block) for block in r.hash_ids] or [self._block(0)]
        whole = np.concatenate(parts)
        if len(whole) < r.prompt_tokens:
            whole = np.resize(whole, r.prompt_tokens)
        return whole[: r.prompt_tokens]

    def _block(self, block: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            start = np.uint64((block * 0xBF58476D1CE4E5B9 + self._salt) & (2**64 - 1))
            mixed = (self._steps + start) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
        return (mixed % self._span).astype(np.uint32) + np.uint32(LOWEST_TOKEN)


class Replay:
    """Sends a trace to `url` at `speed` times its pace. `stop()` ends it early and cleanly."""

    def __init__(
        self,
        trace: Trace,
        url: str,
        *,
        speed: float = 1.0,
        model: str | None = None,
        salt: int | None = None,
        vocabulary: int = 2000,
        output_tokens_max: int | None = None,
        api_key: str | None = None,
    ) -> None:
        self._trace = trace
        self._url = url.rstrip("/")
        self._speed = speed
        self._model = model
        chosen = time.time_ns() if salt is None else salt
        self._prompts = PromptMaker(trace.block_tokens, salt=chosen, vocabulary=vocabulary)
        self._output_max = output_tokens_max
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._stopping = asyncio.Event()
        self.seen: list[Seen] = []

    def stop(self) -> None:
        """Send nothing more; requests in flight are dropped."""
        self._stopping.set()

    async def run(self, progress: Callable[[int], object] = bool) -> dict[str, Any]:
        """Replay everything and return the report. Raises EngineUnreachable, NotFound."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        async with aiohttp.ClientSession(
            connector=connector, timeout=_TIMEOUT, headers=self._headers, auto_decompress=False
        ) as session:
            model = self._model or await self._first_model(session)
            began = time.perf_counter()
            tasks: set[asyncio.Task[None]] = set()

            def ended(task: asyncio.Task[None]) -> None:
                tasks.discard(task)
                progress(1)

            for request in self._trace.requests:
                due = began + request.arrival_s / self._speed
                if await self._wait(due - time.perf_counter()):
                    break
                task = asyncio.create_task(self._one(session, model, request))
                tasks.add(task)
                task.add_done_callback(ended)
            await self._finish(tasks)
        return report(self.seen, self._trace, time.perf_counter() - began)

    async def _wait(self, seconds: float) -> bool:
        """Wait for the next arrival; True when told to stop."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return self._stopping.is_set()
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _finish(self, tasks: set[asyncio.Task[None]]) -> None:
        stop = asyncio.create_task(self._stopping.wait())
        while tasks and not self._stopping.is_set():
            await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, stop, return_exceptions=True)

    async def _first_model(self, session: aiohttp.ClientSession) -> str:
        try:
            async with session.get(f"{self._url}/v1/models") as answer:
                body = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as e:
            raise EngineUnreachable(f"url: nothing answers at {self._url} ({e})") from None
        models = [m["id"] for m in body.get("data", [])]
        if not models:
            raise NotFound(f"{self._url} serves no model yet", field="url")
        return str(models[0])

    async def _one(self, session: aiohttp.ClientSession, model: str, r: TraceRequest) -> None:
        seen = Seen(r.prompt_tokens)
        self.seen.append(seen)
        output = max(r.output_tokens, 1)
        if self._output_max is not None:
            output = min(output, self._output_max)
        body = orjson.dumps(
            {
                "model": model,
                "prompt": self._prompts.tokens(r),
                "max_tokens": output,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )
        headers = {"content-type": "application/json"}
        if r.session:
            headers["x-session-id"] = r.session
        try:
            await self._exchange(session, body, headers, seen)
        except asyncio.CancelledError:
            seen.error = seen.error or "stopped"
            raise
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as e:
            # A ValueError is an answer that does not parse.
            seen.error = f"{type(e).__name__}: {e}"

    async def _exchange(
        self, session: aiohttp.ClientSession, body: bytes, headers: dict[str, str], seen: Seen
    ) -> None:
        sent = time.perf_counter()
        url = f"{self._url}/v1/completions"
        async with session.post(url, data=body, headers=headers) as answer:
            seen.status = answer.status
            seen.node = answer.headers.get("x-conductor-node", "")
            seen.decode_node = answer.headers.get("x-conductor-decode-node", "")
            reported = answer.headers.get("x-conductor-cached-tokens")
            if answer.status != _OK:
                text = (await answer.read())[:300].decode("utf-8", "replace")
                seen.error = f"HTTP {answer.status}: {text}"
                return
            await self._read(answer, sent, seen)
            if reported is not None:
                seen.cached_tokens = int(reported)

    async def _read(self, answer: aiohttp.ClientResponse, sent: float, seen: Seen) -> None:
        framer, last, done = SseFramer(), sent, False
        async for part in answer.content.iter_any():
            now = time.perf_counter()
            tokens, done = _scan(framer.feed(part), seen, done)
            if not tokens:
                continue
            if seen.ttft_s is None:
                seen.ttft_s = now - sent
            else:
                seen.gaps_s.append(now - last)
            seen.gaps_s += [0.0] * (tokens - 1)
            last = now
        if not done and not seen.error:
            seen.error = "the stream ended without [DONE]"


def _scan(events: list[bytes], seen: Seen, done: bool) -> tuple[int, bool]:
    """Tokens among `events`, and whether the stream has said that it is complete."""
    tokens = 0
    for event in events:
        data = event_data(event)
        if data == b"[DONE]":
            done = True
        elif _plain(data):
            tokens += 1
        elif data.startswith(b"{"):
            tokens += _take(orjson.loads(data), seen)
    return tokens, done


def _plain(data: bytes) -> bool:
    """Whether a chunk is a token and nothing else, so that it need not be parsed."""
    told = b'"usage"' in data and b'"usage":null' not in data
    return b'"choices":[{' in data and not told and b'"error"' not in data


def _take(chunk: dict[str, Any], seen: Seen) -> int:
    """1 where the chunk carries a token; notes usage and errors."""
    if "error" in chunk:
        seen.error = f"stream error: {chunk['error'].get('message', '')}"[:300]
        return 0
    usage = chunk.get("usage")
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            seen.cached_tokens = details["cached_tokens"]
    return 1 if chunk.get("choices") else 0


def report(seen: list[Seen], trace: Trace, wall_s: float) -> dict[str, Any]:
    """What the run shows; ratios over prompt tokens, per-node shares over requests.

    `reachable_hit_ratio` is what one cache that forgets nothing would reuse of the whole trace.
    """
    prompt = sum(s.prompt_tokens for s in seen)
    reachable, _, _ = infinite_reuse(trace)
    total = sum(r.prompt_tokens for r in trace.requests)
    nodes = Counter(s.node for s in seen if s.node)
    decode = Counter(s.decode_node for s in seen if s.decode_node)
    return {
        "requests": len(seen),
        "errors": sum(1 for s in seen if s.error),
        "rejected": sum(1 for s in seen if s.status == 429),
        "hit_ratio": _ratio(sum(s.cached_tokens or 0 for s in seen), prompt),
        "reachable_hit_ratio": _ratio(reachable, total),
        "hit_reported": sum(1 for s in seen if s.cached_tokens is not None),
        "ttft_s": summary(np.array([s.ttft_s for s in seen if s.ttft_s is not None])),
        "tbt_ms": summary(np.array([s.tbt_s * 1e3 for s in seen if s.tbt_s is not None])),
        "per_node": {node: _ratio(n, len(seen)) for node, n in sorted(nodes.items())},
        "per_decode_node": {node: _ratio(n, len(seen)) for node, n in sorted(decode.items())},
        "wall_s": round(wall_s, 3),
        "error_samples": _samples(seen),
    }


def _samples(seen: list[Seen]) -> list[str]:
    """The most frequent error texts, at most five."""
    return [text for text, _ in Counter(s.error for s in seen if s.error).most_common(5)]


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def report_lines(r: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The report as label and text, for a table."""
    yield "requests", f"{r['requests']:,}"
    yield "errors", f"{r['errors']:,} (rejected {r['rejected']:,})"
    yield "wall time", f"{r['wall_s']:.1f} s"
    for label, key, unit, scale in (("TTFT", "ttft_s", "ms", 1e3), ("TBT", "tbt_ms", "ms", 1.0)):
        v = {name: value * scale for name, value in r[key].items()}
        yield (
            f"{label} p50 / p90 / p99",
            f"{v['p50']:.1f} / {v['p90']:.1f} / {v['p99']:.1f} {unit}",
        )
    yield "reuse achieved", f"{r['hit_ratio']:.1%} of prompt tokens, as engines report"
    yield "reuse reachable", f"{r['reachable_hit_ratio']:.1%} (one endless cache)"
    for node, share in r["per_node"].items():
        yield f"prefill on {node}", f"{share:.1%}"
    for node, share in r["per_decode_node"].items():
        yield f"decode on {node}", f"{share:.1%}"
    for text in r["error_samples"]:
        yield "error", text
