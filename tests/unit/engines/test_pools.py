"""Probes of one engine never look at the connections of another."""

from __future__ import annotations

import httpx

from core.engines.pools import PoolPerEngine


class Pool(httpx.AsyncBaseTransport):
    """Answers everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        return httpx.Response(200)

    async def aclose(self) -> None:
        self.closed = True


async def test_each_engine_has_a_pool_of_its_own() -> None:
    made: list[Pool] = []
    transport = PoolPerEngine(lambda: made.append(Pool()) or made[-1])  # type: ignore[func-returns-value]
    async with httpx.AsyncClient(transport=transport) as client:
        for url in ("http://a:1/health", "http://b:1/health", "http://a:2/x", "http://a:1/metrics"):
            assert (await client.get(url)).status_code == 200
        asked = [pool.asked for pool in made]
        assert asked[0] == ["http://a:1/health", "http://a:1/metrics"]
        assert asked[1:] == [["http://b:1/health"], ["http://a:2/x"]]
        assert not any(pool.closed for pool in made)
    assert all(pool.closed for pool in made)


async def test_beyond_the_limit_the_pool_asked_longest_ago_is_closed() -> None:
    made: list[Pool] = []
    transport = PoolPerEngine(lambda: made.append(Pool()) or made[-1], pools_max=2)  # type: ignore[func-returns-value]
    async with httpx.AsyncClient(transport=transport) as client:
        for url in ("http://a/", "http://b/", "http://a/", "http://c/"):
            await client.get(url)
        assert [pool.closed for pool in made] == [False, True, False]
