"""Names are resolved here, checked here, and connected to as they were checked.

A name that was harmless when a node was registered may point elsewhere later (DNS rebinding). So
no library resolves a node's name by itself: the data plane (aiohttp), the probes (httpx) and the
event sockets (ZMQ) all ask one `AddressGuard`, which resolves a name, judges every address of the
answer, and hands out addresses to connect to. One address that may not be used condemns the whole
answer.

Hosts of the settings file are trusted: they may be in any network, but never at an address that
no node can have. While a name server is away, the last good answer goes on.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

import httpx
from aiohttp.abc import AbstractResolver, ResolveResult

from core.domain import NodeSpec
from core.engines.addresses import (
    Ip,
    Network,
    addresses_of,
    check_allowed,
    check_never,
    parse_endpoint,
)
from core.errors import ConductorError, EngineUnreachable, Forbidden

RESOLVE_S = 5.0
FRESH_S = 5.0
"""How long an answer is used before the name is asked for again."""
_KEPT = 4096
Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""Host name -> its addresses as text; OSError or TimeoutError where there are none."""


async def system_lookup(host: str) -> list[str]:
    """Ask the system's resolver. OSError or TimeoutError where it does not answer."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(RESOLVE_S):
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class AddressGuard:
    """Resolves hosts of nodes to addresses that may be connected to.

    allowed: networks of hosts that are not trusted; None allows every network. lookup: asks for
    a name's addresses.
    """

    def __init__(
        self, allowed: Sequence[Network] | None = None, *, lookup: Lookup = system_lookup
    ) -> None:
        self._allowed = allowed
        self._lookup = lookup
        self._trusted: set[str] = set()
        self._answers: OrderedDict[str, tuple[float, tuple[Ip, ...]]] = OrderedDict()
        self.refused = 0
        """Answers that held an address which may not be used."""
        self.failures = 0
        """Look-ups that failed; the last good answer went on where there was one."""

    def trust(self, spec: NodeSpec) -> None:
        """Let the hosts that a node of the settings file names be in any network."""
        self._trusted.update(address.host for _, address in addresses_of(spec))

    def trust_host(self, host: str) -> None:
        """The same for a host that the settings name for something else than a node."""
        self._trusted.add(host)

    async def addresses(self, host: str) -> tuple[Ip, ...]:
        """Addresses of a host, all of them checked. Forbidden, or EngineUnreachable."""
        host = host.strip("[]").lower()
        literal = _literal(host)
        if literal is not None:
            self._check(host, (literal,))
            return (literal,)
        loop_s = asyncio.get_running_loop().time()
        kept = self._answers.get(host)
        if kept is not None and loop_s - kept[0] < FRESH_S:
            return kept[1]
        try:
            texts = await self._lookup(host)
            found = tuple(ip_address(text) for text in texts)
        except (OSError, UnicodeError, TimeoutError, ValueError) as error:
            self.failures += 1
            if kept is not None:
                return kept[1]
            raise EngineUnreachable(f"the host name {host!r} cannot be resolved") from error
        if not found:
            raise EngineUnreachable(f"the host name {host!r} has no address")
        self._check(host, found)
        self._keep(host, loop_s, found)
        return found

    async def endpoint(self, text: str) -> str:
        """A ZMQ address with its host replaced by a checked address. As `addresses` raises."""
        address = parse_endpoint(text, field="events")
        ip = (await self.addresses(address.host))[0]
        host = f"[{ip}]" if ip.version == 6 else str(ip)
        return f"tcp://{host}:{address.port}"

    def _check(self, host: str, found: Sequence[Ip]) -> None:
        try:
            for ip in found:
                if self._allowed is None or host in self._trusted:
                    check_never(ip, field="address")
                else:
                    check_allowed(ip, self._allowed, field="address")
        except Forbidden:
            self.refused += 1
            self._answers.pop(host, None)
            raise

    def _keep(self, host: str, at_s: float, found: tuple[Ip, ...]) -> None:
        self._answers[host] = (at_s, found)
        self._answers.move_to_end(host)
        while len(self._answers) > _KEPT:
            self._answers.popitem(last=False)


class GuardedResolver(AbstractResolver):
    """aiohttp's resolver over a guard: the data plane connects to checked addresses only."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Addresses of a name. OSError where there are none, or where they may not be used."""
        try:
            found = await self._guard.addresses(host)
        except ConductorError as error:
            raise OSError(None, error.message) from error
        wanted = {socket.AF_INET: (4,), socket.AF_INET6: (6,)}.get(family, (4, 6))
        return [_result(host, port, ip) for ip in found if ip.version in wanted]

    async def close(self) -> None:
        """Nothing is held."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """httpx's transport over a guard: the address goes into the URL, the name stays in the
    Host header and in TLS."""

    def __init__(self, guard: AddressGuard, inner: httpx.AsyncBaseTransport) -> None:
        self._guard, self._inner = guard, inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to a checked address. ConnectError where there is none."""
        host = request.url.host
        try:
            found = await self._guard.addresses(host)
        except ConductorError as error:
            raise httpx.ConnectError(error.message, request=request) from error
        if _literal(host) is None:
            request.extensions = {**request.extensions, "sni_hostname": host}
            request.url = request.url.copy_with(host=str(found[0]))
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _literal(host: str) -> Ip | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _result(host: str, port: int, ip: Ip) -> ResolveResult:
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    return ResolveResult(
        hostname=host,
        host=str(ip),
        port=port,
        family=family,
        proto=0,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )
