"""Hostile and harmless node addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address

import pytest

from core.domain import EventEndpoints, NodeId, NodeSpec
from core.engines.addresses import (
    addresses_of,
    check_allowed,
    check_never,
    check_trusted,
    networks,
    parse_endpoint,
    parse_url,
)
from core.errors import Forbidden, Invalid, UsageError
from core.settings import RegistrationSettings, Settings

ALLOWED = networks(RegistrationSettings().allowed_networks)
EVERYTHING = networks(["0.0.0.0/0", "::/0"])

# Spellings of an address by its four bytes that some library or other understands.
ODD = (
    lambda a, b, c, d: f"{(a << 24) + (b << 16) + (c << 8) + d}",
    lambda a, b, c, d: f"0x{(a << 24) + (b << 16) + (c << 8) + d:x}",
    lambda a, b, c, d: f"0X{(a << 24) + (b << 16) + (c << 8) + d:08X}",
    lambda a, b, c, d: f"0{(a << 24) + (b << 16) + (c << 8) + d:o}",
    lambda a, b, c, d: f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
    lambda a, b, c, d: f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
    lambda a, b, c, d: f"0{a:04o}.{b}.{c}.{d}",
    lambda a, b, c, d: f"{a:03d}.{b:03d}.{c:03d}.{d:03d}0",
    lambda a, b, c, d: f"{a}.{(b << 16) + (c << 8) + d}",
    lambda a, b, c, d: f"{a}.{b}.{(c << 8) + d}",
    lambda a, b, c, d: f"{a}.{b}.{c}.{d:#x}",
    lambda a, b, c, d: f"{a}.{b}.{c}.{d}.",
    lambda a, b, c, d: f"{a}.{b}.{c}.{d}..",
    lambda a, b, c, d: f"{a + 256}.{b}.{c}.{d}",
    lambda a, b, c, d: f"[::ffff:{a}.{b}.{c}.{d}]",
    lambda a, b, c, d: f"[::ffff:{a:02x}{b:02x}:{c:02x}{d:02x}]",
    lambda a, b, c, d: f"[0:0:0:0:0:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}]",
    lambda a, b, c, d: f"[::{a}.{b}.{c}.{d}]",
    lambda a, b, c, d: f"[64:ff9b::{a}.{b}.{c}.{d}]",
    lambda a, b, c, d: f"[2002:{a:02x}{b:02x}:{c:02x}{d:02x}::]",
    lambda a, b, c, d: f"[{a}.{b}.{c}.{d}]",
    lambda a, b, c, d: f"{a}%2e{b}%2e{c}%2e{d}",
    lambda a, b, c, d: f"{a}\u3002{b}\u3002{c}\u3002{d}",
    lambda a, b, c, d: "".join(
        chr(0xFF10 + int(x)) if x.isdigit() else x for x in f"{a}.{b}.{c}.{d}"
    ),
)
VICTIMS = ("169.254.169.254", "127.0.0.1", "10.0.0.1", "100.100.100.200", "8.8.8.8", "192.168.1.1")

SPELLED_ODDLY = [
    f"http://{odd(*IPv4Address(victim).packed)}:8000" for victim in VICTIMS for odd in ODD
]

MALFORMED = [
    "", "http", "http:", "http:/", "http://", "http:///", "http://:80", "//127.0.0.1", "127.0.0.1",
    "127.0.0.1:8000", "ftp://127.0.0.1", "file:///etc/passwd", "gopher://127.0.0.1:70/_x",
    "dict://127.0.0.1:11211/stats", "tcp://127.0.0.1:5557", "unix:///run/x.sock",
    "javascript:alert(1)", "data:text/plain,x", "HTTP://127.0.0.1", "http+unix://%2Frun%2Fx",
    "http://user@127.0.0.1", "http://user:pw@127.0.0.1:8000", "http://@127.0.0.1",
    "http://10.0.0.1@169.254.169.254", "http://10.0.0.1:80@169.254.169.254/",
    "http://10.0.0.1#@169.254.169.254/", "http://10.0.0.1?@169.254.169.254/",
    "http://169.254.169.254#.10.0.0.1", "http://10.0.0.1/#x", "http://10.0.0.1#",
    "http://10.0.0.1?x=1", "http://10.0.0.1/?", "http://10.0.0.1\\@169.254.169.254/",
    "http:\\\\10.0.0.1", "http://10.0.0.1\\x", "http://10.0.0.1 ", " http://10.0.0.1",
    "http://10.0.0.1\t", "http://10.0.0.1\r\nHost: x", "http://10.0.0.1\n", "ht\ntp://10.0.0.1",
    "http://10.0.0.1\x00", "http://10.0.0.1%00.x.org", "http://10.0.0.1%0d%0a", "http://%31%30.1",
    "http://10.0.0.1:", "http://10.0.0.1:0", "http://10.0.0.1:65536", "http://10.0.0.1:-1",
    "http://10.0.0.1:+80", "http://10.0.0.1:080", "http://10.0.0.1:8_0", "http://10.0.0.1:x",
    "http://10.0.0.1:80:80", "http://10.0.0.1:\u0661", "http://10.0.0.1:80 80",
    "http://[::1", "http://::1", "http://::1]:80", "http://[]", "http://[::1]x", "http://[::1]:",
    "http://[::1%lo]", "http://[::1%25lo]", "http://[fe80::1%eth0]", "http://[v1.x]",
    "http://[0:0:0:0:0:0:0:1]", "http://[::0001]", "http://[0::1]", "http://[1]", "http://[::g]",
    "http://localhost.", "http://engine..lan", "http://.lan", "http://-x.lan", "http://x-.lan",
    "http://a/../b", "http://a/./b", "http://a//b", "http://a/b;c", "http://a/%2e%2e/",
    "http://a/b c",
    "http://*", "http://*:80", "http://10.0.0.*", "http://a,b", "http://a;b", "http://a|b",
    "http://{x}",
    "http://m\u00e9tadata", "http://ⓛocalhost", "http://" + "a" * 64, "http://" + "a." * 127 + "ab",
    "http://engine.1", "http://engine.0x7f", "http://1.2.3.4.5", "http://256.1.1.1", "http://1e3.1",
]  # fmt: skip

REFUSED_ALWAYS = [
    "http://169.254.169.254", "http://169.254.169.254/latest/meta-data/", "https://169.254.170.2",
    "http://169.254.0.1:80", "http://[fe80::1]", "http://[fe80::a9fe:a9fe]:80", "http://[febf::1]",
    "http://[fec0::1]", "http://[fd00:ec2::254]", "http://[fd20:ce::254]",
    "http://100.100.100.200", "http://168.63.129.16", "http://192.0.0.192", "http://0.0.0.0",
    "http://0.0.0.0:8000", "http://0.1.2.3", "http://[::]", "http://[::]:8000", "http://224.0.0.1",
    "http://239.255.255.250:1900", "http://[ff02::1]", "http://[ff05::1:3]", "http://240.0.0.1",
    "http://255.255.255.255", "http://[::7f00:1]", "http://[2002:7f00:1::]",
    "http://[2001:0:a00:1::]".replace(":0:a00:1::", "::a00:1"), "http://[64:ff9b:1::1]",
]  # fmt: skip

OUTSIDE = [
    "http://8.8.8.8", "http://1.1.1.1:80", "http://100.64.0.1", "http://172.32.0.1",
    "http://172.15.255.255", "http://11.0.0.1", "http://192.169.0.1", "http://[2606:4700::1111]",
    "http://[2001:db8::1]", "http://128.0.0.1",
]  # fmt: skip

HARMLESS = [
    ("http://127.0.0.1", "127.0.0.1", None),
    ("http://127.0.0.1:8000", "127.0.0.1", 8000),
    ("https://10.1.2.3:65535/prefix/v2", "10.1.2.3", 65535),
    ("http://[::1]:8000", "::1", 8000),
    ("http://[fd12::5]", "fd12::5", None),
    ("http://[FD12::5]/", "fd12::5", None),
    ("http://172.31.255.255:1", "172.31.255.255", 1),
    ("http://192.168.0.1/", "192.168.0.1", None),
]
NAMED = ["http://localhost:8000", "http://Engine-1.gpu_pool.svc:80", "https://a.b.c/x", "http://x1"]


def judged(url: str, allowed=ALLOWED) -> None:
    address = parse_url(url, field="url")
    assert address.ip is not None, "a name"
    check_allowed(address.ip, allowed, field="url")


def test_there_are_at_least_200_hostile_urls():
    assert len({*SPELLED_ODDLY, *MALFORMED, *REFUSED_ALWAYS, *OUTSIDE}) >= 200


@pytest.mark.parametrize("url", SPELLED_ODDLY)
def test_odd_spellings_are_refused_even_where_everything_is_allowed(url):
    with pytest.raises((Invalid, Forbidden), match=r"^url: ") as caught:
        judged(url, EVERYTHING)
    assert caught.value.field == "url"


@pytest.mark.parametrize("url", MALFORMED)
def test_what_is_no_plain_url_is_invalid(url):
    with pytest.raises(Invalid, match=r"^url: ") as caught:
        parse_url(url, field="url")
    assert (caught.value.field, caught.value.status) == ("url", 422)


@pytest.mark.parametrize("url", REFUSED_ALWAYS)
def test_some_addresses_are_refused_whatever_is_allowed(url):
    with pytest.raises(Forbidden, match=r"^url: ") as caught:
        judged(url, EVERYTHING)
    assert (caught.value.field, caught.value.status) == ("url", 403)


@pytest.mark.parametrize("url", OUTSIDE)
def test_networks_have_to_be_allowed(url):
    with pytest.raises(Forbidden, match="allowed_networks"):
        judged(url)
    judged(url, EVERYTHING)


@pytest.mark.parametrize(("url", "host", "port"), HARMLESS)
def test_private_and_loopback_addresses_pass(url, host, port):
    judged(url)
    address = parse_url(url, field="url")
    assert (address.host, address.port, address.ip) == (host, port, ip_address(host))


@pytest.mark.parametrize("url", NAMED)
def test_names_are_left_to_be_resolved(url):
    assert parse_url(url, field="url").ip is None


@pytest.mark.parametrize(
    "name", ["metadata", "metadata.google.internal", "Metadata.Google.Internal"]
)
def test_names_of_metadata_services_are_refused(name):
    with pytest.raises(Forbidden):
        parse_url(f"http://{name}/", field="url")


@pytest.mark.parametrize(
    "text",
    ["tcp://10.0.0.1", "tcp://*:5557", "tcp://10.0.0.1:5557/x", "ipc:///x", "inproc://x",
     "tcp://eth0;10.0.0.1:5", "pgm://10.0.0.1:1", "tcp://10.0.0.1:0", "tcp://10.0.0.1:*",
     "tcp://1:5557", "tcp://u@10.0.0.1:1",
     "tcp://:1"],
)  # fmt: skip
def test_event_addresses_are_tcp_host_and_port(text):
    with pytest.raises(Invalid) as caught:
        parse_endpoint(text, field="events.live")
    assert caught.value.field == "events.live"


def test_scoped_addresses_of_resolvers_are_refused():
    with pytest.raises(Forbidden):
        check_never(ip_address("fd12::1%eth0"), field="url")


def spec(url="http://10.0.0.1", live="tcp://10.0.0.1:1", replay=None) -> NodeSpec:
    return NodeSpec(id=NodeId("n"), url=url, events=EventEndpoints(live=live, replay=replay))


def test_every_address_of_a_node_is_named():
    found = addresses_of(spec(replay="tcp://h:2"))
    assert [(field, a.host) for field, a in found] == [
        ("url", "10.0.0.1"), ("events.live", "10.0.0.1"), ("events.replay", "h"),
    ]  # fmt: skip
    assert [field for field, _ in addresses_of(spec(url=""))] == ["events.live"]


def test_trusted_nodes_may_be_anywhere_but_at_refused_addresses():
    check_trusted(spec(url="http://8.8.8.8", live="tcp://engine.example.org:1"))
    for bad, field in (
        (spec(url="http://169.254.169.254"), "url"),
        (spec(url="http://2852039166"), "url"),
        (spec(live="tcp://[fe80::1]:1"), "events.live"),
        (spec(replay="tcp://0.0.0.0:1"), "events.replay"),
    ):
        with pytest.raises(UsageError) as caught:
            check_trusted(bad)
        assert caught.value.field == field


def test_settings_check_networks():
    with pytest.raises(ValueError, match="does not appear to be"):
        Settings(registration={"allowed_networks": ["10.0.0.0/8", "nonsense"]})
    with pytest.raises(ValueError, match="host bits set"):
        Settings(registration={"allowed_networks": ["10.0.0.1/8"]})
