"""From an OpenAI body to a scheduling request: model, prompt, lengths, identity.

As little as possible is judged here: what the engine might accept goes to the engine, whose
errors pass through unchanged. Refused are bodies that are no JSON object, without a model, or
with token ids that are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from core.conductor import Conductor
from core.domain import NodeId, Request, RequestId
from core.errors import BadRequest
from core.gateway.exchange import Exchange, integer_header, seconds_header
from core.hashing import token_array
from core.prompt import Prompt, Prompts, prompt_keys
from core.slo_classes import class_limits

OUTPUT_TOKENS_DEFAULT = 256
_NAME_MAX = 256
_SIZES_MAX = 4_096
ROOM_MAX = 1 << 30
"""Prompt tokens that a node takes which tells no limit."""
BYTES_PER_TOKEN_MOST = 16
"""No text has fewer tokens than one for so many of its bytes."""
_USAGE = b',"stream_options":{"include_usage":true}}'


@dataclass(slots=True, kw_only=True)
class Intake:
    """A parsed request. `raw` is the client's own text of `body`."""

    raw: bytes
    body: dict[str, Any] | None
    served: str
    """Model name as the client wrote it; an adapter's or a base model's."""
    base: str
    adapter: str
    stream: bool
    prompt: Prompt | None
    """None where the route has no prompt that could be scheduled by."""
    request: Request
    adds_usage: bool = False
    """The gateway asks for usage on its own account and takes it out again."""

    def without(self, tried: frozenset[NodeId]) -> Request:
        """The request for a further attempt that avoids the nodes of earlier ones."""
        return msgspec.structs.replace(self.request, tried=tried)

    def upstream_raw(self) -> bytes:
        """The client's bytes, with the gateway's own question for usage where it asks one."""
        if not self.adds_usage:
            return self.raw
        return self.raw.rstrip()[:-1] + _USAGE

    def upstream_body(self) -> dict[str, Any]:
        """The same as an object."""
        if self.body is None:
            raise ValueError("the request has no JSON body")
        if not self.adds_usage:
            return self.body
        return {**self.body, "stream_options": {"include_usage": True}}


class Names:
    """Served model name -> (base model, adapter), and their block sizes; rebuilt when the fleet
    changes."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._version = -1
        self._names: dict[str, tuple[str, str]] = {}
        self._sizes: dict[tuple[str, str], tuple[int, ...]] = {}
        self._rooms: dict[tuple[str, str], int] = {}

    def table(self) -> Mapping[str, tuple[str, str]]:
        """All served names."""
        fleet = self._conductor.fleet
        if fleet.version != self._version:
            self._version = fleet.version
            names: dict[str, tuple[str, str]] = {}
            for spec in fleet.nodes():
                names.update({name: (base, name) for name, base in spec.adapters.items()})
            for spec in fleet.nodes():
                names.update({name: (name, "") for name in spec.models})
            self._names, self._sizes, self._rooms = names, {}, {}
        return self._names

    def block_sizes(self, base: str, adapter: str) -> tuple[int, ...]:
        """Block sizes in use by nodes of the model."""
        self.table()
        found = self._sizes.get((base, adapter))
        if found is None:
            found = self._conductor.block_sizes(base, adapter)
            if len(self._sizes) < _SIZES_MAX:
                self._sizes[base, adapter] = found
        return found

    def room(self, base: str, adapter: str) -> int:
        """Tokens of the longest prompt that any node of the model takes; ROOM_MAX without any."""
        self.table()
        found = self._rooms.get((base, adapter))
        if found is None:
            fleet = self._conductor.fleet
            rows = fleet.serves_model(base, adapter)
            most = (
                float(min(fleet.context_max[slot] - 1, fleet.kv_capacity[slot]))
                for slot, spec in fleet.slots()
                if rows[slot] and spec.url
            )
            found = int(min(max(most, default=0.0), ROOM_MAX)) or ROOM_MAX
            if len(self._rooms) < _SIZES_MAX:
                self._rooms[base, adapter] = found
        return found

    def resolve(self, served: str) -> tuple[str, str]:
        """(base, adapter) of a served name; an unknown name stands for itself."""
        return self.table().get(served, (served, ""))


class OutputLengths:
    """Expected output length: what a model's requests produced lately, under the request's cap."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}

    def expected(self, model: str, cap: int | None) -> int:
        """Tokens to plan for."""
        mean = round(self._mean.get(model, OUTPUT_TOKENS_DEFAULT))
        return max(1, mean if cap is None else min(mean, cap))

    def observe(self, model: str, tokens: int) -> None:
        """Learn from a finished request."""
        known = self._mean.get(model)
        self._mean[model] = tokens if known is None else known + 0.02 * (tokens - known)


