"""What is drawn from the same answers is made once, whoever looks at it.

Answers are objects that sessions share: the last look of the feed, what `kept` holds. As long as
they are the very same objects, a figure or a table made from them is the same too, and is taken
from here, already serialised.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import streamlit as st

T = TypeVar("T")
NAMES_MAX = 512
EACH_MAX = 6
"""Results kept of one name: light and dark, zones, a reader who is a tick behind."""


class Shared:
    """Results by name and by the identity of the objects they were made from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()

    def get(self, name: Hashable, given: tuple[object, ...], make: Callable[[], T]) -> T:
        """What `make` gives for these objects, made once even where many ask at the same time.

        `name` says what it is, with every plain value that it depends on; what `make` raises is
        not kept.
        """
        with self._lock:
            made = self._made.setdefault(name, _Made())
            self._made.move_to_end(name)
            while len(self._made) > NAMES_MAX:
                self._made.popitem(last=False)
        result: T = made.get(given, make)
        return result


class _Made:
    """The newest results of one name. Each holds the objects it was made from: as long as it is
    here, no other object can have the identity of one of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[tuple[int, ...], tuple[tuple[object, ...], Any]] = OrderedDict()

    def get(self, given: tuple[object, ...], make: Callable[[], T]) -> T:
        key = tuple(id(each) for each in given)
        with self._lock:
            found = self._results.get(key)
            if found is None:
                found = self._results[key] = (given, make())
                while len(self._results) > EACH_MAX:
                    self._results.popitem(last=False)
        result: T = found[1]
        return result


@st.cache_resource(show_spinner=False)
def _shared() -> Shared:
    return Shared()


def shared(*name: Hashable, given: tuple[object, ...], make: Callable[[], T]) -> T:
    """As `Shared.get`, over all sessions."""
    return _shared().get(name, given, make)
