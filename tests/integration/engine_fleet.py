"""Emulated engines as processes, and requests to them."""

import asyncio
import json
import signal
import socket
import sys
from contextlib import asynccontextmanager
from typing import Any

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class EmulatedEngine:
    """One process; restarts keep its HTTP, event and replay ports."""

    def __init__(self, *arguments: str, name: str = "e1", model: str = "tiny") -> None:
        self._arguments = ["--name", name, "--model", model, "--time-scale", "50", *arguments]
        self._ports: dict[str, int] = {}
        self.state: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._client = httpx.AsyncClient(trust_env=False, timeout=30, verify=False)

    @property
    def url(self) -> str:
        return self.state["url"]

    async def start(self) -> None:
        ports = [x for option, port in self._ports.items() for x in (option, str(port))]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "core.engines.emulated",
            *self._arguments,
            *ports,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            self.state = json.loads(await self._process.stdout.readline())
        if not self._ports:
            self._ports = {
                "--port": _port(self.state["url"]),
                "--events-port": _port(self.state["events"]),
                "--replay-port": _port(self.state["replay"]),
            }

    async def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            async with asyncio.timeout(15):
                await self._process.wait()
        self._process._transport.close()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def fault(self, **values: Any) -> None:
        answer = await self._client.post(f"{self.url}/emulated/faults", json=values)
        answer.raise_for_status()

    async def complete(self, ids: list[int], *, max_tokens: int = 4) -> dict[str, Any]:
        """A completion of token ids; its whole answer."""
        body = {"model": "tiny", "prompt": ids, "max_tokens": max_tokens, "temperature": 0}
        answer = await self._client.post(f"{self.url}/v1/completions", json=body)
        answer.raise_for_status()
        return answer.json()

    async def close(self) -> None:
        await self.end()
        await self._client.aclose()


def _port(address: str) -> int:
    return int(address.rstrip("/").rsplit(":", 1)[1])


@asynccontextmanager
async def emulated(*arguments: str, **named: Any):
    """A started engine, ended with the block."""
    engine = EmulatedEngine(*arguments, **named)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
