"""Requests whose prompt and answer are computed on two nodes.

Two steps (vLLM, NIXL): the prefill node computes the prompt and answers with transfer
parameters; the decode node gets the client's request with them. The parameters are good for one
use, so every retry prefills again. Paired (SGLang): both nodes get the same request at once and
meet by a room number; the answer comes from the decode node. Where the prefill node refuses its
part, its answer is the client's: the decode node would wait in vain.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from core.domain import NodeSpec, Outcome
from core.engines.base import parse_object
from core.errors import EngineBroken, EngineFault
from core.gateway.flights import Interrupt

if TYPE_CHECKING:
    from core.gateway.attempt import Attempt

BOOTSTRAP_PORT = 8998


async def two_step(attempt: Attempt, prefill: NodeSpec, decode: NodeSpec) -> Outcome:
    """Prefill, then decode with what the prefill answered."""
    service, intake = attempt.service, attempt.intake
    adapter, decoder = service.adapter(prefill), service.adapter(decode)
    assert intake.body is not None
    asked = adapter.forward_body(intake.body, prefill, attempt.decision)
    leg = attempt.body_for(prefill, adapter.prefill_leg(asked))
    with await attempt.open(prefill, leg) as answer:
        if answer.status >= 400:
            return await attempt.pass_error(answer, adapter)
        text, whole = await answer.read_all(service.limits.answer_bytes_max)
    if not whole:
        raise EngineBroken("the prefill answer is too long")
    reply = parse_object(text)
    cached = adapter.usage(reply).cached
    attempt.cached_tokens = cached
    attempt.held.reservation.prefill_done(service.clock.now(), cached_tokens=cached)
    body = decoder.forward_body(intake.upstream_body(), decode, attempt.decision)
    body = decoder.decode_leg(body, reply)
    attempt.also = (prefill.id,)  # it holds the blocks until they are fetched
    return await attempt.relay(decode, attempt.body_for(decode, body))


async def paired(attempt: Attempt, prefill: NodeSpec, decode: NodeSpec) -> Outcome:
    """Send to both at once; the decode node's answer is the client's."""
    service, intake = attempt.service, attempt.intake
    adapter = service.adapter(prefill)
    body = adapter.forward_body(intake.upstream_body(), prefill, attempt.decision)
    leg = adapter.paired_body(
        body,
        host=urlsplit(prefill.url).hostname or "",
        port=service.bootstrap_port(prefill.id) or BOOTSTRAP_PORT,
        room=service.rng.getrandbits(63),
    )
    data = attempt.body_for(prefill, leg)
    other = asyncio.create_task(_other_leg(attempt, prefill, data))
    attempt.also = (prefill.id,)
    try:
        return await attempt.relay(decode, data)
    finally:
        other.cancel()
        await asyncio.wait({other})


async def _other_leg(attempt: Attempt, prefill: NodeSpec, body: bytes) -> None:
    """The prefill node's side: its answer is read and thrown away; its failure ends both."""
    service = attempt.service
    adapter = service.adapter(prefill)
    headers = adapter.forward_headers(
        prefill, attempt.decision, request_id=attempt.exchange.request_id
    )
    headers |= {"content-type": "application/json"}
    url = prefill.url.rstrip("/") + attempt.exchange.path
    try:
        with await service.upstream.send("POST", url, body, headers) as answer:
            if answer.status >= 400:
                attempt.refusal = await attempt.kept(answer, adapter), adapter
                raise EngineBroken(f"the prefill node answered {answer.status}")
            text, _ = await answer.read_all(service.limits.answer_bytes_max)
            usage = adapter.usage(parse_object(text))
            attempt.held.reservation.prefill_done(service.clock.now(), cached_tokens=usage.cached)
            attempt.cached_tokens = usage.cached
    except EngineFault:
        if not attempt.exchange.started:
            attempt.working = prefill.id
            attempt.flight.interrupt(Interrupt.NODE_DEAD)
