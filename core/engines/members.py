"""Which nodes stand behind one name: members come at once and go only after a while. Pure.

A name server that is restarted, overloaded or behind may answer nothing, or less than there is.
So a failed or empty answer changes nothing, an address leaves only after it was missing from
several good answers in a row, and one answer never takes the last member away while it is the
only sign of its end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

ABSENCES_MAX = 3
"""Good answers in a row without an address before its node leaves."""
MEMBERS_MAX = 512
"""Nodes behind one name; further addresses are counted and left."""


@dataclass(frozen=True, slots=True)
class Change:
    """Addresses that came and went, in a stable order."""

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Members:
    """The addresses of one name. `observe` takes each answer."""

    def __init__(self) -> None:
        self._absences: dict[str, int] = {}
        self.failures = 0
        """Answers that failed or were empty."""
        self.crowded = 0
        """Addresses of the last answer that found no room."""

    @property
    def known(self) -> tuple[str, ...]:
        """Addresses that count as members, those that are missing for now included."""
        return tuple(sorted(self._absences))

    def observe(self, found: Collection[str] | None) -> Change:
        """Take one answer, None where the look-up failed; who joins and who leaves."""
        if not found:
            self.failures += 1
            return Change()
        for address in self._absences:
            missing = address not in found
            self._absences[address] = self._absences[address] + 1 if missing else 0
        left = tuple(a for a in self.known if self._absences[a] >= ABSENCES_MAX)
        for address in left:
            del self._absences[address]
        fresh = sorted(set(found) - self._absences.keys())
        room = MEMBERS_MAX - len(self._absences)
        joined, self.crowded = tuple(fresh[:room]), max(len(fresh) - room, 0)
        self._absences.update(dict.fromkeys(joined, 0))
        return Change(joined, left)

    def forget(self, address: str) -> None:
        """The address could not be made a node: it counts as new in the next answer."""
        self._absences.pop(address, None)
