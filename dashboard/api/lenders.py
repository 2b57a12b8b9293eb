"""Whose token a shared poller asks with: that of a reader who looks now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from dashboard.api.client import AdminClient

LENT_S = 10.0
"""Who has not looked for this long has left: the poller goes on with another's token."""
REFUSED_S = 30.0
"""A token that was refused is passed over for so long; its own sessions know well before that."""
LENDERS_MAX = 64
"""Readers remembered; of more, those who looked last."""


class Lenders:
    """Clients of readers with the same rights, each with its own token; safe between threads.

    One is used until it is refused or its owner has left, so that its connection is used again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lent: dict[AdminClient, float] = {}
        """When each was lent last, the oldest first."""
        self._refused: dict[AdminClient, float] = {}
        self._used: AdminClient | None = None

    def lend(self, client: AdminClient) -> bool:
        """The owner looks now. False where the token was refused a short time ago."""
        with self._lock:
            now = self._clock()
            self._refused = {c: at for c, at in self._refused.items() if now - at < REFUSED_S}
            self._lent.pop(client, None)
            self._lent[client] = now
            while len(self._lent) > LENDERS_MAX:
                del self._lent[next(iter(self._lent))]
            return client not in self._refused

    def pick(self) -> AdminClient:
        """The client to ask with; one that was refused only where there is no other."""
        with self._lock:
            used, newest = self._used, next(reversed(self._lent))
            if used is None or self._clock() - self._lent.get(used, -1e9) > LENT_S:
                used = newest
            if used in self._refused:
                used = next(self._good(), newest)
            self._used = used
            return used

    def refuse(self, client: AdminClient) -> bool:
        """The service does not take its token any more; whether there is another's."""
        with self._lock:
            self._refused[client] = self._clock()
            return next(self._good(), None) is not None

    def _good(self) -> Iterator[AdminClient]:
        """Those that were not refused, and whose owners look, the newest first."""
        now = self._clock()
        return (
            client
            for client, lent in reversed(self._lent.items())
            if client not in self._refused and now - lent <= LENT_S
        )
