"""The road of one OpenAI request: take in, decide, attempt, perhaps again, answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from core.domain import Decision, NodeId, Rejection
from core.errors import CapacityError, ConductorError
from core.gateway import errors
from core.gateway.attempt import Attempt
from core.gateway.exchange import ClientGone, Exchange
from core.gateway.failure import AttemptFailed, Retry
from core.gateway.flights import Flight, Interrupt
from core.gateway.intake import Intake, take_in
from core.gateway.pipelining import can_group, patient

if TYPE_CHECKING:
    from core.gateway.service import Service

log = logging.getLogger("conductor.gateway")

Work = Callable[["Service", Exchange, Flight], Awaitable[None]]


async def guarded(service: Service, exchange: Exchange, work: Work, *, keyed: bool = True) -> None:
    """Run `work` as a flight: admitted, bounded, interruptible, with an answer for its errors.

    Not `keyed`: the work knows by itself who may ask for it.
    """
    task = asyncio.current_task()
    assert task is not None
    number, flight = service.flights.enter(task)
    own_name = service.claim(exchange)
    try:
        try:
            _admit(service)
            if keyed:
                await _as_caller(service, exchange, flight, work)
            else:
                await work(service, exchange, flight)
        except ClientGone:
            service.counters["client_gone"] += 1
        except ConductorError as error:
            await exchange.fail(error)
        except Exception as error:
            log.exception("request %s failed", exchange.request_id)
            service.counters["internal_errors"] += 1
            exchange.cut() if exchange.started else await exchange.fail(error)
    except asyncio.CancelledError:
        why = flight.handled()
        if why is Interrupt.NONE:
            raise
        await _late_end(exchange, why)
    finally:
        exchange.unwatch()
        service.flights.leave(number)
        service.release(own_name)


async def _as_caller(service: Service, exchange: Exchange, flight: Flight, work: Work) -> None:
    """Run `work` for the owner of the request's key, within the key's limits."""
    caller = await service.keys.caller(exchange.headers, exchange.peer)
    if caller is None:
        await work(service, exchange, flight)
        return
    exchange.caller = caller
    with caller.request():
        await work(service, exchange, flight)


def _admit(service: Service) -> None:
    if service.stopping:
        raise CapacityError("the scheduler is stopping", retry_after_s=1)
    if len(service.flights) > service.limits.requests_max:
        raise CapacityError("too many requests in flight", retry_after_s=1)


async def _late_end(exchange: Exchange, why: Interrupt) -> None:
    """A wait outside of any attempt was ended: while reading the body, or between attempts."""
    if exchange.started or why is Interrupt.CLIENT_GONE:
        return
    if why is Interrupt.SHUTDOWN:
        body = errors.error_body(503, "the scheduler is stopping", code="stopping")
        await exchange.refuse(503, body, 1.0)
        return
    body = errors.error_body(408, "the request's body did not arrive in time", code="timeout")
    await exchange.refuse(408, body)


async def read_body(service: Service, exchange: Exchange, flight: Flight) -> bytes:
    """The body, within its limits; from here on the client's leaving interrupts the flight."""
    flight.wait(service.clock.now() + service.limits.body_timeout_s, Interrupt.BODY_TIMEOUT)
    raw = await exchange.body(service.limits)
    flight.rest()
    exchange.watch(flight)
    return raw


async def completion(service: Service, exchange: Exchange, flight: Flight) -> None:
    """POST /v1/chat/completions and /v1/completions."""
    arrived_s = service.clock.now()
    raw = await read_body(service, exchange, flight)
    intake = await take_in(
        exchange,
        raw,
        prompts=service.prompts,
        names=service.names,
        lengths=service.lengths,
        ask_usage=service.limits.ask_usage,
        slo_classes=service.conductor.tunables.slo.classes,
    )
    service.moves.saw(intake)
    await serve(service, exchange, flight, intake, arrived_s=arrived_s)


