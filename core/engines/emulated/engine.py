"""The running engine: joins scheduler, clock, events and replies.

One timer is armed at most: the end of the step in flight. With nothing to do there is none, so
an idle engine costs nothing. When the process wakes late, steps that are already over are
completed one after the other at their own times, so model time does not drift.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import uuid
from dataclasses import replace
from typing import Any

from core.clock import Clock
from core.engines.emulated.api import (
    ApiError,
    Generation,
    busy,
    internal_error,
    not_held,
    sample,
)
from core.engines.emulated.cache import BlockPool
from core.engines.emulated.config import EngineConfig
from core.engines.emulated.events import EventLog, encode_batch
from core.engines.emulated.faults import FaultDice, Faults
from core.engines.emulated.http import Connection
from core.engines.emulated.metrics import Latencies
from core.engines.emulated.pipeline import EarlyChunks, Part, fingerprint, hand_over
from core.engines.emulated.publisher import EventPublisher
from core.engines.emulated.replies import ENGINE_DEAD, FullReply, Reply, StageReply, StreamReply
from core.engines.emulated.scheduler import Scheduler, Step
from core.engines.emulated.sequence import Sequence, State, draw
from core.engines.emulated.transfer import TransferFailed, fetch_blocks

log = logging.getLogger(__name__)
LATE_S = 0.05
"""A wake-up later than this does not catch up: the machine is too slow for the model's times."""
GRAIN_S = 0.0005
"""Resolution of the loop's timers: what is due within it counts as over."""
BURST_STEPS = 64
"""Steps completed in one wake-up, so that HTTP gets its turn."""


