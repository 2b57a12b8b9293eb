"""The whole service in this process, and requests through its HTTP front."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvicorn

from core.domain import Health
from core.gateway.app import create_app
from core.gateway.service import Service
from core.settings import Settings
from core.wiring import running_service
from tests.engines.workload import Call


@dataclass(frozen=True)
class Answer:
    """What came back: the decision's headers, the engine's usage, the text."""

    status: int
    node: str
    decode_node: str
    match_tokens: int
    reachable_tokens: int
    prompt_tokens: int
    cached_tokens: int
    text: str
    problem: str = ""


@dataclass(frozen=True)
class Front:
    """The running service and a client of it."""

    service: Service
    url: str
    session: aiohttp.ClientSession

    async def call(self, call: Call) -> Answer:
        async with self.session.post(self.url + call.path, json=call.body) as answer:
            raw = await answer.read()
            parsed = _stream(raw) if call.body.get("stream") else orjson.loads(raw)
            head = answer.headers
            usage = parsed.get("usage") or {}
            details = usage.get("prompt_tokens_details") or {}
            return Answer(
                status=answer.status,
                node=head.get("x-conductor-node", ""),
                decode_node=head.get("x-conductor-decode-node", ""),
                match_tokens=int(head.get("x-conductor-match-tokens", -1)),
                reachable_tokens=int(head.get("x-conductor-reachable-tokens", -1)),
                prompt_tokens=usage.get("prompt_tokens", 0),
                cached_tokens=details.get("cached_tokens", -1),
                text=_text(parsed),
                problem="" if answer.status == 200 else raw.decode(),
            )

    async def healthy(self, nodes: Sequence[str], *, within_s: float = 60.0) -> None:
        """Wait until the nodes are healthy and their event streams complete."""
        conductor = self.service.conductor
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            missing = [
                n
                for n in nodes
                if conductor.fleet.health(n) is not Health.HEALTHY
                or conductor.trust.trust(conductor.fleet.slot(n)) != "exact"
            ]
            if not missing:
                return
            if asyncio.get_running_loop().time() > deadline:
                notes = {n: self.service.node_notes.get(n) for n in missing}
                raise AssertionError(f"not healthy within {within_s} s: {notes}")
            await asyncio.sleep(0.05)


def _stream(raw: bytes) -> dict[str, Any]:
    """A stream folded into one answer: texts joined, the last usage kept."""
    text, usage = "", None
    for event in raw.split(b"\n\n"):
        if not event.startswith(b"data: {"):
            continue
        chunk = orjson.loads(event[6:])
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", ()):
            text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return {"usage": usage, "choices": [{"text": text}]}


def _text(answer: dict[str, Any]) -> str:
    choices = answer.get("choices") or [{}]
    return choices[0].get("text") or (choices[0].get("message") or {}).get("content") or ""


@asynccontextmanager
async def front(
    nodes: Sequence[dict[str, Any]], *, model: Path, state: Path, **settings: Any
) -> AsyncIterator[Front]:
    """The service over `nodes`, with the tiny model's tokenizer, served on a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        made = Settings(
            state_dir=state,
            nodes=list(nodes),
            seed=1,
            models=[{"name": "tiny", "tokenizer_dir": model}],
            **settings,
        )
        async with running_service(made) as service:
            config = uvicorn.Config(
                create_app(service),
                lifespan="off",
                log_config=None,
                access_log=False,
                http="httptools",
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                async with aiohttp.ClientSession() as session:
                    port = listener.getsockname()[1]
                    yield Front(service, f"http://127.0.0.1:{port}", session)
            finally:
                server.should_exit = True
                await serving
