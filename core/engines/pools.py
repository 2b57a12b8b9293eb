"""A pool of connections for each engine, behind one transport.

httpcore looks at every connection of a pool, with a call to the system each, whenever a request
begins or ends. In one pool for a whole fleet that work grows with the square of the nodes: at 256
of them, probes took most of the service's time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import httpx

POOLS_MAX = 4_096
"""Engines whose connections are kept; the one that was asked longest ago goes first."""

Origin = tuple[str, str, int | None]
"""Scheme, host, port."""


class PoolPerEngine(httpx.AsyncBaseTransport):
    """Hands each request to the transport of its origin, which `make` creates when first needed."""

    def __init__(
        self, make: Callable[[], httpx.AsyncBaseTransport], *, pools_max: int = POOLS_MAX
    ) -> None:
        self._make = make
        self._pools_max = pools_max
        self._pools: OrderedDict[Origin, httpx.AsyncBaseTransport] = OrderedDict()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request over a connection of its engine."""
        url = request.url
        origin = (url.scheme, url.host, url.port)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = self._make()
        self._pools.move_to_end(origin)
        while len(self._pools) > self._pools_max:
            _, oldest = self._pools.popitem(last=False)
            await oldest.aclose()
        return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        while self._pools:
            _, pool = self._pools.popitem()
            await pool.aclose()
