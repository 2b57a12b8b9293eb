"""One attempt at one decision: send to the chosen nodes, pass the answer on, say how it ended.

Until the first byte is passed on, whatever goes wrong is an `AttemptFailed` and another node may
try. After it the client gets what there is: a stream that breaks ends with an error event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from core.domain import NodeId, NodeSpec, Outcome, OutcomeKind
from core.engines.base import (
    EngineAdapter,
    Flow,
    Usage,
    error_details,
    is_openai_error,
)
from core.errors import EngineBroken, EngineFault, EngineTimeout
from core.gateway import errors, pairing, passing, pipelining
from core.gateway.exchange import JSON, Exchange
from core.gateway.failure import AttemptFailed, EngineAnswer, Retry
from core.gateway.flights import Flight, Interrupt
from core.gateway.headers import request_headers, response_headers
from core.gateway.held import Held
from core.gateway.intake import Intake
from core.gateway.sse import StreamObserver, error_event
from core.gateway.upstream import Answer, NodeGone

if TYPE_CHECKING:
    from core.gateway.service import Service

ERROR_BYTES_MAX = 1 << 20
"""Of an engine's error answer."""


class Attempt:
    """Carries out one held decision for one client."""

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        intake: Intake,
        flight: Flight,
        held: Held,
        *,
        arrived_s: float,
    ) -> None:
        self.service = service
        self.exchange = exchange
        self.intake = intake
        self.flight = flight
        self.held = held
        self.decision = held.decision
        self.cached_tokens: int | None = None
        """As the prefill leg's engine reported it."""
        self.working: NodeId = held.decision.prefill
        self.also: tuple[NodeId, ...] = ()
        """Nodes besides the working one whose death ends the wait."""
        self.refusal: tuple[EngineAnswer, EngineAdapter] | None = None
        """What the other node of a pair answered in the place of its part of the work."""
        self._adapter: EngineAdapter | None = None
        self._arrived_s = arrived_s
        self.observer: StreamObserver | None = None

    # -- the attempt as a whole --------------------------------------------------------------

    async def run(self) -> Outcome:
        """The outcome, once the client has all it will get. AttemptFailed before that."""
        self.flight.movable = True
        try:
            return await self._carry_out()
        except asyncio.CancelledError:
            why = self.flight.handled()
            if why is Interrupt.NONE:
                raise
            return await self._interrupted(why)
        except EngineFault as fault:
            return await self._faulted(fault, OutcomeKind.ENGINE_ERROR)
        finally:
            self.flight.movable = False
            self.flight.rest()

    async def _carry_out(self) -> Outcome:
        if self.held.group is not None:
            return await pipelining.run(self, self.held.group)
        fleet = self.service.conductor.fleet
        prefill = fleet.spec(self.decision.prefill)
        flow = self._flow(prefill)
        if flow is Flow.TWO_STEP:
            return await pairing.two_step(self, prefill, fleet.spec(self.decision.decode))
        if flow is Flow.PAIRED:
            return await pairing.paired(self, prefill, fleet.spec(self.decision.decode))
        node = prefill
        if self.decision.disaggregated and fleet.has(self.decision.decode) and self.intake.prompt:
            # This request cannot be split; the decode node serves it whole.
            node = fleet.spec(self.decision.decode)
            self.held.reservation.unsplit = True
        return await self._on_one_node(node)

    def _flow(self, prefill: NodeSpec) -> Flow:
        d, fleet, body = self.decision, self.service.conductor.fleet, self.intake.body
        if not d.disaggregated or body is None or self.intake.prompt is None:
            return Flow.NONE
        adapter = self.service.adapter(prefill)
        decode = fleet.spec(d.decode) if fleet.has(d.decode) else None
        same = decode is not None and self.service.adapter(decode).flow is adapter.flow
        return adapter.flow if same and adapter.can_disaggregate(body) else Flow.NONE

    async def _on_one_node(self, node: NodeSpec) -> Outcome:
        timer = None
        if not self.intake.stream:
            # An unstreamed answer does not show when its prompt was done: take the prediction.
            wait_s = self.decision.predicted.ttft_s
            timer = asyncio.get_running_loop().call_later(wait_s, self._assume_prefilled)
        try:
            return await self.relay(node, self.body_for(node))
        finally:
            if timer is not None:
                timer.cancel()

    def _assume_prefilled(self) -> None:
        reservation = self.held.reservation
        reservation.alone = False  # keeps the assumption out of the cost model's observations
        reservation.prefill_done(self.service.clock.now())

    # -- legs --------------------------------------------------------------------------------

    def body_for(self, node: NodeSpec, body: Mapping[str, Any] | None = None) -> bytes:
        """What the node gets: the client's own bytes wherever nothing has to change."""
        adapter = self.service.adapter(node)
        if body is not None:
            return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        if self.intake.body is None:
            return self.intake.raw
        forwarded = adapter.forward_body(self.intake.body, node, self.decision)
        if forwarded is self.intake.body:
            return self.intake.upstream_raw()
        if self.intake.adds_usage:
            forwarded = {**forwarded, "stream_options": {"include_usage": True}}
        return orjson.dumps(forwarded, option=orjson.OPT_SERIALIZE_NUMPY)

    async def open(self, node: NodeSpec, body: bytes) -> Answer:
        """Send to a node and wait for its answer's head."""
        service, exchange, limits = self.service, self.exchange, self.service.limits
        adapter = self._adapter = service.adapter(node)
        self.working = node.id
        self.flight.nodes = (node.id, *self.also)
        longest_s = limits.first_byte_timeout_s if self.intake.stream else limits.whole_timeout_s
        self.flight.wait(service.clock.now() + longest_s, Interrupt.FIRST_BYTE_TIMEOUT)
        ours = adapter.forward_headers(node, self.decision, request_id=exchange.request_id)
        headers = request_headers(exchange.headers, ours)
        url = node.url.rstrip("/") + exchange.path
        if exchange.query:
            url += "?" + exchange.query.decode("ascii", "replace")
        return await service.upstream.send(exchange.method, url, body, headers)

    async def relay(self, node: NodeSpec, body: bytes) -> Outcome:
        """Send to the node that answers the client, and pass its answer on."""
        adapter = self.service.adapter(node)
        with await self.open(node, body) as answer:
            if answer.status >= 400:
                return await self.pass_error(answer, adapter)
            if answer.is_stream and self.intake.prompt is not None:
                return await passing.stream(self, answer, adapter)
            if answer.is_stream:
                return await passing.rest(self, answer, b"")
            return await passing.whole(self, answer, adapter)

    # -- answers -----------------------------------------------------------------------------

    async def pass_error(self, answer: Answer, adapter: EngineAdapter) -> Outcome:
        """Pass an engine's error answer on, unless another node may do better."""
        return await self._refused(await self.kept(answer, adapter), adapter)

    async def _refused(self, kept: EngineAnswer, adapter: EngineAdapter) -> Outcome:
        kind = adapter.classify(kept.status, kept.body)
        text = adapter.error_message(kept.body) or f"the engine answered {kept.status}"
        outcome = self.outcome(kind, kept.status, error=text)
        if adapter.is_retryable(kept.status, kept.body):
            raise AttemptFailed(
                outcome,
                retry=Retry.BUDGETED,
                suspects=self.suspects(),
                fault=EngineBroken(text),
                answer=kept,
                spare=self.suspects() - {self.working},
            )
        await kept.pass_on(self.exchange)
        return outcome

    async def kept(self, answer: Answer, adapter: EngineAdapter) -> EngineAnswer:
        """An engine's error answer, as a client of OpenAI's API reads it."""
        raw, _ = await answer.read_all(ERROR_BYTES_MAX)
        headers, body = answer.headers, raw
        if not is_openai_error(raw):
            text = adapter.error_message(raw) or f"the engine answered {answer.status}"
            code, param = error_details(raw)
            body = errors.error_body(answer.status, text, code=code, param=param)
            headers = [JSON, *(pair for pair in headers if pair[0] != b"content-type")]
        length = (b"content-length", b"%d" % len(body))
        return EngineAnswer(
            answer.status, response_headers(headers, [length, *self.our_headers()]), body
        )

    async def head(
        self,
        answer: Answer,
        *,
        cached: int | None = None,
        more: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Send the answer's head: from here on no other node can serve the request."""
        self.flight.movable = False
        ours = [*more, *self.our_headers(cached)]
        await self.exchange.head(answer.status, response_headers(answer.headers, ours))

    def our_headers(self, cached: int | None = None) -> list[tuple[bytes, bytes]]:
        """What the scheduler says about the answer: which decision, nodes and matches."""
        d = self.decision
        cached = self.cached_tokens if self.cached_tokens is not None else cached
        headers = [
            (b"x-request-id", self.exchange.request_id.encode()),
            (b"x-conductor-decision", d.id.encode()),
            (b"x-conductor-node", d.prefill.encode()),
            (b"x-conductor-match-tokens", b"%d" % d.match_tokens),
            (b"x-conductor-reachable-tokens", b"%d" % d.reachable_tokens),
        ]
        if d.disaggregated:
            headers.append((b"x-conductor-decode-node", d.decode.encode()))
        if cached is not None:
            headers.append((b"x-conductor-cached-tokens", b"%d" % cached))
        return headers

    # -- endings -------------------------------------------------------------------------------

    async def _interrupted(self, why: Interrupt) -> Outcome:
        """What follows from a wait that was ended from outside."""
        if why is Interrupt.CLIENT_GONE:
            return self.outcome(OutcomeKind.CLIENT_ABORT, error="the client closed the connection")
        if why is Interrupt.CLIENT_STALLED:
            self.exchange.cut()
            return self.outcome(OutcomeKind.CLIENT_ABORT, error="the client stopped reading")
        if why is Interrupt.NODE_DEAD and self.refusal is not None:
            return await self._refused(*self.refusal)
        if why is Interrupt.NODE_DEAD:
            dead = self._dead()
            gone = NodeGone(f"node {', '.join(sorted(dead))} was declared dead")
            return await self._faulted(gone, OutcomeKind.ENGINE_ERROR, suspects=dead)
        if why is Interrupt.SHUTDOWN:
            return await self._faulted(EngineFault("the scheduler is stopping"), OutcomeKind.LOST)
        text = f"node {self.working} sent nothing in time"
        return await self._faulted(EngineTimeout(text), OutcomeKind.TIMEOUT)

    async def _faulted(
        self, fault: EngineFault, kind: OutcomeKind, *, suspects: frozenset[NodeId] | None = None
    ) -> Outcome:
        """A fault of an engine: another attempt's chance, or the stream's end."""
        if not self.exchange.started:
            gone = isinstance(fault, NodeGone)
            retry = Retry.FREE if gone else Retry.BUDGETED
            doubted = self.suspects(gone=gone)
            raise AttemptFailed(
                self.outcome(kind, fault.status, error=fault.message),
                retry=Retry.NO if kind is OutcomeKind.LOST else retry,
                suspects=suspects or doubted,
                fault=fault,
                spare=frozenset() if suspects else doubted - {self.working},
            )
        outcome = self.outcome(kind, 200, error=fault.message, usage=self.usage())
        if self.observer is None:
            self.exchange.cut()
            return outcome
        body = errors.from_fault(
            fault, request_id=self.exchange.request_id, decision_id=self.decision.id
        )
        self.flight.wait(
            self.service.clock.now() + self.service.limits.idle_timeout_s,
            Interrupt.CLIENT_STALLED,
        )
        await self.exchange.end(error_event(body))
        return outcome

    def spoiled(self, message: str) -> AttemptFailed:
        """The stream began with an error object: nothing of it was passed on."""
        return AttemptFailed(
            self.outcome(OutcomeKind.ENGINE_ERROR, 200, error=message),
            retry=Retry.BUDGETED,
            suspects=self.suspects(),
            fault=EngineBroken(message),
            spare=self.suspects() - {self.working},
        )

    def suspects(self, *, gone: bool = False) -> frozenset[NodeId]:
        """Nodes a further attempt should avoid. In a split request either side may be at fault,
        unless one of them is gone."""
        d = self.decision
        if gone or not d.disaggregated or self.working == d.prefill:
            return frozenset({self.working})
        return frozenset({d.prefill, d.decode})

    def _dead(self) -> frozenset[NodeId]:
        """Those of the nodes waited for that are known to be dead; else the working one."""
        fleet = self.service.conductor.fleet
        dead = {n for n in self.flight.nodes if not fleet.has(n) or fleet.dead[fleet.slot(n)]}
        return frozenset(dead or {self.working})

    def usage(self) -> Usage | None:
        """The engine's own counts out of the stream so far; None without any."""
        found = self.observer.usage() if self.observer is not None else None
        return self._adapter.usage(found) if found and self._adapter is not None else None

    def outcome(
        self,
        kind: OutcomeKind,
        status: int | None = None,
        *,
        error: str = "",
        usage: Usage | None = None,
    ) -> Outcome:
        """What is known now, as the outcome of the held decision."""
        o = self.observer
        usage = usage or Usage()
        first_s = o.first_token_s or o.first_event_s if o is not None else None
        failed = kind in (OutcomeKind.ENGINE_ERROR, OutcomeKind.TIMEOUT)
        return Outcome(
            kind=kind,
            ttft_s=None if first_s is None else first_s - self._arrived_s,
            tbt_s=o.tbt_s() if o is not None else None,
            tpot_s=o.tpot_s() if o is not None else None,
            e2e_s=self.service.clock.now() - self._arrived_s,
            prompt_tokens=usage.prompt,
            cached_tokens=self.cached_tokens if self.cached_tokens is not None else usage.cached,
            output_tokens=usage.completion if usage.completion is not None else _sent(o),
            status=status,
            error=error[:500],
            failed_node=self._culprit() if failed else None,
        )

    def _culprit(self) -> NodeId:
        """Who failed: the node at work, but a decode node that cannot fetch from a prefill node
        which is not well is its victim."""
        d, fleet = self.decision, self.service.conductor.fleet
        if self.working != d.prefill and fleet.has(d.prefill):
            slot = fleet.slot(d.prefill)
            if fleet.dead[slot] or fleet.generation[slot] != d.prefill_generation:
                return d.prefill
        return self.working


def _sent(observer: StreamObserver | None) -> int | None:
    """Output tokens as counted, where the engine did not tell."""
    return observer.tokens if observer is not None and observer.tokens else None
