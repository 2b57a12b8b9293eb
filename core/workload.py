"""A gentle endless workload of chat sessions, so that a new installation shows something.

Sessions share a few system prompts, grow turn by turn (each prompt starts with the one before),
and belong to tenants. Everything but the network is drawn from one seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_WORDS = (
    "node cache prefix block token queue batch decode prefill router latency limit budget window "
    "signal replica session tenant policy weight probe event stream index ledger plan margin rate"
).split()
_TENANTS = ("search", "assistant", "coding")
_SYSTEM_PROMPTS = 4
_SESSIONS_MAX = 24
_TURNS_MAX = 8
_PAUSE_AFTER_ERROR_S = 1.0


@dataclass(slots=True)
class Session:
    """One conversation: its tenant and the messages so far."""

    tenant: str
    name: str
    messages: list[dict[str, str]] = field(default_factory=list)


class SessionMaker:
    """Draws the next request: a new session, or the next turn of a running one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._systems = [self._text(400 + 400 * i) for i in range(_SYSTEM_PROMPTS)]
        self._sessions: list[Session] = []
        self._made = 0

    def next(self) -> Session:
        """A session whose last message is a new question."""
        rng = self._rng
        fresh = len(self._sessions) < 4 or rng.random() < 0.25
        session = self._open() if fresh else rng.choice(self._sessions)
        question = {"role": "user", "content": self._text(rng.randint(20, 200))}
        session.messages.append(question)
        if len(session.messages) > 2 * _TURNS_MAX and session in self._sessions:
            self._sessions.remove(session)
        return session

    def body(self, session: Session, model: str) -> dict[str, Any]:
        """The chat request for a session's last question."""
        return {
            "model": model,
            "messages": list(session.messages),
            "max_tokens": self._rng.randint(16, 120),
            "stream": True,
            "user": session.tenant,
        }

    def _open(self) -> Session:
        self._made += 1
        # Few system prompts take most sessions, as in real fleets.
        weights = [2.0**-i for i in range(_SYSTEM_PROMPTS)]
        system = self._rng.choices(self._systems, weights)[0]
        session = Session(self._rng.choice(_TENANTS), f"demo-{self._made}")
        session.messages.append({"role": "system", "content": system})
        self._sessions.append(session)
        if len(self._sessions) > _SESSIONS_MAX:
            self._sessions.pop(0)
        return session

    def _text(self, words: int) -> str:
        return " ".join(self._rng.choices(_WORDS, k=words))


async def run_workload(
    url: str,
    *,
    model: str,
    requests_per_s: float,
    seed: int = 0,
    limit: int | None = None,
    key: str = "",
) -> int:
    """Send requests as a Poisson stream until cancelled, or `limit` of them; how many were sent.

    Errors are not fatal: the service may start later or be away for a while. A rate of 0 sends
    nothing.
    """
    if requests_per_s <= 0:
        return 0
    rng = random.Random(seed)
    maker = SessionMaker(rng)
    tasks: set[asyncio.Task[None]] = set()
    timeout = aiohttp.ClientTimeout(total=120.0, sock_connect=5.0)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
        for _ in _count(limit):
            await asyncio.sleep(rng.expovariate(requests_per_s))
            session = maker.next()
            body = maker.body(session, model)
            task = asyncio.create_task(_ask(http, url.rstrip("/"), session, body))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return limit or 0


def _count(limit: int | None) -> Iterator[int]:
    n = 0
    while limit is None or n < limit:
        yield n
        n += 1


async def _ask(
    http: aiohttp.ClientSession, url: str, session: Session, body: dict[str, Any]
) -> None:
    headers = {"x-session-id": session.name, "x-conductor-tenant": session.tenant}
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.read()
            if answer.status != 200:
                return
    except (aiohttp.ClientError, TimeoutError, OSError):
        await asyncio.sleep(_PAUSE_AFTER_ERROR_S)
        return
    # The text itself does not matter: what counts is that the next prompt extends this one.
    session.messages.append({"role": "assistant", "content": f"answer {len(session.messages)}"})
