"""A placed request's claim on its nodes, from the decision to the outcome."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import msgspec

from core.domain import Decision, Outcome


class Phase(enum.Enum):
    """Where a reservation stands."""

    PREFILL = "prefill"
    DECODE = "decode"
    CLOSED = "closed"


class Books(Protocol):
    """What a reservation needs of the ledger that counts it."""

    on_first_token: Callable[[Reservation, float], None]

    def to_decode(self, r: Reservation, now: float) -> None:
        """Move it from the queue to the decode batch."""
        ...

    def close(self, r: Reservation, outcome: Outcome, now: float) -> None:
        """Give back what it counts."""
        ...

    def close_forgotten(self, r: Reservation, error: str) -> None:
        """Close it for an owner that left without an outcome."""
        ...


_PREFILL, _CLOSED = Phase.PREFILL, Phase.CLOSED


class Reservation(msgspec.Struct, eq=False):
    """One placed request's claim on its nodes. Leaving the context unfinished closes it."""

    _ledger: Books
    key: int
    """Its number in the ledger: rises with each reservation."""
    decision: Decision
    new_tokens: int
    """Prompt tokens its prefill node has to compute, as decided."""
    moved: bool
    """Whether prefill and decode run on different nodes."""
    kv_tokens: int
    """KV it will hold at the end of its decoding."""
    tbt_slo_s: float
    begun_s: float
    phase: Phase = _PREFILL
    outcome: Outcome | None = None
    cached_tokens: int | None = None
    prefilled_s: float | None = None
    alone: bool = False
    """Whether the prefill has had its node's queue to itself so far."""
    unsplit: bool = False
    """Placed on two nodes, but the decode node does all of it: what is reported says nothing of
    the prefill node's cache and pace."""
    batch_seen: float = 0.0
    """Size of the decode batch with this request, when it joined."""
    kv_seen: float = 0.0
    """KV tokens of that batch."""
    tickets: dict[int, int] = {}
    """Breaker tickets by slot."""
    _ends_s: float | None = None

    def prefill_done(self, now: float, *, cached_tokens: int | None = None) -> None:
        """The prompt is computed: leave the queue, join the decode batch."""
        if cached_tokens is not None:
            self.cached_tokens = cached_tokens
        if self.phase is _PREFILL:
            self._ledger.to_decode(self, now)

    def first_token(self, now: float) -> None:
        """The first token came; implies that the prefill is done."""
        if self.phase is not _CLOSED:
            self.prefill_done(now)
            self._ledger.on_first_token(self, now)

    def finish(self, outcome: Outcome, now: float) -> None:
        """Give everything back. The first call counts; later ones are only counted."""
        self._ledger.close(self, outcome, now)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.phase is not _CLOSED:
            text = "" if error is None else type(error).__name__
            self._ledger.close_forgotten(self, text)


@dataclass(frozen=True, slots=True)
class Hold:
    """Seconds and tokens counted in a node's queue for a member of a pipeline group."""

    key: int
    slot: int
    generation: int
    seconds: float
    tokens: float
