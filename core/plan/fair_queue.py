"""Requests that wait for a node: priority bands, and fairness between tenants within a band.

Higher bands go first. Within a band each tenant has a virtual time that grows by the tokens it
was served; the tenant that is furthest behind goes next (start-time fair queueing, equal
weights). One who comes back after a pause starts at the band's present time, so that nobody saves
up a claim. A tenant's own requests go in order of arrival. Two tenants that both have something
waiting are therefore never served further apart than the two largest requests.

What cannot go now (`ready` says no) is passed over: the next of the same tenant, then the next
tenant. At most `PROBES_MAX` are asked at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
PROBES_MAX = 32


@dataclass(slots=True, eq=False)
class Waiting(Generic[T]):
    """One that waits. `cost` is in tokens to compute, at least 1."""

    tenant: str
    priority: int
    cost: float
    nbytes: int
    what: T


@dataclass(slots=True)
class _Tenant(Generic[T]):
    served: float
    """Virtual time, tokens."""
    line: deque[Waiting[T]] = field(default_factory=deque)


@dataclass(slots=True)
class _Band(Generic[T]):
    now: float = 0.0
    """Virtual time of the tenant served last."""
    tenants: dict[str, _Tenant[T]] = field(default_factory=dict)
    """Only those with somebody waiting."""


class FairQueue(Generic[T]):
    """Who waits, and who is next. The caller keeps its bounds."""

    def __init__(self) -> None:
        self._bands: dict[int, _Band[T]] = {}
        self._count = 0
        self.nbytes = 0
        self.cost = 0.0
        """Tokens of all that wait."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiting[T]]:
        """All, highest band first; in no particular order of tenants."""
        for priority in sorted(self._bands, reverse=True):
            for tenant in self._bands[priority].tenants.values():
                yield from tenant.line

    def push(self, one: Waiting[T], *, first: bool = False) -> None:
        """Queue one behind the others of its tenant; `first`: it was picked for nothing, and gets
        its place and what it was charged back."""
        band = self._bands.setdefault(one.priority, _Band())
        tenant = band.tenants.get(one.tenant)
        if tenant is None:
            tenant = band.tenants[one.tenant] = _Tenant(band.now)
        if first:
            tenant.line.appendleft(one)
            tenant.served = max(tenant.served - max(one.cost, 1.0), 0.0)
        else:
            tenant.line.append(one)
        self._count += 1
        self.nbytes += one.nbytes
        self.cost += one.cost

    def pick(self, ready: Callable[[T], bool]) -> Waiting[T] | None:
        """Take the next one that is ready out of the queue; None where nobody is."""
        probes = PROBES_MAX
        for priority in sorted(self._bands, reverse=True):
            band = self._bands[priority]
            for tenant in sorted(band.tenants.values(), key=lambda t: t.served):
                for one in islice(tenant.line, probes):
                    probes -= 1
                    if ready(one.what):
                        band.now = tenant.served
                        tenant.served += max(one.cost, 1.0)
                        self._take(one, band, tenant)
                        return one
                if not probes:
                    return None
        return None

    def discard(self, one: Waiting[T]) -> bool:
        """Take this one out, wherever it is; False where it is not waiting."""
        band = self._bands.get(one.priority)
        tenant = None if band is None else band.tenants.get(one.tenant)
        if band is None or tenant is None or one not in tenant.line:
            return False
        self._take(one, band, tenant)
        return True

    def least(self, below: int) -> Waiting[T] | None:
        """The last one of the lowest band, if that is below the priority `below`."""
        lowest = min(self._bands, default=below)
        if lowest >= below:
            return None
        tenants = self._bands[lowest].tenants.values()
        return max(tenants, key=lambda t: t.served + sum(w.cost for w in t.line)).line[-1]

    def _take(self, one: Waiting[T], band: _Band[T], tenant: _Tenant[T]) -> None:
        tenant.line.remove(one)
        self._count -= 1
        self.nbytes -= one.nbytes
        self.cost = self.cost - one.cost if self._count else 0.0
        if not tenant.line:
            del band.tenants[one.tenant]
            if not band.tenants:
                del self._bands[one.priority]
