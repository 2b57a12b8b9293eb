"""Carrying records to their sink while a service runs, and the readings of its nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from core.audit import Recorder
from core.clock import Clock
from core.conductor import Conductor

TELEMETRY_S = 5.0
"""How often readings are recorded."""


@asynccontextmanager
async def drained(recorder: Recorder) -> AsyncIterator[None]:
    """Carry queued records to their sink while inside, and the last ones when leaving."""
    task = asyncio.create_task(recorder.run(), name="recorder")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def record_telemetry(conductor: Conductor, recorder: Recorder, clock: Clock) -> None:
    """One reading of each node that has told its gauges lately, with the engine's counters."""
    fleet, at, now = conductor.fleet, clock.wall(), clock.now()
    stale_s = conductor.tunables.load.stale_after_s
    for slot, spec in fleet.slots():
        if now - fleet.telemetry_at_s[slot] > stale_s:
            continue
        reading = replace(
            conductor.reading(spec.id),
            running=int(fleet.running[slot]),
            waiting=int(fleet.waiting[slot]),
            kv_usage=round(float(fleet.kv_usage[slot]), 4),
            kv_capacity_tokens=spec.kv_capacity_tokens or None,
            block_size=spec.block_size,
        )
        recorder.telemetry(spec.id, at, reading)