async def take_in(
    exchange: Exchange,
    raw: bytes,
    *,
    prompts: Prompts,
    names: Names,
    lengths: OutputLengths,
    ask_usage: bool,
    slo_classes: str,
) -> Intake:
    """Parse a chat or completion request and hash its prompt. BadRequest names the field.

    slo_classes: the live limits by model and tenant (`core.slo_classes`).
    """
    body = json_object(raw)
    if exchange.caller is not None:
        raw = salted(raw, body, exchange.caller.cache_salt)
    served = model_name(body)
    base, adapter = names.resolve(served)
    stream = body.get("stream") is True
    prompt = await prompts.of_body(body, base, served=served)
    _compact(body)
    salt = body.get("cache_salt")
    keys = await prompt_keys(
        prompt,
        base,
        block_sizes=names.block_sizes(base, adapter) if _can_reuse(body) else (),
        adapter=adapter,
        salt=salt if isinstance(salt, str) else "",
    )
    request = Request(
        id=RequestId(exchange.request_id),
        model=base,
        prompt_tokens=_length(prompt, names.room(base, adapter)),
        keys=keys,
        output_tokens_expected=lengths.expected(base, output_cap(body)),
        adapter=adapter,
        **identity(exchange, body, base, slo_classes),
    )
    return Intake(
        raw=raw,
        body=body,
        served=served,
        base=base,
        adapter=adapter,
        stream=stream,
        prompt=prompt,
        request=request,
        adds_usage=ask_usage and stream and not body.get("stream_options") and _can_add(body),
    )


def _can_reuse(body: Mapping[str, Any]) -> bool:
    """Whether an engine reads its cache for the request. For the log-probabilities of a prompt's
    own tokens vLLM and SGLang compute all of it: a match would promise what nobody keeps."""
    if body.get("prompt_logprobs") is not None:
        return False
    return not (body.get("echo") and body.get("logprobs") is not None)


def _length(prompt: Prompt, room: int) -> int:
    """Tokens to schedule by. A guess at a text's length makes it too long for every node only
    where it is so for sure: whether it fits is else for the engine to say."""
    if prompt.exact:
        return prompt.length
    return max(min(prompt.length, room), prompt.text_bytes // BYTES_PER_TOKEN_MOST)


def _compact(body: dict[str, Any]) -> None:
    """Keep a prompt of token ids as an array: a tenth of the memory while the request runs, and
    nothing for the garbage collector to walk through."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        body["prompt"] = token_array(prompt)


def json_object(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object; BadRequest otherwise."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is no JSON: {error}", field="body") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", field="body")
    return body


def salted(raw: bytes, body: dict[str, Any], salt: str) -> bytes:
    """The request's text with the tenant's salt, set in `body` too.

    Whatever the client sent in its place, once or more often, is left out. Without any, the text
    stays the client's own, with one field more.
    """
    sent = "cache_salt" in body
    body["cache_salt"] = salt
    if not sent:
        return (
            raw.rstrip()[:-1]
            + (b',"cache_salt":' if len(body) > 1 else b'"cache_salt":')
            + (orjson.dumps(salt) + b"}")
        )
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise BadRequest(f"the body cannot be passed on: {error}", field="body") from None


def model_name(body: Mapping[str, Any]) -> str:
    """The `model` field; BadRequest where it is no short text."""
    name = body.get("model")
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX:
        raise BadRequest(f"model must be a text of 1..{_NAME_MAX} characters", field="model")
    return name


def identity(
    exchange: Exchange, body: Mapping[str, Any], model: str, slo_classes: str
) -> dict[str, Any]:
    """Tenant, priority, session and limits, from our headers (and the body's session id).

    The tenant is that of the request's key; only a request without one may name its own. Limits
    that the request does not bring are those of its class.
    """
    session, caller = body.get("session_id"), exchange.caller
    said = exchange.header(b"x-conductor-tenant").decode("latin-1")[:_NAME_MAX]
    tenant = said if caller is None else caller.tenant
    ttft_s, tbt_s = class_limits(slo_classes, model, tenant) if slo_classes else (None, None)
    return {
        "tenant": tenant,
        "priority": integer_header(exchange, b"x-conductor-priority", low=-100, high=100) or 0,
        "session": (
            exchange.header(b"x-session-id").decode("latin-1")
            or (session if isinstance(session, str) else "")
        )[:_NAME_MAX],
        "ttft_slo_s": seconds_header(exchange, b"x-conductor-ttft-slo-ms") or ttft_s,
        "tbt_slo_s": seconds_header(exchange, b"x-conductor-tbt-slo-ms") or tbt_s,
    }


def output_cap(body: Mapping[str, Any]) -> int | None:
    """The request's own limit of output tokens, where it has a sensible one."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _can_add(body: Mapping[str, Any]) -> bool:
    """A null `stream_options` in the text would be a second key of that name."""
    return "stream_options" not in body
