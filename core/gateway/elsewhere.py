"""Reservations for schedulers elsewhere: POST /v1/schedule, then complete or abort, or expiry.

Whoever keeps a gateway of their own asks for a decision and reports back. A reservation that
is neither completed nor aborted in its time ends as LOST, so that no load is counted for ever.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from core.domain import DecisionId, Outcome, OutcomeKind
from core.errors import NotFound, Overloaded
from core.gateway.held import Held

if TYPE_CHECKING:
    from core.gateway.service import Service


class Elsewhere:
    """Open reservations by decision id, each with its time of expiry."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: dict[DecisionId, Held] = {}
        self._expiries: list[tuple[float, DecisionId]] = []
        self.lost = 0

    def __len__(self) -> int:
        return len(self._open)

    def check_room(self) -> None:
        """Overloaded where too many reservations are open."""
        if len(self._open) >= self._service.limits.reservations_max:
            raise Overloaded("too many open reservations: complete or abort some", retry_after_s=5)

    def keep(self, held: Held, expires_s: float) -> None:
        """Hold a decision until it is ended or `expires_s` has passed."""
        held.__enter__()
        self._open[held.decision.id] = held
        heapq.heappush(self._expiries, (expires_s, held.decision.id))

    def get(self, decision: str) -> Held:
        """An open reservation; NotFound for one that ended, expired or never was."""
        try:
            return self._open[DecisionId(decision)]
        except KeyError:
            raise NotFound(f"no open reservation {decision!r}", field="id") from None

    def end(self, decision: str, outcome: Outcome) -> None:
        """Close a reservation with its outcome, once."""
        held = self.get(decision)
        del self._open[held.decision.id]
        held.finish(outcome)
        if len(self._expiries) > 2 * len(self._open) + 1024:
            self._expiries = [entry for entry in self._expiries if entry[1] in self._open]
            heapq.heapify(self._expiries)

    def expire(self, now: float) -> int:
        """End as LOST what was not ended in time; how many."""
        ended = 0
        while self._expiries and self._expiries[0][0] <= now:
            _, decision = heapq.heappop(self._expiries)
            if decision in self._open:
                self.end(decision, Outcome(kind=OutcomeKind.LOST, error="never reported back"))
                ended += 1
        self.lost += ended
        return ended

    def abandon(self) -> None:
        """The service stops: end everything as LOST."""
        for decision in list(self._open):
            self.end(decision, Outcome(kind=OutcomeKind.LOST, error="the scheduler stopped"))
