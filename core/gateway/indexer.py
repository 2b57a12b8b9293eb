"""The API of Mooncake's KV-cache indexer (RFC 1403): register publishers, ask for matches.

A publisher registered here is a node without an address: its blocks are indexed and nothing is
ever sent to it. Nodes that the scheduler knows by address answer queries as well, under tenant
`default` and their own id.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from core.domain import EngineKind, EventEndpoints, Medium, NodeId, NodeSpec, Slot
from core.errors import BadRequest, Conflict, NotFound
from core.gateway.exchange import Exchange
from core.gateway.flights import Flight
from core.gateway.intake import json_object
from core.gateway.proxy import read_body
from core.gateway.sequence import SequenceBook
from core.hashing import chain, root_key, token_array
from core.identity.authority import require
from core.identity.principal import AccessRole

if TYPE_CHECKING:
    from core.gateway.service import Service

DEFAULT_TENANT = "default"
_KINDS = {"vllm": EngineKind.VLLM, "sglang": EngineKind.SGLANG, "mooncake": EngineKind.VLLM}
_ENDPOINT = re.compile(r"tcp://[A-Za-z0-9.\-\[\]:]+:[0-9]{1,5}")
_MEDIA = {Medium.GPU: "GPU", Medium.CPU: "CPU", Medium.DISK: "DISK"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """A registered publisher: which node of ours holds its blocks, and what keeps it apart."""

    node: NodeId
    instance: str
    tenant: str
    dp_rank: int
    salt: str


class Indexer:
    """Publishers by (instance, tenant, rank), and the book of sequence hashes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._publishers: dict[tuple[str, str, int], Publisher] = {}
        self._by_node: dict[NodeId, Publisher] = {}
        self.book = SequenceBook()

    async def add(self, publisher: Publisher, spec: NodeSpec) -> None:
        """Index a publisher's blocks. Conflict where it is registered already."""
        key = (publisher.instance, publisher.tenant, publisher.dp_rank)
        if key in self._publishers:
            raise Conflict(f"{_name(publisher)} is registered already", field="instance_id")
        self._service.conductor.index.on_tokens = self.book.learn
        await self._service.lifecycle.add(spec, origin="publisher")
        self._service.conductor.drain(spec.id, True, self._service.clock.now())
        self._publishers[key] = self._by_node[spec.id] = publisher

    async def remove(self, instance: str, tenant: str, dp_rank: int) -> str:
        """Stop indexing a publisher; its name. NotFound where it is not registered."""
        publisher = self._publishers.pop((instance, tenant, dp_rank), None)
        if publisher is None:
            raise NotFound(f"{instance}|{tenant}|{dp_rank} is not registered", field="instance_id")
        del self._by_node[publisher.node]
        why = "its publisher was taken out"
        await self._service.lifecycle.take_out(publisher.node, reason=why, author="publisher")
        return _name(publisher)

    def forget(self, node: NodeId) -> None:
        """The node was taken out by other means: its publisher can register again."""
        if publisher := self._by_node.pop(node, None):
            key = (publisher.instance, publisher.tenant, publisher.dp_rank)
            self._publishers.pop(key, None)

    def asked(self, question: Question) -> Iterator[tuple[Slot, NodeSpec, Publisher]]:
        """Nodes that a query is about."""
        for slot, spec in self._service.conductor.fleet.slots():
            publisher = self._by_node.get(spec.id) or _own(spec)
            if spec.block_size != question.block_size or publisher.tenant != question.tenant:
                continue
            if question.instance and publisher.instance != question.instance:
                continue
            if question.model in spec.models and (
                not question.adapter or spec.adapters.get(question.adapter) == question.model
            ):
                yield slot, spec, publisher

    def answer(self, question: Question, keys_under: Callable[[str], Sequence[int]]) -> bytes:
        """Matches by tenant and instance. `keys_under` gives the prompt's keys under a salt."""
        index = self._service.conductor.index
        found: dict[str, dict[str, Any]] = defaultdict(_nothing)
        rows: dict[str, Mapping[Medium, np.ndarray]] = {}
        longest: dict[str, np.ndarray] = {}
        for slot, spec, publisher in self.asked(question):
            registered = spec.id in self._by_node
            if registered and publisher.salt != question.salt:
                continue
            salt = "" if registered else question.salt
            if salt not in rows:
                keys = {question.block_size: keys_under(salt)}
                rows[salt], longest[salt] = index.match_media(keys), index.match(keys)
            entry = found[publisher.instance]
            matched = int(longest[salt][slot])
            entry["longest_matched"] = max(entry["longest_matched"], matched)
            rank = str(publisher.dp_rank)
            entry["DP"][rank] = max(entry["DP"].get(rank, 0), matched)
            for medium, row in rows[salt].items():
                name = _MEDIA[medium]
                entry[name] = max(entry[name], int(row[slot]))
        return orjson.dumps({question.tenant: found})


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a query is about, besides the prompt."""

    model: str
    adapter: str
    tenant: str
    instance: str
    block_size: int
    salt: str


async def register(service: Service, exchange: Exchange, flight: Flight) -> None:
    """POST /register."""
    await _operators_only(service, exchange)
    body = json_object(await read_body(service, exchange, flight))
    publisher, spec = _publisher(body)
    await service.indexer.add(publisher, spec)
    answer = {"status": "registered successfully", "instance_id": publisher.instance}
    await exchange.answer(200, orjson.dumps(answer))


async def unregister(service: Service, exchange: Exchange, flight: Flight) -> None:
    """POST /unregister."""
    await _operators_only(service, exchange)
    body = json_object(await read_body(service, exchange, flight))
    name = await service.indexer.remove(
        _text(body, "instance_id"),
        _text(body, "tenant_id", DEFAULT_TENANT),
        _count(body, "dp_rank", 0),
    )
    answer = {"status": "unregistered successfully", "removed_instances": [name]}
    await exchange.answer(200, orjson.dumps(answer))


async def _operators_only(service: Service, exchange: Exchange) -> None:
    """Publishers are nodes: where the data plane has keys, only operators say who is one."""
    if service.keys.required:
        who = await service.authority.identify(exchange.headers, exchange.peer)
        require(who, AccessRole.OPERATOR)


async def query(service: Service, exchange: Exchange, flight: Flight) -> None:
    """POST /query: matches of a prompt given as token ids."""
    body = json_object(await read_body(service, exchange, flight))
    question = _question(service, exchange, body)
    ids = body.get("token_ids")
    if not isinstance(ids, list):
        raise BadRequest("must be a list of token ids", field="token_ids")
    tokens = token_array(ids, field="token_ids")

    def keys_under(salt: str) -> Sequence[int]:
        root = _root(question, salt)
        keys = chain(tokens, question.block_size, root)
        if service.conductor.index.on_tokens is not None:
            service.indexer.book.learn(tokens, keys, question.block_size, parent=None, root=root)
        return keys

    await exchange.answer(200, service.indexer.answer(question, keys_under))


async def query_by_hash(service: Service, exchange: Exchange, flight: Flight) -> None:
    """POST /query_by_hash: matches of a prompt given as rolling sequence hashes."""
    body = json_object(await read_body(service, exchange, flight))
    question = _question(service, exchange, body)
    field = "seq_hashes" if "seq_hashes" in body else "block_hash"
    hashes = body.get(field)
    if not isinstance(hashes, list) or not all(isinstance(h, int) for h in hashes):
        raise BadRequest("must be a list of 64-bit hashes", field="seq_hashes")
    unsigned = [h & 0xFFFF_FFFF_FFFF_FFFF for h in hashes]

    def keys_under(salt: str) -> Sequence[int]:
        return service.indexer.book.keys_of(_root(question, salt), unsigned)

    await exchange.answer(200, service.indexer.answer(question, keys_under))


def _root(question: Question, salt: str) -> int:
    return root_key(
        question.model, adapter=question.adapter, salt=salt, block_size=question.block_size
    )


def _question(service: Service, exchange: Exchange, body: Mapping[str, Any]) -> Question:
    served = _text(body, "model")
    adapter = _text(body, "lora_name", "")
    base, named = service.names.resolve(served)
    caller = exchange.caller
    return Question(
        model=base,
        adapter=adapter or named,
        tenant=_text(body, "tenant_id", DEFAULT_TENANT),
        instance=_text(body, "instance_id", ""),
        block_size=_count(body, "block_size", None, low=1),
        salt=_text(body, "cache_salt", "") if caller is None else caller.cache_salt,
    )


def _publisher(body: Mapping[str, Any]) -> tuple[Publisher, NodeSpec]:
    instance, model = _text(body, "instance_id"), _text(body, "modelname")
    tenant = _text(body, "tenant_id", DEFAULT_TENANT)
    rank = _count(body, "dp_rank", 0)
    adapter = _text(body, "lora_name", "")
    kind = _text(body, "type").lower()
    if kind not in _KINDS:
        raise BadRequest(f"must be one of {', '.join(sorted(_KINDS))}", field="type")
    publisher = Publisher(
        node=NodeId(f"{instance}|{tenant}|{rank}"),
        instance=instance,
        tenant=tenant,
        dp_rank=rank,
        salt=_text(body, "additionalsalt", "") or _text(body, "additional_salt", ""),
    )
    spec = NodeSpec(
        id=publisher.node,
        url="",
        engine=_KINDS[kind],
        models=(model,),
        adapters={adapter: model} if adapter else {},
        block_size=_count(body, "block_size", None, low=1),
        events=EventEndpoints(
            live=_endpoint(body, "endpoint"),
            replay=_endpoint(body, "replay_endpoint") if body.get("replay_endpoint") else None,
        ),
        dp_rank=rank,
    )
    return publisher, spec


def _own(spec: NodeSpec) -> Publisher:
    """A node of the scheduler's own, as the indexer API sees it."""
    instance = spec.engine_group or spec.id
    return Publisher(
        node=spec.id,
        instance=instance,
        tenant=DEFAULT_TENANT,
        dp_rank=spec.dp_rank or 0,
        salt="",
    )


def _nothing() -> dict[str, Any]:
    return {"longest_matched": 0, "DP": {}, **dict.fromkeys(_MEDIA.values(), 0)}


def _name(p: Publisher) -> str:
    return f"{p.instance}|{p.tenant}|{p.dp_rank}"


def _text(body: Mapping[str, Any], field: str, default: str | None = None) -> str:
    value = body.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or len(value) > 256 or (default is None and not value):
        raise BadRequest("must be a text of at most 256 characters", field=field)
    return value


def _count(body: Mapping[str, Any], field: str, default: int | None, *, low: int = 0) -> int:
    value = body.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 65_536:
        raise BadRequest(f"must be a whole number {low}..65536", field=field)
    return value


def _endpoint(body: Mapping[str, Any], field: str) -> str:
    value = _text(body, field)
    if not _ENDPOINT.fullmatch(value):
        raise BadRequest("must be tcp://host:port", field=field)
    return value
