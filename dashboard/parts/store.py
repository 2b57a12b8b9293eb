"""The store behind answers that are kept for some seconds; knows nothing of sessions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from dashboard.api.client import ServiceError

T = TypeVar("T")
ENTRIES_MAX = 512
GRACE_S = 10.0
"""So much older an answer may be for those who come while it is read again."""


class Kept:
    """A bounded store of answers by key; an answer older than asked for is read again, by one of
    those who ask at the same time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[Hashable, tuple[float, Any]] = {}
        self._under_way: dict[Hashable, threading.Event] = {}
        self._cleared = 0

    def get(
        self, key: Hashable, ttl_s: float, read: Callable[[], T], *, meanwhile_s: float = 0.0
    ) -> T:
        """The answer under `key`, at most `ttl_s` old; what `read` raises is not kept.

        One that is older, but not than `meanwhile_s`, is given too, while a thread reads it anew.
        While somebody reads it anew others get the one before, if it is not much older, or wait.
        An answer that is equal to the one before stays the same object.
        """
        with self._lock:
            found, other = self._answers.get(key), self._under_way.get(key)
            age_s = self._clock() - found[0] if found is not None else 0.0
            longest_s = max(ttl_s + GRACE_S, meanwhile_s) if other is not None else ttl_s
            if found is not None and age_s < longest_s:
                answer: T = found[1]
                return answer
            if other is None:
                mine = self._under_way[key] = threading.Event()
        if other is None:
            if found is None or age_s >= meanwhile_s:
                return self._read(key, read, mine)
            behind = threading.Thread(target=self._renew, args=(key, read, mine), daemon=True)
            behind.start()
            older: T = found[1]
            return older
        other.wait()
        with self._lock:
            after = self._answers.get(key)
        if after is None or after is found:  # it failed: say why to everybody
            return self._put(key, read(), self._cleared)
        theirs: T = after[1]
        return theirs

    def clear(self) -> None:
        """Forget all answers, those that are being read as well."""
        with self._lock:
            self._answers.clear()
            self._under_way.clear()
            self._cleared += 1

    def _read(self, key: Hashable, read: Callable[[], T], mine: threading.Event) -> T:
        cleared = self._cleared
        try:
            return self._put(key, read(), cleared)
        finally:
            with self._lock:
                if self._under_way.get(key) is mine:
                    del self._under_way[key]
            mine.set()

    def _renew(self, key: Hashable, read: Callable[[], Any], mine: threading.Event) -> None:
        try:
            self._read(key, read, mine)
        except ServiceError:
            pass  # the answer ages on; who asks when it is too old is told why

    def last(self, key: Hashable) -> Any:
        """The answer under `key`, however old; None without one."""
        with self._lock:
            found = self._answers.get(key)
        return None if found is None else found[1]

    def _put(self, key: Hashable, fresh: T, cleared: int) -> T:
        with self._lock:
            before = self._answers.get(key)
        if before is not None and before[1] == fresh:
            fresh = before[1]
        with self._lock:
            if cleared != self._cleared:
                return fresh
            self._answers.pop(key, None)
            self._answers[key] = (self._clock(), fresh)
            while len(self._answers) > ENTRIES_MAX:
                del self._answers[next(iter(self._answers))]
        return fresh
