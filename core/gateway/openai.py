"""The rest of OpenAI's API: the models that are served, and every other /v1 route by load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from core.domain import Request, RequestId
from core.errors import BadRequest, Forbidden, NotFound
from core.gateway.exchange import Exchange
from core.gateway.flights import Flight
from core.gateway.intake import Intake, identity, model_name, salted
from core.gateway.proxy import read_body, serve

if TYPE_CHECKING:
    from core.gateway.service import Service

OWNER = "kv-conductor"
CLOSED_PATHS = frozenset(
    {
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/loads",
    }
)
"""Engine management and telemetry under /v1: not for clients of the fleet."""
_PATH = re.compile(r"/v1(/(?!\.{1,2}(/|$))[A-Za-z0-9._~!$&'()*+,;=:@-]+)+")
"""Paths that mean the same to everybody: no step up, nothing that is decoded a second time, no
second query. Whatever else is asked for, an engine could read as one of its other routes."""
_BYTES_PER_TOKEN = 4
UPLOAD_TOKENS_MAX = 1_500
"""What a body that is no JSON counts for: a sound or a picture, whose bytes are no text."""


async def models(service: Service, exchange: Exchange, _: Flight) -> None:
    """GET /v1/models, GET /v1/models/{name}."""
    listed = model_list(service)
    name = exchange.path.removeprefix("/v1/models").removeprefix("/")
    if not name:
        await exchange.answer(200, orjson.dumps({"object": "list", "data": listed}))
        return
    for entry in listed:
        if entry["id"] == name:
            await exchange.answer(200, orjson.dumps(entry))
            return
    raise NotFound(f"no node serves the model {name!r}", field="model")


def model_list(service: Service) -> list[dict[str, Any]]:
    """What the fleet serves, base models first; an adapter's parent is its base model."""
    fleet = service.conductor.fleet
    longest: dict[str, int] = {}
    served: set[str] = set()
    for spec in fleet.nodes():
        if spec.url:  # a publisher's blocks are indexed, and nothing is sent to it
            served.update(spec.models, spec.adapters)
        for model in spec.models:
            longest[model] = max(longest.get(model, 0), spec.context_tokens_max)
    created = int(service.started_at.timestamp())
    entries = []
    for name, (base, adapter) in sorted(service.names.table().items(), key=lambda e: (e[1][1], e)):
        if name not in served:
            continue
        entries.append(
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": OWNER,
                "root": base,
                "parent": base if adapter else None,
                "max_model_len": (longest.get(base) or None) if not adapter else None,
            }
        )
    return entries


async def passthrough(service: Service, exchange: Exchange, flight: Flight) -> None:
    """Any other /v1 route: to the least busy node that serves the model, unread."""
    arrived_s = service.clock.now()
    if not _PATH.fullmatch(exchange.path):
        raise BadRequest("the path is not one that is passed on to engines", field="path")
    if exchange.path in CLOSED_PATHS:
        raise Forbidden("this route manages engines and is not open to clients", field="path")
    raw = await read_body(service, exchange, flight)
    body = _json_or_none(exchange, raw)
    if body is not None and exchange.caller is not None:
        raw = salted(raw, body, exchange.caller.cache_salt)
    served = _model(service, body)
    base, adapter = service.names.resolve(served)
    request = Request(
        id=RequestId(exchange.request_id),
        model=base,
        prompt_tokens=_tokens(raw, body, service.names.room(base, adapter)),
        output_tokens_expected=0,
        adapter=adapter,
        **identity(exchange, body or {}, base, service.conductor.tunables.slo.classes),
    )
    intake = Intake(
        raw=raw,
        body=body,
        served=served,
        base=base,
        adapter=adapter,
        stream=False,
        prompt=None,
        request=request,
    )
    await serve(service, exchange, flight, intake, arrived_s=arrived_s)


def _tokens(raw: bytes, body: Mapping[str, Any] | None, room: int) -> int:
    """What the body counts for as load: a guess, which must not make it too long for every node."""
    most = UPLOAD_TOKENS_MAX if body is None else room
    return max(min(len(raw) // _BYTES_PER_TOKEN, most, room), 1)


def _json_or_none(exchange: Exchange, raw: bytes) -> dict[str, Any] | None:
    """The body where it is a JSON object; uploads and empty bodies are passed on unread.

    With a key it is looked for whatever the type says: no prompt may slip by its tenant's salt.
    """
    said = b"json" in exchange.header(b"content-type").lower()
    if not raw or not (said or exchange.caller is not None):
        return None
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None


def _model(service: Service, body: Mapping[str, Any] | None) -> str:
    """The model a request names, or the only one there is."""
    if body is not None and "model" in body:
        return model_name(body)
    bases = {base for base, _ in service.names.table().values()}
    if len(bases) == 1:
        return bases.pop()
    if not bases:
        raise NotFound("no model is served", field="model")
    raise BadRequest("several models are served: name one", field="model")
