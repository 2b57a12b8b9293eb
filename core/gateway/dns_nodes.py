"""Nodes behind a DNS name: a name with several addresses, or a Kubernetes headless service.

Each name is a job. Every answer is checked address by address, new addresses become nodes named
after the pool and the address, and addresses that stay away leave (`core.engines.members`). A
node that an operator removed stays out while its address is there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

from core.domain import NodeId, NodeSpec
from core.engines.addresses import check_never
from core.engines.guard import Lookup, system_lookup
from core.engines.members import Members
from core.errors import ConductorError, EngineUnreachable, Forbidden

if TYPE_CHECKING:
    from core.gateway.service import Service

log = logging.getLogger("conductor.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A name to be looked up, and what each node behind it is like.

    template: a spec whose id and url are filled in for each address.
    """

    name: str
    host: str
    port: int
    refresh_s: float
    template: NodeSpec
    discover_events: bool = True

    def spec(self, address: str) -> NodeSpec:
        """The node at one address."""
        host = f"[{address}]" if ":" in address else address
        node = NodeId(f"{self.name}-{address.replace(':', '.')}")
        return replace(self.template, id=node, url=f"http://{host}:{self.port}")


class DnsNodes:
    """Keeps the nodes of one pool. `refresh` is its job."""

    def __init__(self, service: Service, pool: Pool, *, lookup: Lookup = system_lookup) -> None:
        self._service, self._pool, self._lookup = service, pool, lookup
        self.members = Members()

    def watch(self) -> None:
        """Make the look-up a job of the service."""
        self._service.jobs.add(
            f"dns.{self._pool.name}",
            self.refresh,
            every_s=self._pool.refresh_s,
            what=f"nodes behind {self._pool.host}",
        )

    async def refresh(self) -> None:
        """Look the name up once. EngineUnreachable where it has no answer; nodes stay then."""
        try:
            found = self._checked(await self._lookup(self._pool.host))
        except (OSError, UnicodeError, TimeoutError) as error:
            self.members.observe(None)
            text = f"{self._pool.host}: no answer ({type(error).__name__}); its nodes stay"
            raise EngineUnreachable(text) from error
        change = self.members.observe(found)
        if not found:
            raise EngineUnreachable(f"{self._pool.host}: no usable address; its nodes stay")
        if self.members.crowded:
            text = "%s has %d addresses more than one name may bring"
            log.warning(text, self._pool.host, self.members.crowded)
        for address in change.left:
            await self._leave(address)
        for address in change.joined:
            await self._join(address)

    def _checked(self, texts: Sequence[str]) -> list[str]:
        found = []
        for text in texts:
            try:
                check_never(ip_address(text), field="address")
            except (Forbidden, ValueError):
                self._service.counters["dns_addresses_refused"] += 1
                log.warning("%s points to %s, where no node can be", self._pool.host, text)
                continue
            found.append(text)
        return found

    async def _join(self, address: str) -> None:
        lifecycle, spec = self._service.lifecycle, self._pool.spec(address)
        if self._service.conductor.fleet.has(spec.id) or lifecycle.left_out(spec, "dns"):
            return
        try:
            self._service.guard.trust(spec)
            await lifecycle.add(spec, origin="dns", discover_events=self._pool.discover_events)
        except ConductorError as error:
            self.members.forget(address)
            log.error("%s at %s cannot be a node: %s", self._pool.name, address, error.message)

    async def _leave(self, address: str) -> None:
        node = self._pool.spec(address).id
        if self._service.conductor.fleet.has(node):
            await self._service.lifecycle.vanish(node, f"{self._pool.host} lost {address}")
