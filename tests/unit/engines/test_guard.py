"""Names resolve to checked addresses only, whoever connects."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import httpx
import pytest

from core.domain import EventEndpoints, NodeId, NodeSpec
from core.engines import guard as guarding
from core.engines.addresses import networks
from core.engines.guard import AddressGuard, GuardedResolver
from core.engines.members import ABSENCES_MAX, MEMBERS_MAX, Change, Members
from core.engines.probe import make_client
from core.errors import EngineUnreachable, Forbidden

PRIVATE = networks(("127.0.0.0/8", "10.0.0.0/8", "::1/128"))


class Names:
    """A name server whose answers can be changed."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, 0

    async def __call__(self, host):
        self.asked += 1
        found = self.answers.get(host.split(".")[0])
        if found is None:
            raise socket.gaierror("no such name")
        return found


@pytest.fixture
def hurried(monkeypatch):
    """No answer is fresh: every use asks again."""
    monkeypatch.setattr(guarding, "FRESH_S", 0.0)


async def test_every_address_of_an_answer_is_judged():
    names = Names(good=["10.0.0.1", "10.0.0.2"], mixed=["10.0.0.1", "8.8.8.8"], none=[])
    guard = AddressGuard(PRIVATE, lookup=names)
    assert [str(ip) for ip in await guard.addresses("good.example")] == ["10.0.0.1", "10.0.0.2"]
    for host in ("mixed.example", "8.8.8.8", "169.254.169.254"):
        with pytest.raises(Forbidden):
            await guard.addresses(host)
    for host in ("none.example", "unknown.example"):
        with pytest.raises(EngineUnreachable):
            await guard.addresses(host)
    assert (guard.refused, guard.failures) == (3, 1)


async def test_hosts_of_the_settings_may_be_anywhere_but_never_where_clouds_answer():
    names = Names(far=["8.8.8.8"], meta=["169.254.169.254"])
    guard = AddressGuard(PRIVATE, lookup=names)
    for host in ("far.example", "meta.example", "1.1.1.1"):
        events = EventEndpoints(live=f"tcp://{host}:5557")
        guard.trust(NodeSpec(id=NodeId("n"), url=f"http://{host}:8000", events=events))
    assert str((await guard.addresses("far.example"))[0]) == "8.8.8.8"
    assert str((await guard.addresses("1.1.1.1"))[0]) == "1.1.1.1"
    with pytest.raises(Forbidden):
        await guard.addresses("meta.example")


async def test_the_last_good_answer_goes_on_while_the_name_server_is_away(hurried):
    names = Names(pool=["10.0.0.1"])
    guard = AddressGuard(PRIVATE, lookup=names)
    await guard.addresses("pool.example")
    del names.answers["pool"]
    assert str((await guard.addresses("pool.example"))[0]) == "10.0.0.1"
    assert guard.failures == 1
    # But an answer that may not be used ends it.
    names.answers["pool"] = ["169.254.169.254"]
    with pytest.raises(Forbidden):
        await guard.addresses("pool.example")
    del names.answers["pool"]
    with pytest.raises(EngineUnreachable):
        await guard.addresses("pool.example")


async def test_answers_are_kept_for_a_moment():
    names = Names(pool=["10.0.0.1"])
    guard = AddressGuard(PRIVATE, lookup=names)
    for _ in range(5):
        await guard.addresses("pool.example")
    assert names.asked == 1


async def test_zmq_gets_an_address_instead_of_a_name():
    guard = AddressGuard(PRIVATE, lookup=Names(pool=["10.0.0.7"], six=["::1"]))
    assert await guard.endpoint("tcp://pool.example:5557") == "tcp://10.0.0.7:5557"
    assert await guard.endpoint("tcp://six.example:5557") == "tcp://[::1]:5557"
    assert await guard.endpoint("tcp://10.0.0.9:5557") == "tcp://10.0.0.9:5557"


async def served(handle):
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_a_name_that_turns_is_not_followed(hurried):
    """DNS rebinding: the second answer points where no node can be. Nobody connects there."""
    heads = []

    async def handle(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server, port = await served(handle)
    names = Names(engine=["127.0.0.1"])
    guard = AddressGuard(PRIVATE, lookup=names)
    connector = aiohttp.TCPConnector(resolver=GuardedResolver(guard), use_dns_cache=False)
    url = f"http://engine.example:{port}/"
    async with (
        server,
        make_client(guard=guard) as probes,
        aiohttp.ClientSession(connector=connector) as plane,
    ):
        assert (await probes.get(url)).status_code == 200
        async with plane.get(url) as answer:
            assert answer.status == 200
        assert all(b"engine.example:%d" % port in head for head in heads)
        for turned in (["169.254.169.254"], ["127.0.0.1", "8.8.8.8"]):
            names.answers["engine"] = turned
            with pytest.raises(httpx.ConnectError):
                await probes.get(url)
            with pytest.raises(aiohttp.ClientConnectorDNSError):
                await plane.get(url)
    assert len(heads) == 2


# -- members of a name ----------------------------------------------------------------------------


def test_members_join_at_once_and_leave_after_a_while():
    members = Members()
    assert members.observe(["b", "a"]) == Change(joined=("a", "b"))
    for _ in range(ABSENCES_MAX - 1):
        assert members.observe(["a"]) == Change()
    assert members.observe(["a", "b"]) == Change()  # it was there again: counted anew
    for _ in range(ABSENCES_MAX - 1):
        members.observe(["a"])
    assert members.observe(["a"]) == Change(left=("b",))
    assert members.known == ("a",)
    assert members.observe(["a", "b"]) == Change(joined=("b",))


@pytest.mark.parametrize("answer", [None, []])
def test_an_answer_that_is_none_changes_nothing(answer):
    members = Members()
    members.observe(["a", "b"])
    for _ in range(10 * ABSENCES_MAX):
        assert members.observe(answer) == Change()
    assert members.known == ("a", "b") and members.failures == 10 * ABSENCES_MAX


def test_a_crowd_is_bounded():
    members = Members()
    change = members.observe([f"10.0.{i // 250}.{i % 250}" for i in range(MEMBERS_MAX + 7)])
    assert len(change.joined) == MEMBERS_MAX and members.crowded == 7
