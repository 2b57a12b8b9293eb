"""The prefill candidates of a small fleet, as plain lists.

For up to `FEW` candidates a loop over floats is several times quicker than a dozen array
operations. Sums are taken in the order of `core.plan.prefill`, so both forms agree to the bit;
columns that a policy asks for become arrays then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from core.domain import Request
from core.fleet.state import Fixed, FleetState
from core.plan.prefill import SENDERS_MAX, Chosen, Column, Ints, LiveCandidates, Rows
from core.plan.transfer import Topology
from core.tunables import Tunables

FEW = 16


class FewCandidates(LiveCandidates):
    """As LiveCandidates; lists by candidate row stand behind the columns.

    matches, prefixes: tokens. queues, prefills, transfers: seconds, with fetching where that is
    planned; recomputes: prefill seconds without it. fetching: None where nobody would.
    """

    matches: list[int]
    prefixes: list[int]
    queues: list[float]
    recomputes: list[float]
    transfers: list[float]
    prefills: list[float]
    fetching: list[bool] | None
    _fixed: Fixed
    slots: Sequence[Any]
    """Slot (core.domain.Slot) of each row."""
    _source: int

    def __init__(
        self,
        fleet: FleetState,
        topology: Topology,
        t: Tunables,
        request: Request,
        now: float,
        match: Ints | list[int],
        rows: Rows,
        mean_prefill_s: float,
        needs: frozenset[str],
    ) -> None:
        self._fleet, self._topology, self._t = fleet, topology, t
        self._request, self._now = request, now
        self._all_match, self._rows, self._needs = match, rows, needs
        self.prompt_tokens = request.prompt_tokens
        self.mean_prefill_s, self.priority_weight = mean_prefill_s, 1.0
        fixed = self._fixed = fleet.fixed
        held = matches = match if isinstance(match, list) else match.tolist()
        least, reachable = _range(held)
        self.reachable_tokens = reachable
        if isinstance(rows, slice):
            self.slots = fixed.slots
        else:
            self.slots = rows.tolist()
            matches = _of(held, self.slots)
            least, _ = _range(matches)
        self.matches = self.prefixes = matches
        self.queues = self._wait(now)
        self.fetching = None
        self.prefills = self.recomputes = self._compute(least)
        self.transfers = [0.0] * len(matches)
        wanted = reachable and least * t.fetch.balancing_threshold < reachable
        if wanted and fleet.any_can_fetch and t.fetch.enabled:
            self._fetch(held)

    @property
    def size(self) -> int:
        """k."""
        return len(self.matches)

    def at(self, row: int) -> Chosen:
        """One candidate's figures."""
        return Chosen(
            self.slots[row],
            self.matches[row],
            self.prefixes[row],
            self.queues[row],
            self.transfers[row],
            self.prefills[row],
            self._source if self.fetching is not None and self.fetching[row] else None,
        )

    def _wait(self, now: float) -> list[float]:
        """Queue seconds: core.fleet.load.queue_s, row by row."""
        cells = self._fleet.cells
        waits: list[Any] = cells.queued_s.tolist()
        head, started, slots = cells.head_s.tolist(), cells.head_started_s.tolist(), self.slots
        if slots is not self._fixed.slots:
            waits = _of(waits, slots)
        for row, queued_s in enumerate(waits):
            if queued_s:
                slot = slots[row]
                done, most = now - started[slot], head[slot]
                wait = queued_s - (done if done < most else most)
                waits[row] = wait if wait > 0.0 else 0.0
        return waits

    def _compute(self, least: int) -> list[float]:
        """Prefill seconds without fetching: core.plan.prefill, row by row.

        `least` of the matches: most nodes hold as little as that.
        """
        length, matches, costs = self.prompt_tokens, self.matches, self._fixed.prefill
        if not length:
            return [0.0] * len(matches)
        if not self._fixed.prefill_alike:
            pairs = zip(matches, _of(costs, self.slots), strict=True)
            return [c0 + (length - m) * (c1 + c2 * (length + m)) for m, (c0, c1, c2) in pairs]
        c0, c1, c2 = costs[self.slots[0]]
        seconds = [c0 + (length - least) * (c1 + c2 * (length + least))] * len(matches)
        for row, match in enumerate(matches):
            if match != least:
                seconds[row] = c0 + (length - match) * (c1 + c2 * (length + match))
        return seconds

    def _fetch(self, held: list[int]) -> None:
        """core.plan.prefill.plan_fetch, row by row."""
        fixed, reachable, length = self._fixed, self.reachable_tokens, self.prompt_tokens
        matches, threshold = self.matches, self._t.fetch.balancing_threshold
        source = self._source = self._sender(held)
        latency, per_byte = self._topology.listed(source)
        kv_bytes, share = fixed.kv_bytes[source], 1.0 / max(fixed.layers[source], 1)
        waiting_s = self._fleet.cells.egress_until_s[source] - self._now
        if waiting_s < 0.0:
            waiting_s = 0.0
        can_fetch, costs, recomputes = fixed.can_fetch, fixed.prefill, self.recomputes
        fetching = [False] * len(matches)
        prefixes, prefills, transfers = matches.copy(), recomputes.copy(), self.transfers
        cost, prefill_s, hidden_s = None, 0.0, 0.0
        for row, slot in enumerate(self.slots):
            match, recompute_s = matches[row], recomputes[row]
            if match * threshold >= reachable or not can_fetch[slot]:
                continue
            if costs[slot] is not cost:
                c0, c1, c2 = cost = costs[slot]
                prefill_s = c0 + (length - reachable) * (c1 + c2 * (length + reachable))
                hidden_s = prefill_s * (1.0 - share)
            if prefill_s >= recompute_s:  # also where the prompt is empty
                continue
            raw = waiting_s + latency[slot] + (reachable - match) * kv_bytes * per_byte[slot]
            late, first = raw - hidden_s, raw * share
            transfer_s = late if late > first else first  # core.plan.transfer.exposed_seconds
            if transfer_s + prefill_s < recompute_s:
                fetching[row], prefixes[row] = True, reachable
                prefills[row], transfers[row] = prefill_s, transfer_s
        if True in fetching:
            self.fetching, self.prefixes, self.prefills = fetching, prefixes, prefills

    def _sender(self, held: list[int]) -> int:
        """core.plan.prefill._sender; where nobody wants to fetch, any holder."""
        reachable, threshold = self.reachable_tokens, self._t.fetch.balancing_threshold
        if held.count(reachable) == 1:
            return held.index(reachable)
        holders = [slot for slot, match in enumerate(held) if match == reachable]
        free_at_s, can_fetch = self._fleet.cells.egress_until_s, self._fixed.can_fetch
        ranked = sorted(holders, key=free_at_s.__getitem__)[:SENDERS_MAX]
        for source in ranked:
            latency = self._topology.listed(source)[0]
            for slot in self.slots:
                wants = can_fetch[slot] and held[slot] * threshold < reachable
                if wants and latency[slot] < math.inf:
                    return source
        return ranked[0]


def _range(values: Sequence[int]) -> tuple[int, int]:
    """Least and most of them; one loop is quicker than calls of `min` and `max`."""
    least = most = values[0]
    for value in values:
        if value < least:
            least = value
        elif value > most:
            most = value
    return least, most


def _of(values: Any, slots: Sequence[int]) -> list[Any]:
    """The values of these slots, as a new list."""
    return list(map(values.__getitem__, slots))


_COLUMNS: dict[str, Callable[[FewCandidates], Any]] = {
    "match_tokens": lambda c: np.array(c.matches, np.int64),
    "queue_s": lambda c: np.array(c.queues, np.float64),
    "prefill_s": lambda c: np.array(c.recomputes, np.float64),
    "fetch": lambda c: np.array(c.fetching or [False] * c.size, np.bool_),
    "prefix_tokens": lambda c: np.array(c.prefixes, np.int64),
    "fetched_prefill_s": lambda c: np.array(c.prefills, np.float64),
    "transfer_s": lambda c: np.array(c.transfers, np.float64),
}
for _name, _compute in _COLUMNS.items():
    setattr(FewCandidates, _name, Column(_name, _compute))
