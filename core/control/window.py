"""The last requests in memory, with their keys: what a replay in the simulator needs.

Records keep no keys. The window does, for a bounded number of requests and keys; a request joins
when it is over, so that this costs nothing while it is placed.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass

from core.domain import Decision, Outcome

REQUESTS_MAX = 2_000
KEYS_MAX = 2_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    block_tokens: int
    keys: array[int]
    session: str
    tenant: str
    priority: int


class Window:
    """Ring of the last requests, bounded by their number and by their keys together."""

    def __init__(self, *, requests_max: int = REQUESTS_MAX, keys_max: int = KEYS_MAX) -> None:
        self._requests_max, self._keys_max = requests_max, keys_max
        self._seen: deque[Seen] = deque()
        self._keys = 0

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, decision: Decision, outcome: Outcome) -> None:
        """Keep a finished request; retries count once, by their last attempt."""
        r = decision.request
        size, keys = next(iter(r.keys.items()), (0, ()))
        kept = array("Q", keys)
        output = outcome.output_tokens or r.output_tokens_expected
        self._seen.append(
            Seen(
                decision.now_s, r.prompt_tokens, output, size, kept, r.session, r.tenant, r.priority
            )
        )
        self._keys += len(kept)
        while len(self._seen) > self._requests_max or self._keys > self._keys_max:
            self._keys -= len(self._seen.popleft().keys)

    def requests(self, limit: int) -> list[Seen]:
        """The newest `limit`, in order of arrival."""
        newest = list(self._seen)[-limit:]
        return sorted(newest, key=lambda s: s.at_s)
