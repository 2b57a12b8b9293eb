"""Asking an engine for the token ids of a prompt: the fallback of local tokenizers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from core.domain import NodeSpec
from core.errors import EngineFault

if TYPE_CHECKING:
    from core.gateway.service import Service

_HEADERS = {"content-type": "application/json", "accept": "application/json"}


class EngineTokenizer:
    """`core.prompt.Remote` over the data plane's session."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def ids(self, served: str, fields: dict[str, Any]) -> Sequence[int] | None:
        """Ids by an engine that serves the model; None where none answers with ids in time."""
        spec = self._node(served)
        if spec is None:
            return None
        body = {"model": served, **fields}
        try:
            async with asyncio.timeout(self._service.limits.tokenize_timeout_s):
                return await self._ask(spec, body)
        except (TimeoutError, EngineFault):
            self._service.counters["tokenize.failed"] += 1
            return None

    async def _ask(self, spec: NodeSpec, body: Mapping[str, Any]) -> Sequence[int] | None:
        service = self._service
        adapter = service.adapter(spec)
        url = spec.url.rstrip("/") + adapter.tokenize_path
        answer = await service.upstream.send("POST", url, orjson.dumps(body), _HEADERS)
        with answer:
            text, whole = await answer.read_all(service.limits.answer_bytes_max)
            return adapter.parse_tokens(text) if whole and answer.status == 200 else None

    def _node(self, served: str) -> NodeSpec | None:
        """The healthy node of a served name with the fewest requests in flight."""
        conductor = self._service.conductor
        fleet, ledger = conductor.fleet, conductor.ledger
        base, adapter = self._service.names.resolve(served)
        rows = fleet.serves_model(base, adapter) & fleet.healthy
        slots = [int(slot) for slot in rows.nonzero()[0]]
        return fleet.spec_at(min(slots, key=ledger.inflight)) if slots else None
