"""Which addresses a node may have: what the service connects to must not be chosen by a stranger.

Pure. One strict grammar reads an address, so that no two libraries can disagree about the host
in it; an address in digits has to be written in the usual way. Hosts are judged by address:
names are resolved by the caller, and every address of a name has to be allowed. Some addresses
are refused whatever is allowed: link-local ones and those where clouds answer with credentials,
multicast, unspecified, broadcast, reserved, and IPv6 forms that embed an IPv4 address.

Invalid (422) for a text that is no address of the kind, Forbidden (403) for one that may not be
used; both name the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from core.domain import NodeSpec
from core.errors import Forbidden, Invalid

Ip = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_URL = re.compile(r"(https?)://(\[[^\]]*\]|[^/:\[\]]*)(?::([^/:]*))?(/.*)?")
_ENDPOINT = re.compile(r"(tcp)://(\[[^\]]*\]|[^/:\[\]]*)(?::([^/:]*))()")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_HOST_MAX = 253
_NEVER_NAMES = ("metadata", "metadata.google.internal", "instance-data")

_NEVER: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), what)
    for network, what in (
        ("169.254.0.0/16", "link-local, where clouds serve metadata"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("fd00:ec2::/32", "a cloud's metadata service"),
        ("fd20:ce::/32", "a cloud's metadata service"),
        ("100.100.100.200/32", "a cloud's metadata service"),
        ("168.63.129.16/32", "a cloud's metadata service"),
        ("192.0.0.0/24", "reserved"),
        ("0.0.0.0/8", "unspecified"),
        ("::/128", "unspecified"),
        ("224.0.0.0/4", "multicast"),
        ("ff00::/8", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
        ("::ffff:0:0/96", "an IPv4 address in IPv6"),
        ("::ffff:0:0:0/96", "an IPv4 address in IPv6"),
        ("64:ff9b::/96", "an IPv4 address in IPv6"),
        ("64:ff9b:1::/48", "an IPv4 address in IPv6"),
        ("2002::/16", "an IPv4 address in IPv6"),
        ("2001::/32", "an IPv4 address in IPv6"),
    )
)
_COMPATIBLE = ip_network("::/96")
_LOOPBACK6 = IPv6Address("::1")


@dataclass(frozen=True, slots=True)
class Address:
    """A node's address taken apart; `ip` is None where the host is a name to be resolved."""

    host: str
    port: int | None
    ip: Ip | None


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks in CIDR form; ValueError for one that is none."""
    return tuple(ip_network(text) for text in texts)


def parse_url(text: str, *, field: str) -> Address:
    """An engine's base URL: http or https, host, perhaps a port and a plain path."""
    return _parse(_URL, text, field, "http://host:port or https://host:port")


def parse_endpoint(text: str, *, field: str) -> Address:
    """A ZMQ address to connect to: tcp://host:port."""
    return _parse(_ENDPOINT, text, field, "tcp://host:port to connect to")


def addresses_of(spec: NodeSpec) -> list[tuple[str, Address]]:
    """(field, address) of everything the service would connect to for a node."""
    found = []
    if spec.url:
        found.append(("url", parse_url(spec.url, field="url")))
    if spec.events is not None:
        found.append(("events.live", parse_endpoint(spec.events.live, field="events.live")))
        if spec.events.replay is not None:
            field = "events.replay"
            found.append((field, parse_endpoint(spec.events.replay, field=field)))
    if spec.kv_store_url:
        found.append(("kv_store_url", parse_url(spec.kv_store_url, field="kv_store_url")))
    return found


def check_never(ip: Ip, *, field: str) -> None:
    """Forbidden for an address that no setting can allow."""
    what = next((what for network, what in _NEVER if ip in network), "")
    if not what and ip in _COMPATIBLE and ip != _LOOPBACK6:
        what = "an IPv4 address in IPv6"
    if what or getattr(ip, "scope_id", None):
        what = what or "bound to an interface"
        raise Forbidden(f"{field}: {ip} is {what}; a node cannot be there", field=field)


def check_allowed(ip: Ip, allowed: Sequence[Network], *, field: str) -> None:
    """Forbidden for an address outside the allowed networks, or one that never is allowed."""
    check_never(ip, field=field)
    if not any(ip in network for network in allowed):
        text = f"{field}: {ip} is in no network of registration.allowed_networks"
        raise Forbidden(text, field=field)


def check_trusted(spec: NodeSpec) -> None:
    """Check a node of the settings file: any network and any name, but never a refused one."""
    for field, address in addresses_of(spec):
        if address.ip is not None:
            check_never(address.ip, field=field)


def _parse(form: re.Pattern[str], text: str, field: str, expected: str) -> Address:
    _check_characters(text, field)
    found = form.fullmatch(text)
    if found is None:
        raise Invalid(f"{field}: expected {expected}", field=field)
    _, host, port, path = found.groups()
    if port is not None and not (_PORT.fullmatch(port) and int(port) <= 65535):
        raise Invalid(f"{field}: the port must be a number 1..65535", field=field)
    _check_path(path or "", field)
    ip = _literal(host, field)
    if ip is None:
        _check_name(host, field)
    return Address(host.strip("[]").lower(), None if port is None else int(port), ip)


def _check_characters(text: str, field: str) -> None:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise Invalid(f"{field}: only visible ASCII characters are allowed", field=field)
    for mark, what in (
        ("@", "a user or password"),
        ("#", "a fragment"),
        ("?", "a query"),
        ("\\", "a backslash"),
        ("%", "percent-encoding"),
        ("*", "a wildcard"),
    ):
        if mark in text:
            raise Invalid(f"{field}: {what} is not allowed in a node's address", field=field)


def _check_path(path: str, field: str) -> None:
    plain = _PATH.fullmatch(path) is not None
    if not plain or any(part in (".", "..") for part in path.split("/")):
        raise Invalid(f"{field}: the path must be plain names between slashes", field=field)


def _literal(host: str, field: str) -> Ip | None:
    """The address a host writes in digits; None for a name, Invalid for an unusual spelling."""
    inner = host[1:-1] if host.startswith("[") else host
    if host.startswith("[") or _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        try:
            ip = IPv6Address(inner) if host.startswith("[") else ip_address(inner)
        except ValueError:
            text = f"{field}: {host!r} is no address in its usual spelling"
            raise Invalid(text, field=field) from None
        if str(ip) != inner.lower():
            raise Invalid(f"{field}: write the address {host} as {ip}", field=field)
        return ip
    return None


def _check_name(host: str, field: str) -> None:
    if not host or len(host) > _HOST_MAX or not all(map(_LABEL.fullmatch, host.split("."))):
        raise Invalid(f"{field}: {host!r} is not a host name", field=field)
    if host.lower() in _NEVER_NAMES:
        raise Forbidden(f"{field}: {host} is a cloud's metadata service", field=field)
