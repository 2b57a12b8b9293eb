"""Where a request comes from: its peer, or what a trusted proxy says of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether an address (or ``localhost``) can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        found = ip_address(host)
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found.is_loopback


def is_local_name(host_header: str) -> bool:
    """Whether a Host header names this machine. A page that another site's name leads here
    (DNS rebinding) carries that name."""
    host = host_header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    return host in _LOCAL_NAMES or is_loopback(host)


def origin(peer: str, forwarded_for: str, trusted: Sequence[Network]) -> str:
    """The client's address: `peer`, unless that is a trusted proxy; then the last address in
    X-Forwarded-For that is none. What an untrusted peer says is ignored."""
    found = peer
    hops = [hop.strip() for hop in forwarded_for.split(",")]
    while hops and _within(found, trusted):
        said = hops.pop()
        try:
            ip_address(said)
        except ValueError:
            break
        found = said
    return found


def _within(address: str, trusted: Sequence[Network]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in trusted)
