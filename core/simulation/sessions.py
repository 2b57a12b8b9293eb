"""Sessions of a trace that records none, and think times.

A later turn's prompt starts with everything the earlier turn sent, so the earlier prompt's whole
blocks are leading blocks of the later one. A request's parent is the latest earlier request
whose last whole block it contains, the deepest such block winning; a prefix shared by many
(a system prompt alone) makes no session, because no request ends there.
"""

from __future__ import annotations

from dataclasses import replace

from core.simulation.traces import Trace, TraceRequest

TOKEN_GAP_S = 0.03
"""Assumed time between tokens of the recorded service, used to tell its time from thinking."""


def with_sessions(trace: Trace) -> Trace:
    """The same trace with sessions, turns and parents; as it is where sessions are recorded."""
    if any(r.session for r in trace.requests):
        return trace
    ends: dict[int, int] = {}
    requests: list[TraceRequest] = []
    for i, old in enumerate(trace.requests):
        whole = old.hash_ids[: old.prompt_tokens // trace.block_tokens]
        parent = next((ends[b] for b in reversed(whole[1:]) if b in ends), -1)
        requests.append(_linked(old, i, parent, requests))
        if len(whole) > 1:
            ends[whole[-1]] = i
    return replace(trace, requests=requests)


def think_seconds(trace: Trace, i: int) -> float:
    """Pause between the end of request i's previous turn and its arrival, in seconds.

    Recorded where the trace tells it; else the gap between the two arrivals without the time
    that the previous turn's output would have taken at `TOKEN_GAP_S` a token, at least 0.
    """
    request = trace.requests[i]
    if request.think_s is not None:
        return request.think_s
    if request.parent < 0:
        return 0.0
    previous = trace.requests[request.parent]
    gap = request.arrival_s - previous.arrival_s
    return max(gap - previous.output_tokens * TOKEN_GAP_S, 0.0)


def _linked(r: TraceRequest, i: int, parent: int, before: list[TraceRequest]) -> TraceRequest:
    session, turn = f"s{i}", 1
    if parent >= 0:
        session, turn = before[parent].session, before[parent].turn + 1
    return replace(r, session=session, turn=turn, parent=parent)
