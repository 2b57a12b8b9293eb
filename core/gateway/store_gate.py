"""No administrative act without the record store: what cannot be recorded is not done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fastapi import Request

from core.errors import StoreError

if TYPE_CHECKING:
    from core.gateway.service import Service

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_ANSWER_S = 3.0
"""A store that does not answer a question of nothing within this time counts as away."""


def store_gate(service: Service) -> Callable[[Request], Awaitable[None]]:
    """A dependency of every admin route: StoreError for an act while the store is away.

    A service that was built without a store lets acts pass; those that need one say so.
    """

    async def gate(request: Request) -> None:
        if request.method in _READING or service.store is None:
            return
        counters = service.record_counters()
        if counters is not None and not counters.available:
            raise StoreError(f"nothing can be changed now: {counters.last_error}")
        try:
            async with asyncio.timeout(_ANSWER_S):
                await asyncio.to_thread(service.store.ping)
        except TimeoutError:
            text = f"nothing can be changed now: no answer of the record store in {_ANSWER_S:g} s"
            raise StoreError(text) from None

    return gate