class Engine:
    """One engine process's state. All methods run on the event loop."""

    def __init__(
        self, config: EngineConfig, loop: asyncio.AbstractEventLoop, *, clock: Clock
    ) -> None:
        self.config = config
        self._clock = clock
        self.started_s = self._unix_s()
        self.engine_id = str(uuid.uuid4())
        self.http_port = config.port
        self.latencies = Latencies()
        self.dice = FaultDice(Faults(), random.Random(config.seed))
        self.live: dict[Sequence, Reply] = {}
        self.rejected = 0
        self.lost_batches = 0
        self._loop = loop
        self._timer: asyncio.Handle | None = None
        self._due_s = 0.0
        self._lease_timer: asyncio.TimerHandle | None = None
        self._step: Step | None = None
        self._loads: set[asyncio.Task[None]] = set()
        self._parts: dict[str, Sequence] = {}
        self._early = EarlyChunks()
        self.events = EventLog(steps_max=config.buffer_steps, bytes_max=config.buffer_bytes)
        self.scheduler = Scheduler(
            BlockPool(config.blocks, block_size=config.block_size),
            config.costs,
            batch_max=config.batch_max,
            step_tokens_max=config.step_tokens_max,
            time_scale=config.time_scale,
            lease_s=config.lease_s,
            sample=sample,
        )
        self.topic = config.topic or f"kv@{config.name}@{config.model}"
        self.publisher: EventPublisher | None = None
        if config.events_port is not None:
            self.publisher = EventPublisher(
                config.host,
                live_port=config.events_port,
                replay_port=config.replay_port,
                topic=self.topic,
            )
            self.publisher.serve_replay(loop, self.events)
        self.set_faults(config.faults)

    def _unix_s(self) -> float:
        return self._clock.wall().timestamp()

    def submit(self, connection: Connection, generation: Generation) -> None:
        """Queue a request. Raises ApiError where a fault or the full queue refuses it."""
        if self.dice.fail_request():
            status = self.dice.faults.error_status
            raise ApiError(status, "Injected fault", "InternalServerError")
        waiting = len(self.scheduler.waiting)
        if self.config.queue_max and waiting >= self.config.queue_max:
            self.rejected += 1
            raise busy()
        sequence = generation.sequence
        if sequence.part is not None and not self.scheduler.join(sequence):
            raise not_held()
        self.live[sequence] = self._reply(connection, generation)
        connection.on_lost = lambda: self._hung_up(sequence)
        self.scheduler.add(sequence, now=self._clock.now())
        if sequence.part is not None:
            self._join(sequence, sequence.part)
        self.kick()

    def _reply(self, connection: Connection, generation: Generation) -> Reply:
        size, created = self.config.block_size, int(self._unix_s())
        if generation.sequence.part is not None and not generation.sequence.part.last:
            return StageReply(connection, generation)
        if not generation.stream:
            return FullReply(connection, generation, block_size=size, created=created)
        drop = self.dice.faults.drop_after_tokens if self.dice.drop_stream() else None
        return StreamReply(
            connection, generation, block_size=size, created=created, drop_after=drop
        )

    def _hung_up(self, sequence: Sequence) -> None:
        if self.live.pop(sequence, None) is not None:
            self.scheduler.drop(sequence)
            self.kick()

    def kick(self) -> None:
        """Look for work soon, unless a step in flight will do so at its end."""
        if self.dice.faults.hang:
            return
        if self._step is None:
            self._arm(None)
        elif self._due_s > self._step.ends_s:
            self._arm(self._step.ends_s)

    def _arm(self, due_s: float | None) -> None:
        """Set the one timer; None means as soon as possible."""
        if self._timer is not None:
            if due_s is None and self._due_s == 0.0:
                return
            self._timer.cancel()
        self._due_s = due_s or 0.0
        if due_s is None:
            self._timer = self._loop.call_soon(self._wake)
        else:
            self._timer = self._loop.call_later(max(due_s - self._clock.now(), 0.0), self._wake)

    def _wake(self) -> None:
        """Complete what is over, start what comes next, write what was produced."""
        self._timer = None
        if self.dice.faults.hang:
            return
        now = self._clock.now()
        touched: dict[Reply, None] = {}
        self._run_due(now, touched)
        for reply in touched:
            reply.flush()
        if self._step is not None:
            # Steps that only decode may wait for the next tick; first tokens may not.
            tick_s = 0.0 if self._step.prefills else self.config.tick_s
            self._arm(max(self._step.ends_s, now + tick_s))

    def _run_due(self, now: float, touched: dict[Reply, None]) -> None:
        start = now
        for _ in range(BURST_STEPS):
            if self._step is not None:
                if self._step.ends_s > now + GRAIN_S:
                    return
                late = now - self._step.ends_s > LATE_S + self.config.tick_s
                start = now if late else self._step.ends_s
                self._complete(self._step, touched)
            self._step = self.scheduler.schedule(start) or self.scheduler.schedule(now)
            self._start_loads()
            self._tend_parts()
            if self._step is None:
                return

    def _complete(self, step: Step, touched: dict[Reply, None]) -> None:
        produced = self.scheduler.complete(step)
        self._publish()
        for sequence in produced:
            reply = self.live.get(sequence)
            if reply is None:
                continue
            self._observe(sequence, step.ends_s)
            reply.token(sequence.tokens[-1])
            if sequence.state is State.FINISHED:
                self._ended(sequence, reply, step.ends_s)
                touched.pop(reply, None)
            else:
                touched[reply] = None

    def _observe(self, sequence: Sequence, now: float) -> None:
        if sequence.last_token_s is None:
            sequence.first_token_s = now
            self.latencies.first_token.observe(now - sequence.arrived_s)
        else:
            self.latencies.inter_token.observe(now - sequence.last_token_s)
        sequence.last_token_s = now

    def _ended(self, sequence: Sequence, reply: Reply, now: float) -> None:
        del self.live[sequence]
        first = sequence.first_token_s or now
        began = sequence.scheduled_s or sequence.arrived_s
        self.latencies.end_to_end.observe(now - sequence.arrived_s)
        self.latencies.queue.observe(began - sequence.arrived_s)
        self.latencies.prefill.observe(first - began)
        self.latencies.decode.observe(now - first)
        if sequence.hold_id in self.scheduler.holds:
            sequence.transfer_params = self._transfer_params(sequence)
            self._arm_lease()
        reply.end()

    def _transfer_params(self, sequence: Sequence) -> dict[str, Any]:
        count = -(-sequence.prompt_tokens // self.config.block_size)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [sequence.blocks[:count]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": sequence.hold_id,
            "remote_host": self.config.public_host,
            "remote_port": self.http_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": sequence.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": sequence.cached_tokens or 0,
        }

    def _publish(self) -> None:
        """Send the step's events as one batch; a lost one keeps its number."""
        pending = self.scheduler.pool.take_events()
        if not pending or self.publisher is None:
            return
        lost = self.dice.lose_batch()
        keep = not (lost and self.dice.faults.lose_from_replay)
        batch = self.events.append(encode_batch(pending, at=self._unix_s()), keep=keep)
        if lost:
            self.lost_batches += 1
        else:
            self.publisher.publish(batch)

    def _start_loads(self) -> None:
        for sequence in self.scheduler.take_loads():
            task = self._loop.create_task(self._load(sequence))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    async def _load(self, sequence: Sequence) -> None:
        """Fetch a sequence's KV, in the time the model says, then let it run."""
        remote = sequence.remote
        assert remote is not None
        began = self._clock.now()
        timeout = self.config.kv_load_timeout_s / self.config.time_scale
        missing = self.scheduler.missing_blocks(sequence)
        try:
            async with asyncio.timeout(max(timeout, 1.0)):
                contents = await fetch_blocks(
                    remote.host,
                    remote.port,
                    remote.request_id,
                    engine_id=remote.engine_id,
                    blocks=missing,
                )
        except (TransferFailed, TimeoutError) as error:
            log.warning("KV of %s could not be fetched: %s", sequence.id, error)
            await asyncio.sleep(max(began + timeout - self._clock.now(), 0.0))
            self._load_failed(sequence)
            return
        tokens = len(missing) * self.config.block_size
        takes = self.config.costs.transfer_s(tokens) / self.config.time_scale
        await asyncio.sleep(max(began + takes - self._clock.now(), 0.0))
        self.scheduler.kv_arrived(sequence, contents)
        self.kick()

    def _load_failed(self, sequence: Sequence) -> None:
        if sequence not in self.live:
            return
        if self.config.kv_load_recompute:
            self.scheduler.recompute(sequence)
        else:
            self.scheduler.drop(sequence, reason="error")
            self.live.pop(sequence).fail(internal_error())
        self.kick()

    # -- pipelines -----------------------------------------------------------------------------

    def _join(self, sequence: Sequence, part: Part) -> None:
        """Take part in a group; chunks may have come already."""
        self._parts = {name: s for name, s in self._parts.items() if s in self.live}
        if part.stage:
            self._parts[part.name] = sequence
            for chunk, value in self._early.take(part.name):
                self.chunk_handed(part.name, part.stage, chunk, value)

    def chunk_handed(self, name: str, stage: int, chunk: int, value: int) -> bool:
        """An earlier stage hands a chunk over; False where it makes no sense."""
        sequence = self._parts.get(name)
        part = None if sequence is None else sequence.part
        if sequence is None or part is None:
            self._early.keep(name, chunk, value)
            return True
        if part.stage != stage or not part.arrived <= chunk < len(part.ends):
            return False
        if fingerprint(sequence.tokens, part, chunk) != value:
            sequence.text_seed = draw(sequence.text_seed ^ value, 0)
        now = self._clock.now()
        takes_s = part.receive_s(self.config.costs, chunk) / self.config.time_scale
        part.due_s = max(part.due_s, now) + takes_s
        self._loop.call_later(part.due_s - now, self._chunk_here, sequence, chunk)
        return True

    def _chunk_here(self, sequence: Sequence, chunk: int) -> None:
        if sequence in self.live and sequence.part is not None:
            self.scheduler.chunk_arrived(sequence, chunk)
            self.kick()

    def _hand_on(self, sequence: Sequence, chunk: int) -> None:
        part = sequence.part
        if part is None or part.last:
            return
        before = sequence.handing
        task = self._loop.create_task(self._send(sequence, part, chunk, before))
        sequence.handing = task
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def _send(
        self, sequence: Sequence, part: Part, chunk: int, before: asyncio.Task[None] | None
    ) -> None:
        """Hand a chunk over after the one before it; the last one ends the stage."""
        if before is not None:
            await before
        if sequence not in self.live:
            return
        try:
            await hand_over(part, chunk, fingerprint(sequence.tokens, part, chunk))
        except TransferFailed as error:
            log.warning("%s could not hand chunk %d on: %s", sequence.id, chunk, error)
            self._break(sequence, f"the next stage of the pipeline failed: {error}")
            return
        if chunk == len(part.ends) - 1 and sequence in self.live:
            self.live.pop(sequence).end()

    def _tend_parts(self) -> None:
        chunks, broken = self.scheduler.take_parts()
        for sequence, chunk in chunks:
            self._hand_on(sequence, chunk)
        for sequence in broken:
            self._break(sequence, "the stage ran out of KV blocks")

    def _break(self, sequence: Sequence, why: str) -> None:
        reply = self.live.pop(sequence, None)
        if reply is not None:
            self.scheduler.drop(sequence, reason="error")
            reply.fail(internal_error(why))
            self.kick()

    def serve_fetch(self, hold_id: str, engine_id: str, blocks: list[int]) -> list[int] | None:
        """Contents for another engine; None when it means another process than this."""
        if engine_id != self.engine_id:
            return None
        contents = self.scheduler.holds.fetch(hold_id, blocks)
        self._arm_lease()
        self.kick()
        return contents

    def _arm_lease(self) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        due = self.scheduler.holds.next_expiry_s
        if due is not None:
            self._lease_timer = self._loop.call_later(
                max(due - self._clock.now(), 0.0) + GRAIN_S, self._expire
            )

    def _expire(self) -> None:
        self._lease_timer = None
        self.scheduler.holds.expire(self._clock.now())
        self._arm_lease()
        self.kick()

    def abort(self, request_ids: list[str]) -> int:
        """End live requests by their public ids; how many there were."""
        wanted = set(request_ids)
        hit = [sequence for sequence in self.live if sequence.id in wanted]
        for sequence in hit:
            self.scheduler.drop(sequence, reason="abort")
            self.live.pop(sequence).abort()
        self.kick()
        return len(hit)

    def set_faults(self, faults: Faults) -> None:
        """Switch faults; one-off ones strike now."""
        if faults.kill:
            log.warning("%s: killed on request", self.config.name)
            os.kill(os.getpid(), signal.SIGKILL)
        if faults.silent_clear:
            self.scheduler.pool.clear_silently()
        self.dice.faults = replace(faults, silent_clear=False)
        self.scheduler.slowdown = faults.slow
        if not faults.hang and self._timer is None:
            self._arm(None)

    def shut_down(self) -> None:
        """Fail every live request the way a dying engine does, and close the event sockets."""
        for sequence, reply in list(self.live.items()):
            self.scheduler.drop(sequence, reason="error")
            reply.fail(internal_error(ENGINE_DEAD))
        self.live.clear()
        for task in self._loads:
            task.cancel()
        for timer in (self._timer, self._lease_timer):
            if timer is not None:
                timer.cancel()
        if self.publisher is not None:
            self.publisher.close(self._loop)
