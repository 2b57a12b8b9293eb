"""Passing an engine's answer on: as a stream of events, whole, or unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.domain import Outcome, OutcomeKind
from core.engines.base import EngineAdapter, Usage, parse_object
from core.errors import EngineBroken
from core.gateway.flights import Interrupt
from core.gateway.sse import StreamObserver
from core.gateway.upstream import BREAKS, Answer, broken

if TYPE_CHECKING:
    from core.gateway.attempt import Attempt


async def stream(attempt: Attempt, answer: Answer, adapter: EngineAdapter) -> Outcome:
    """Pass a completion stream on, event by event. EngineFault where it breaks; AttemptFailed
    where it begins with an error."""
    observer = StreamObserver(adapter.stream_error, strip_usage=attempt.intake.adds_usage)
    attempt.observer = observer
    try:
        await _pump(attempt, answer, observer)
    except BREAKS as error:
        raise broken(error) from error
    if not (observer.done or observer.overlong):
        raise EngineBroken(observer.error or "the engine's stream ended early")
    if not attempt.exchange.started:
        await attempt.head(answer)
    await attempt.exchange.end(observer.flush())
    kind = OutcomeKind.OK if observer.error is None else OutcomeKind.ENGINE_ERROR
    return attempt.outcome(kind, answer.status, error=observer.error or "", usage=attempt.usage())


async def _pump(attempt: Attempt, answer: Answer, observer: StreamObserver) -> None:
    """Events from engine to client as they come: the loop every streamed token goes through.

    The deadline moves with each read; whom it is meant for follows from who is waited for.
    """
    flight, exchange = attempt.flight, attempt.exchange
    now_s, read = attempt.service.clock.now, answer.content.readany
    feed, part = observer.feed, exchange.part
    idle_s = attempt.service.limits.idle_timeout_s
    waiting = True
    while data := await read():
        now = now_s()
        out = feed(data, now)
        if waiting and observer.first_event_s is not None:
            waiting = False
            if observer.error is not None:
                raise attempt.spoiled(observer.error)
            attempt.held.reservation.first_token(now)
            attempt.service.waiting.stir()
        if not out:
            continue
        if not exchange.started:
            await attempt.head(answer)
        flight.deadline_s, flight.on_deadline = now + idle_s, Interrupt.CLIENT_STALLED
        await part(out)
        flight.on_deadline = Interrupt.IDLE_TIMEOUT


async def whole(attempt: Attempt, answer: Answer, adapter: EngineAdapter) -> Outcome:
    """Pass an answer on that is not streamed, with what it says about reuse in the head."""
    body, complete = await answer.read_all(attempt.service.limits.answer_bytes_max)
    if not complete:
        return await rest(attempt, answer, body)
    usage = adapter.usage(parse_object(body)) if attempt.intake.prompt is not None else Usage()
    length = (b"content-length", b"%d" % len(body))
    await attempt.head(answer, cached=usage.cached, more=(length,))
    await attempt.exchange.end(body)
    return attempt.outcome(OutcomeKind.OK, answer.status, usage=usage)


async def rest(attempt: Attempt, answer: Answer, begun: bytes) -> Outcome:
    """Pass a body on unread, as it comes."""
    idle_s = attempt.service.limits.idle_timeout_s
    data = begun or await answer.read()
    await attempt.head(answer)
    while data:
        now = attempt.service.clock.now()
        attempt.flight.wait(now + idle_s, Interrupt.CLIENT_STALLED)
        await attempt.exchange.part(data)
        attempt.flight.wait(now + idle_s, Interrupt.IDLE_TIMEOUT)
        data = await answer.read()
    await attempt.exchange.end()
    return attempt.outcome(OutcomeKind.OK, answer.status)
