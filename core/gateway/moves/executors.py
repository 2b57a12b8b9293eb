"""Ways to bring a prefix to a node, behind one protocol. The first that applies is taken.

- `LmcacheMove`: the nodes' LMCache instances copy it between them (controller: POST /move with
  `copy`, which answers when its workers have done it), then one token is asked of the target, so
  that it takes the blocks into its own cache and says so in its events. Whatever LMCache did not
  copy is computed by that request.
- `StoreLoad`: both nodes have one Mooncake Store behind them. The store has no call that loads
  blocks into an engine (its "warmup" opens connections), so the target is asked for one token and
  its connector finds the blocks there.
- `HandOver`: the nodes can hand a prompt over as prefill and decode nodes do. The source is asked
  for one token and keeps the blocks, the target for one token with what the source answered.
- `WarmUp`: the target is asked for one token of the prefix and computes what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from core.domain import EngineKind, NodeSpec, Role
from core.engines.base import Flow, Usage, parse_object
from core.errors import EngineBroken, EngineTimeout
from core.gateway.moves.recent import KnownPrefix

if TYPE_CHECKING:
    from core.gateway.service import Service

COMPLETIONS = "/v1/completions"
ANSWER_BYTES_MAX = 8 << 20
LMCACHE_LOCATION = "LocalCPUBackend"
"""LMCache's tier in the host's memory."""
_JSON = {"content-type": "application/json", "accept": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A prefix to bring from one node to another. A target that is its own source computes."""

    prefix: KnownPrefix
    source: NodeSpec
    target: NodeSpec
    name: str
    """Request id of what is sent, so that engines' logs can be told apart."""

    @property
    def tokens(self) -> int:
        """Length of the prefix."""
        return self.prefix.depth_blocks * self.prefix.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What became of the tokens."""

    cached_tokens: int | None
    """Found in the target's own cache (None: not told)."""
    moved_tokens: int
    """Came from elsewhere."""


class Executor(Protocol):
    """One way."""

    name: str
    moves: bool
    """Whether KV travels; otherwise it is computed anew."""

    def applies(self, source: NodeSpec, target: NodeSpec) -> bool:
        """Whether the nodes can do it."""
        ...

    async def carry_out(self, errand: Errand) -> Carried:
        """Do it. EngineFault where it failed; cancelling gives it up."""
        ...


def executors(service: Service) -> tuple[Executor, ...]:
    """All of them, best first."""
    return LmcacheMove(service), StoreLoad(service), HandOver(service), WarmUp(service)


class WarmUp:
    """The target computes the prefix as if a client had asked for it."""

    name, moves = "warm_up", False

    def __init__(self, service: Service) -> None:
        self._service = service

    def applies(self, source: NodeSpec, target: NodeSpec) -> bool:
        """Always."""
        del source, target
        return True

    async def carry_out(self, errand: Errand) -> Carried:
        """One request for one token."""
        usage, _ = await ask(self._service, errand, errand.target, one_token(errand))
        return Carried(cached_tokens=usage.cached, moved_tokens=0)


class StoreLoad(WarmUp):
    """The target loads the prefix from the store both nodes share."""

    name, moves = "mooncake_store", True

    def applies(self, source: NodeSpec, target: NodeSpec) -> bool:
        """One Mooncake Store behind both."""
        return source.kv_store == target.kv_store == "mooncake" and source.id != target.id

    async def carry_out(self, errand: Errand) -> Carried:
        """One request for one token; what the engine reports as cached it had or has loaded."""
        usage, _ = await ask(self._service, errand, errand.target, one_token(errand))
        return Carried(cached_tokens=None, moved_tokens=usage.cached or 0)


class LmcacheMove(WarmUp):
    """LMCache copies the prefix, the target takes it in."""

    name, moves = "lmcache", True

    def applies(self, source: NodeSpec, target: NodeSpec) -> bool:
        """Both have an instance at one controller."""
        return (
            source.kv_store == target.kv_store == "lmcache"
            and source.id != target.id
            and bool(source.kv_store_url and source.kv_store_instance and target.kv_store_instance)
            and source.kv_store_url == target.kv_store_url
        )

    async def carry_out(self, errand: Errand) -> Carried:
        """Copy, then ask for one token."""
        url = errand.target.kv_store_url
        asked = {
            "old_position": [errand.source.kv_store_instance, LMCACHE_LOCATION],
            "new_position": [errand.target.kv_store_instance, LMCACHE_LOCATION],
            "tokens": errand.prefix.tokens,
            "copy": True,
        }
        told = await call(self._service, f"{url}/move", asked)
        moved = told.get("num_tokens")
        usage, _ = await ask(self._service, errand, errand.target, one_token(errand))
        return Carried(
            cached_tokens=usage.cached, moved_tokens=moved if isinstance(moved, int) else 0
        )


class HandOver:
    """Prefill leg on the source, decode leg on the target, one token each."""

    name, moves = "hand_over", True

    def __init__(self, service: Service) -> None:
        self._service = service

    def applies(self, source: NodeSpec, target: NodeSpec) -> bool:
        """A common connector of the two-step kind, on nodes that take both sides of it."""
        if source.id == target.id or not source.kv_transfer:
            return False
        emulated = source.engine is target.engine is EngineKind.EMULATED
        both = source.role is target.role is Role.BOTH
        return (
            source.kv_transfer == target.kv_transfer
            and self._service.adapter(source).flow is Flow.TWO_STEP
            and self._service.adapter(target).flow is Flow.TWO_STEP
            and (emulated or both)
        )

    async def carry_out(self, errand: Errand) -> Carried:
        """Both legs; the blocks that the target had itself are not sent."""
        service, body = self._service, one_token(errand)
        leg = service.adapter(errand.source).prefill_leg(body)
        _, answer = await ask(service, errand, errand.source, leg)
        leg = service.adapter(errand.target).decode_leg(body, answer)
        usage, _ = await ask(service, errand, errand.target, leg)
        had = usage.cached or 0
        return Carried(cached_tokens=usage.cached, moved_tokens=max(errand.tokens - had, 0))


def one_token(errand: Errand) -> dict[str, Any]:
    """A completion of the prefix that costs its prefill and one token."""
    prompt = errand.prefix.prompt
    body: dict[str, Any] = {
        "model": prompt.served,
        "prompt": errand.prefix.tokens,
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
    }
    if prompt.salt:
        body["cache_salt"] = prompt.salt
    return body


async def ask(
    service: Service, errand: Errand, node: NodeSpec, body: dict[str, Any]
) -> tuple[Usage, dict[str, Any]]:
    """Send a completion to a node: (its counts, its answer). EngineFault where it fails."""
    adapter = service.adapter(node)
    headers = adapter.forward_headers(node, request_id=errand.name) | _JSON
    told = await call(service, node.url.rstrip("/") + COMPLETIONS, body, headers)
    return adapter.usage(told), told


async def call(
    service: Service, url: str, body: Mapping[str, Any], headers: dict[str, str] = _JSON
) -> dict[str, Any]:
    """POST JSON, get a JSON object. EngineFault otherwise."""
    data = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    with await service.upstream.send("POST", url, data, headers) as answer:
        text, whole = await answer.read_all(ANSWER_BYTES_MAX)
        if answer.status == 504:
            raise EngineTimeout(f"{url} answered 504")
        if answer.status != 200 or not whole:
            cut = text[:200].decode("utf-8", "replace")
            raise EngineBroken(f"{url} answered {answer.status}: {cut}")
    return parse_object(text)
