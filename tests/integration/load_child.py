"""Traffic from a process of its own: `far_load` in a test, this file as the program it starts.

The client of a load costs about as much as the scheduler; where both share one event loop, what
is measured is their sum. The child tells how far it is four times a second, one JSON object a
line; when its standard input ends it lets its open requests end and tells the last time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from control_world import Load
from gateway_world import World

TELL_S = 0.25


@dataclass
class FarLoad:
    """What the child last told."""

    sent: int = 0
    failures: list = field(default_factory=list)


@asynccontextmanager
async def far_load(url: str, **settings):
    """A `Load` of these settings from another process, while inside."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__)),
        json.dumps({"url": url, **settings}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    told = FarLoad()
    reader = asyncio.create_task(_read(child.stdout, told))
    try:
        yield told
        child.stdin.close()
        await asyncio.wait_for(asyncio.gather(child.wait(), reader), 90)
        assert child.returncode == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        reader.cancel()


async def _read(lines: asyncio.StreamReader, told: FarLoad) -> None:
    async for line in lines:
        found = json.loads(line)
        told.sent, told.failures = found["sent"], found["failures"]


async def _main(url: str, **settings) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        load = Load(World(service=None, url=url, sink=None, client=client), **settings)
        over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        async with load.running():
            while not over.done():
                _tell(load)
                await asyncio.wait([over], timeout=TELL_S)
        _tell(load)


def _tell(load: Load) -> None:
    failures = [[status, text.decode("utf-8", "replace")] for status, text in load.failures[:5]]
    print(json.dumps({"sent": load.sent, "failures": failures}), flush=True)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    asyncio.run(_main(asked.pop("url"), **asked))
