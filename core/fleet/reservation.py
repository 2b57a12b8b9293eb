"""A placed request's claim on its nodes, from the decision to the outcome."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

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


class Reservation:
    """One placed request's claim on its nodes. Leaving the context unfinished closes it."""

    __slots__ = (
        "_ends_s",
        "_key",
        "_ledger",
        "alone",
        "batch_seen",
        "begun_s",
        "cached_tokens",
        "decision",
        "kv_seen",
        "kv_tokens",
        "moved",
        "new_tokens",
        "outcome",
        "phase",
        "prefilled_s",
        "tbt_slo_s",
        "tickets",
    )

    def __init__(
        self, ledger: Books, key: int, decision: Decision, now: float, tbt_slo_s: float
    ) -> None:
        self.decision = decision
        self.new_tokens = decision.new_tokens
        self.moved = decision.decode_slot != decision.prefill_slot
        """Whether prefill and decode run on different nodes."""
        request = decision.request
        self.kv_tokens = request.prompt_tokens + request.output_tokens_expected
        """KV it will hold at the end of its decoding."""
        self.tbt_slo_s = tbt_slo_s
        self.phase = Phase.PREFILL
        self.outcome: Outcome | None = None
        self.cached_tokens: int | None = None
        self.begun_s = now
        self.prefilled_s: float | None = None
        self.alone = False
        """Whether the prefill has had its node's queue to itself so far."""
        self.batch_seen = self.kv_seen = 0.0
        """Size and KV tokens of the decode batch with this request, when it joined."""
        self.tickets: dict[int, int] = {}
        self._ledger = ledger
        self._key = key
        self._ends_s: float | None = None

    @property
    def key(self) -> int:
        """Its number in the ledger: rises with each reservation."""
        return self._key

    def prefill_done(self, now: float, *, cached_tokens: int | None = None) -> None:
        """The prompt is computed: leave the queue, join the decode batch."""
        if cached_tokens is not None:
            self.cached_tokens = cached_tokens
        if self.phase is Phase.PREFILL:
            self._ledger.to_decode(self, now)

    def first_token(self, now: float) -> None:
        """The first token came; implies that the prefill is done."""
        if self.phase is not Phase.CLOSED:
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
        if self.phase is not Phase.CLOSED:
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