async def serve(
    service: Service, exchange: Exchange, flight: Flight, intake: Intake, *, arrived_s: float
) -> None:
    """Attempts until one answers, nobody is left, or the budget says no."""
    service.budget.request(arrived_s)
    if exchange.caller is not None:
        exchange.caller.charge(intake.request.prompt_tokens)
    tried: frozenset[NodeId] = frozenset()
    last: AttemptFailed | None = None
    number, plain = 0, False
    while number <= service.limits.retries_max:
        flight.check()
        if last is None:
            await service.collector.turn(intake.request, flight)
        if service.waiting.on and not plain:
            decided = await service.waiting.decide(intake, flight, arrived_s=arrived_s, tried=tried)
        else:
            decided = _decide(service, intake, tried, plain=plain)
        if service.recorder is not None:
            service.recorder.prompt(decided.id, intake.body, service.clock.wall())
        if isinstance(decided, Rejection):
            if last is None:
                await _reject(exchange, decided)
                return
            if not last.spare:
                break
            # Nobody is left without the side of the pair that was perhaps not at fault.
            tried, last.spare = tried - last.spare, frozenset()
            continue
        group = None if plain else service.pipelines.take(decided)
        with service.hold(decided, group) as held:
            attempt = Attempt(service, exchange, intake, flight, held, arrived_s=arrived_s)
            try:
                outcome = await attempt.run()
            except AttemptFailed as failed:
                held.finish(failed.outcome)
                last = failed
            else:
                held.finish(outcome)
                if exchange.caller is not None:
                    exchange.caller.charge(outcome.output_tokens or 0)
                _learn_length(service, intake, outcome.prompt_tokens)
                return
        tried |= last.suspects
        if group is not None and last.retry is not Retry.NO:
            plain = True  # once, and without counting as a retry: the members did part of it
            service.pipelines.totals["fallbacks"] += 1
            continue
        if not await _may_retry(service, last, number):
            break
        number += 1
    assert last is not None
    await _give_up(exchange, last, decided.id)


def _decide(
    service: Service, intake: Intake, tried: frozenset[NodeId], *, plain: bool
) -> Decision | Rejection:
    """The next decision. After a group failed the request is served by one node, late or not."""
    request = intake.request if not tried else intake.without(tried)
    if not plain:
        return service.decide(request, carry=can_group(intake))
    decided = service.decide(patient(request))
    if isinstance(decided, Decision):
        decided = msgspec.structs.replace(decided, request=request)
    return decided


async def _may_retry(service: Service, failed: AttemptFailed, number: int) -> bool:
    """Whether to try elsewhere; waits for the back-off where the node is not simply gone."""
    if failed.retry is Retry.NO or number >= service.limits.retries_max:
        return False
    if failed.retry is Retry.BUDGETED:
        if not service.budget.allow(service.clock.now()):
            service.counters["retries.refused"] += 1
            return False
        delay_s = service.limits.retry_backoff_s * 2**number * service.rng.random()
        await asyncio.sleep(delay_s)
    service.counters[f"retries.{failed.retry.value}"] += 1
    return True


async def _reject(exchange: Exchange, rejection: Rejection) -> None:
    status, body, retry_after_s = errors.from_rejection(rejection)
    await exchange.refuse(status, body, retry_after_s)


async def _give_up(exchange: Exchange, failed: AttemptFailed, decision_id: str) -> None:
    """The last failure is the answer: the engine's own words where it had any."""
    if failed.answer is not None:
        await failed.answer.pass_on(exchange)
        return
    body = errors.from_fault(failed.fault, request_id=exchange.request_id, decision_id=decision_id)
    await exchange.refuse(failed.fault.status, body)


def _learn_length(service: Service, intake: Intake, prompt_tokens: int | None) -> None:
    if prompt_tokens and intake.prompt is not None:
        service.prompts.observe(intake.base, intake.prompt, prompt_tokens)
