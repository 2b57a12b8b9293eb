"""Whether a node may be registered at run time, by the addresses it names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from core.domain import NodeSpec
from core.engines.addresses import Address, Ip, Network, addresses_of, check_allowed
from core.errors import Invalid

RESOLVE_S = 5.0


async def check_addresses(spec: NodeSpec, allowed: Sequence[Network]) -> None:
    """Invalid or Forbidden, naming the field, where the service must not connect.

    Names are resolved now, and each of their addresses is checked.
    """
    for field, address in addresses_of(spec):
        ips = [address.ip] if address.ip is not None else await _resolved(address, field)
        for ip in ips:
            check_allowed(ip, allowed, field=field)


async def _resolved(address: Address, field: str) -> list[Ip]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        raise Invalid(f"{field}: {address.host!r} cannot be resolved", field=field) from None
    return [ip_address(sockaddr[0]) for *_, sockaddr in found]
