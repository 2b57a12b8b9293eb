"""What a process remembers of the credentials it has seen, so that most requests ask nobody.

A good answer holds for 60 s, or until the database says that identities changed; a credential
that is not known is asked about again after 5 s. While the database is away, a credential that
was good when it was last asked about goes on for at most 15 min, and unknown ones are refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from core.errors import NotFound, StoreError

T = TypeVar("T")
GOOD_S = 60.0
UNKNOWN_S = 5.0
OUTAGE_S = 900.0
ENTRIES_MAX = 10_000


@dataclass(slots=True)
class _Entry(Generic[T]):
    found: T | None
    asked_s: float
    """When the store said so."""
    generation: int


class Memory(Generic[T]):
    """Answers of `ask` by id; `ask` blocks, so it runs in a thread."""

    def __init__(self, ask: Callable[[str], T], clock: Callable[[], float]) -> None:
        self._ask, self._now = ask, clock
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._generation = 0
        self.outage_answers = 0
        """Given from memory because the store was away."""

    def forget(self) -> None:
        """Identities changed: ask again, about everything."""
        self._generation += 1

    def fresh(self, id: str) -> T | None:
        """What is known and needs no asking; None otherwise."""
        entry = self._entries.get(id)
        if entry is None or entry.found is None or not self._holds(entry):
            return None
        return entry.found

    async def get(self, id: str) -> T | None:
        """What the store says of an id; None where it knows none. StoreError where it is away
        and nothing is remembered that may still be used."""
        entry = self._entries.get(id)
        if entry is not None and self._holds(entry):
            return entry.found
        generation, asked_s = self._generation, self._now()
        try:
            found: T | None = await asyncio.to_thread(self._ask, id)
        except NotFound:
            found = None
        except StoreError:
            if entry is None or entry.found is None or asked_s - entry.asked_s > OUTAGE_S:
                raise
            self.outage_answers += 1
            return entry.found
        self._entries[id] = _Entry(found, asked_s, generation)
        self._entries.move_to_end(id)
        while len(self._entries) > ENTRIES_MAX:
            self._entries.popitem(last=False)
        return found

    def _holds(self, entry: _Entry[T]) -> bool:
        life_s = UNKNOWN_S if entry.found is None else GOOD_S
        return entry.generation == self._generation and self._now() - entry.asked_s < life_s
