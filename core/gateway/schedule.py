"""Scheduling for gateways elsewhere: POST /v1/schedule, and what became of it.

Without `reserve` the answer is a decision and nothing else: no load is counted. With it, the
decision counts until its owner reports (`complete`, `abort`) or its time runs out. In queue mode
a reservation that would have to wait is refused with 429 `no_room` and a Retry-After.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import orjson

from core.domain import Decision, NodeId, Outcome, OutcomeKind, Rejection
from core.errors import BadRequest, NotFound
from core.gateway import errors
from core.gateway.errors import prediction
from core.gateway.exchange import Exchange
from core.gateway.flights import Flight
from core.gateway.intake import take_in
from core.gateway.proxy import read_body

if TYPE_CHECKING:
    from core.gateway.service import Service

T = TypeVar("T", bound=msgspec.Struct)

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_FIELDS = ("reserve", "ttl_s", "explain", "exclude")


class Options(msgspec.Struct, kw_only=True):
    """What /v1/schedule takes besides the fields of a completion or chat request."""

    reserve: bool = False
    ttl_s: float | None = None
    """Life of the reservation; at most the service's limit."""
    explain: bool = False
    """List every candidate with its inputs and terms."""
    exclude: list[str] = []
    """Nodes to avoid, e.g. those that failed this request already."""


class Report(msgspec.Struct, kw_only=True):
    """What the owner of a reservation saw; all optional."""

    kind: Literal["ok", "engine_error", "timeout", "refused"] = "ok"
    ttft_s: Seconds | None = None
    tbt_s: Seconds | None = None
    tpot_s: Seconds | None = None
    e2e_s: Seconds | None = None
    prompt_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    status: Annotated[int, msgspec.Meta(ge=100, le=599)] | None = None
    error: str = ""
    failed_node: str | None = None


class Progress(msgspec.Struct, kw_only=True):
    """Where a reserved request stands: its load moves from prefill to decode."""

    phase: Literal["prefill_done", "first_token"]
    cached_tokens: Tokens | None = None


async def schedule(service: Service, exchange: Exchange, flight: Flight) -> None:
    """POST /v1/schedule: decide for an OpenAI body (prompt, token ids or messages)."""
    raw = await read_body(service, exchange, flight)
    intake = await take_in(
        exchange,
        raw,
        prompts=service.prompts,
        names=service.names,
        lengths=service.lengths,
        ask_usage=False,
        slo_classes=service.conductor.tunables.slo.classes,
    )
    assert intake.body is not None
    options = _typed({k: intake.body[k] for k in _FIELDS if k in intake.body}, Options)
    life_s = _life_s(service, options.ttl_s)
    if options.reserve:
        service.elsewhere.check_room()
    request = intake.without(frozenset(NodeId(n) for n in options.exclude))
    refused = service.waiting.turned_away(request) if options.reserve else None
    decided = refused or service.decide(request, what_if=not options.reserve)
    if isinstance(decided, Rejection):
        status, body, retry_after_s = errors.from_rejection(decided)
        await exchange.refuse(status, body, retry_after_s)
        return
    answer = _decision(service, decided, exact=intake.prompt is not None and intake.prompt.exact)
    if options.explain:
        answer["candidates"] = _candidates(decided)
    if exchange.caller is not None:
        answer["cache_salt"] = exchange.caller.cache_salt
    if options.reserve:
        answer["expires_in_s"] = life_s
        service.elsewhere.keep(service.hold(decided), service.clock.now() + life_s)
    await exchange.answer(200, orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))


async def report(service: Service, exchange: Exchange, flight: Flight) -> None:
    """POST /v1/schedule/{id}/complete, /abort, /progress."""
    decision, _, act = exchange.path.removeprefix("/v1/schedule/").partition("/")
    raw = await read_body(service, exchange, flight)
    fields = _object(raw)
    if act == "complete":
        done = _typed(fields, Report)
        values = msgspec.structs.asdict(done)
        failed = values.pop("failed_node")
        kind = OutcomeKind(values.pop("kind"))
        outcome = Outcome(kind=kind, failed_node=NodeId(failed) if failed else None, **values)
        service.elsewhere.end(decision, outcome)
    elif act == "abort":
        service.elsewhere.end(decision, Outcome(kind=OutcomeKind.CLIENT_ABORT))
    elif act == "progress":
        step = _typed(fields, Progress)
        reservation = service.elsewhere.get(decision).reservation
        now = service.clock.now()
        reservation.prefill_done(now, cached_tokens=step.cached_tokens)
        if step.phase == "first_token":
            reservation.first_token(now)
        service.waiting.stir()
    else:
        raise NotFound("the acts are complete, abort and progress", field="path")
    await exchange.answer(200, b'{"ok":true}')


def _life_s(service: Service, ttl_s: float | None) -> float:
    """Of a reservation; BadRequest before anything is decided."""
    limit = service.limits.reservation_ttl_s
    if ttl_s is not None and not 0 < ttl_s <= limit:
        raise BadRequest(f"must be above 0 and at most {limit:g} s", field="ttl_s")
    return ttl_s or limit


def _decision(service: Service, d: Decision, *, exact: bool) -> dict[str, Any]:
    return {
        "decision_id": d.id,
        "request_id": d.request.id,
        "policy": d.policy,
        "revision": d.revision,
        "prefill": _node(service, d.prefill),
        "decode": _node(service, d.decode),
        "prompt_tokens": d.request.prompt_tokens,
        "exact_tokens": exact,
        "match_tokens": d.match_tokens,
        "reachable_tokens": d.reachable_tokens,
        "coming_tokens": d.coming_tokens,
        "fetch_from": d.fetch_from,
        "fetch_tokens": d.fetch_tokens,
        "predicted": prediction(d.predicted),
        "signal": d.signal,
    }


def _node(service: Service, node: NodeId) -> dict[str, Any]:
    spec = service.conductor.fleet.spec(node)
    return {"id": spec.id, "url": spec.url, "dp_rank": spec.dp_rank}


def _candidates(d: Decision) -> list[dict[str, Any]]:
    table = d.candidates
    return [
        {
            "node": table.nodes[row],
            "total": float(table.total[row]),
            "chosen": row == table.chosen,
            "inputs": {name: float(column[row]) for name, column in table.columns.items()},
            "terms": {name: float(column[row]) for name, column in table.terms.items()},
        }
        for row in table.ranked()
    ]


def _object(raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is no JSON: {error}", field="body") from None
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object", field="body")
    return found


def _typed(fields: dict[str, Any], kind: type[T]) -> T:
    """`fields` as a checked struct; BadRequest names the field."""
    unknown = set(fields) - set(kind.__struct_fields__)
    if unknown:
        raise BadRequest("no such field", field=min(unknown))
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at ")
        raise BadRequest(text, field=where.strip("`$.") or "body") from None
