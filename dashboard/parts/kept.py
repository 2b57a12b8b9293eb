"""Answers kept for some seconds, shared by all sessions: more readers do not mean more work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import streamlit as st

from dashboard import session
from dashboard.api.client import Unreachable

T = TypeVar("T")
ENTRIES_MAX = 512


class Kept:
    """A bounded store of answers by key; an answer older than asked for is read again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[Hashable, tuple[float, Any]] = {}

    def get(self, key: Hashable, ttl_s: float, read: Callable[[], T]) -> T:
        """The answer under `key`, at most `ttl_s` old; what `read` raises is not kept."""
        with self._lock:
            found = self._answers.get(key)
        if found is not None and self._clock() - found[0] < ttl_s:
            answer: T = found[1]
            return answer
        return self._put(key, read())

    def last(self, key: Hashable) -> Any:
        """The answer under `key`, however old; None without one."""
        with self._lock:
            found = self._answers.get(key)
        return None if found is None else found[1]

    def _put(self, key: Hashable, fresh: T) -> T:
        with self._lock:
            self._answers.pop(key, None)
            self._answers[key] = (self._clock(), fresh)
            while len(self._answers) > ENTRIES_MAX:
                del self._answers[next(iter(self._answers))]
        return fresh


@st.cache_resource(show_spinner=False)
def _kept() -> Kept:
    return Kept()


def kept(*key: Hashable, ttl_s: float, read: Callable[[], T]) -> T:
    """As `Kept.get`, for whoever is signed in: what one may see is not kept for another.

    While the service is known not to answer nobody waits for it again: the last answer stays, and
    without one `Unreachable` says why.
    """
    asked = session.reader()
    whole = (session.service_url(), session.token(), asked.base_url, *key)
    error = session.feed().look().error
    if error and asked is session.client():
        found: T | None = _kept().last(whole)
        if found is None:
            raise Unreachable(error)
        return found
    return _kept().get(whole, ttl_s, read)
