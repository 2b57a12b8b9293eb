"""One simulated engine: a FIFO of prompts, a KV cache, and a decode batch where its role has one.

On a node that only prefills, a prompt is one event. On a node that also decodes, the prompt's
chunks and the batch share steps: a step computes one chunk and one token for every member, so
decodes stall for as long as a chunk takes (the whole prompt without chunking).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from core.domain import Decision, Request
from core.fleet.ledger import Reservation
from core.simulation.decode_batch import DecodeBatch
from core.simulation.kv_cache import KvCache
from core.simulation.links import Flow

if TYPE_CHECKING:
    from core.simulation.gangs import Gang


class Job(msgspec.Struct, eq=False, kw_only=True):
    """One attempt to serve a request. Times in virtual seconds, -1 before they happen."""

    index: int
    request: Request
    keys: Sequence[int]
    decision: Decision
    reservation: Reservation
    output_tokens: int
    moved: bool
    """Whether another node decodes it."""
    queued_s: float
    start_s: float = -1.0
    compute_s: float = 0.0
    first_token_s: float = -1.0
    cached_tokens: int = 0
    fetched_tokens: int = 0
    fetch: Flow | None = None
    fetch_first: int = 0
    """First block that the fetch brings."""
    fetch_end: int = 0
    stalled: bool = False
    """Computed, but the last layers of fetched blocks have not arrived."""
    redo_s: float = 0.0
    """Work that a broken fetch left to do."""
    stream: Flow | None = None
    handed_over: bool = False
    first_step: int = 0
    joined_s: float = -1.0
    gang: Gang | None = None
    """The pipeline group that this job is a part of."""


class Hooks(Protocol):
    """What a node tells the world."""

    def schedule(self, at_s: float, function: Any, argument: Any) -> None:
        """Call function(at_s, argument) at that time."""
        ...

    def started(self, job: Job, now: float) -> None:
        """The job's prefill begins."""
        ...

    def prefilled(self, job: Job, now: float) -> None:
        """The job's first token is there."""
        ...

    def decoded(self, job: Job, now: float, tbt_s: float, tpot_s: float) -> None:
        """The job's last token is there."""
        ...


@dataclass(slots=True, eq=False)
class EngineNode:
    """State of one engine; see the module's text. Costs in seconds, sizes in tokens."""

    slot: int
    prefill_cost: tuple[float, float, float]
    cache: KvCache
    hooks: Hooks
    block_tokens: int
    chunk_tokens: int = 0
    layers: int = 1
    host_s_per_block: float = 0.0
    batch: DecodeBatch[Job] | None = None
    mixed: bool = False
    """Whether prefill and decode share this node."""
    batch_max: int = 256
    queue: deque[Job] = field(default_factory=deque)
    running: Job | None = None
    epoch: int = 0
    alive: bool = True
    busy_s: float = 0.0
    """Seconds spent computing prefills."""
    served: int = 0
    decode_waiting: deque[Job] = field(default_factory=deque)
    coupled: bool = False
    """A prefill chunk and the batch share steps right now."""
    position: int = 0
    """Prompt tokens of the running job computed so far (mixed nodes)."""

    # -- prefill ---------------------------------------------------------------------------

    def enqueue(self, job: Job, now: float) -> None:
        """A prompt arrives."""
        self.queue.append(job)
        if self.running is None:
            self.next(now)

    def next(self, now: float) -> None:
        """Start the prompt at the head of the queue, if the node is free."""
        if not self.queue or not self.alive:
            return
        job = self.running = self.queue.popleft()
        if job.gang is not None:
            job.gang.stands_ready(job, now)
            return
        prefix = self.prefix_now(job)
        job.start_s = now
        job.cached_tokens = prefix
        if self.mixed:
            self._start_mixed(job, now, prefix)
            return
        job.compute_s = self.prefill_s(job.request.prompt_tokens, prefix)
        if self.cache.host:
            job.compute_s += self._host_s(job)
        self.hooks.started(job, now)
        self.hooks.schedule(now + job.compute_s, self._computed, (job, self.epoch))

    def prefix_now(self, job: Job) -> int:
        """Tokens the node need not compute: held, or arriving by the job's own fetch."""
        held = depth = self.cache.match(job.keys)
        if job.fetch is not None and not job.fetch.finished and held >= job.fetch_first:
            depth = max(held, job.fetch_end)
        # An engine computes at least the last token: its logits give the first output token.
        tokens, most = depth * self.block_tokens, job.request.prompt_tokens - 1
        if tokens > most:
            tokens = most if most > 0 else 0
        return tokens

    def prefill_s(self, length: int, prefix: int) -> float:
        """Seconds to compute tokens prefix..length, with the fixed cost of every chunk."""
        if length <= prefix:
            return 0.0
        c0, c1, c2 = self.prefill_cost
        if self.chunk_tokens:
            c0 *= -(-(length - prefix) // self.chunk_tokens)
        return c0 + (length - prefix) * (c1 + c2 * (length + prefix))

    def _host_s(self, job: Job) -> float:
        """Loading host blocks: only what does not hide behind computing, layer by layer."""
        blocks = self.cache.host_blocks(job.keys)
        return blocks * self.host_s_per_block / self.layers if blocks else 0.0

    def _computed(self, now: float, event: tuple[Job, int]) -> None:
        job, epoch = event
        if epoch != self.epoch:
            return
        if job.fetch is not None and not job.fetch.finished:
            job.stalled = True
        elif job.redo_s:
            redo_s, job.redo_s = job.redo_s, 0.0
            self.hooks.schedule(now + redo_s, self._computed, event)
        else:
            self.complete(job, now)

    def fetch_ended(self, job: Job, now: float, *, whole: bool) -> None:
        """The job's fetch is over: whole, only the last layer waits for it; broken, the blocks
        that a started prefill counted on have to be computed after all."""
        if not whole and job.start_s >= 0:
            first, end = job.fetch_first * self.block_tokens, job.fetch_end * self.block_tokens
            job.redo_s = self.prefill_s(end, first)
            job.cached_tokens = min(job.cached_tokens, first)
        if job.stalled:
            job.stalled = False
            last_layer_s = job.compute_s / self.layers
            self.hooks.schedule(now + last_layer_s, self._computed, (job, self.epoch))

    def complete(self, job: Job, now: float) -> None:
        """The prompt is computed: its blocks are cached, the next prompt starts."""
        self.running = None
        self.busy_s += now - job.start_s
        self.served += 1
        self.cache.insert(job.keys)
        self.hooks.prefilled(job, now)
        if self.running is None and self.queue:
            self.next(now)

    # -- prefill and decode in one step -------------------------------------------------------

    def _start_mixed(self, job: Job, now: float, prefix: int) -> None:
        batch = self.batch
        assert batch is not None
        start = batch.boundary(now)
        self.coupled = True
        self.position = prefix
        batch.version += 1
        self.hooks.started(job, now)
        self.hooks.schedule(start, self._next_chunk, (job, self.epoch))

    def _next_chunk(self, now: float, event: tuple[Job, int]) -> None:
        job, epoch = event
        if epoch != self.epoch:
            return
        batch = self.batch
        assert batch is not None
        self._leave(now)
        self._admit(now)
        length = job.request.prompt_tokens
        end = min(self.position + (self.chunk_tokens or length), length)
        c0, c1, c2 = self.prefill_cost
        seconds = c0 + (end - self.position) * (c1 + c2 * (end + self.position))
        seconds += batch.d1 * batch.size + batch.d2 * batch.kv_tokens
        job.compute_s += seconds
        self.hooks.schedule(now + seconds, self._chunk_done, (job, epoch, end, now))

    def _chunk_done(self, now: float, event: tuple[Job, int, int, float]) -> None:
        job, epoch, end, started = event
        if epoch != self.epoch:
            return
        batch = self.batch
        assert batch is not None
        batch.coupled_step(started, now - started)
        self.position = end
        if end < job.request.prompt_tokens:
            self._next_chunk(now, (job, epoch))
            return
        self.coupled = False
        self._leave(now)
        self._admit(now)
        self._plan_leave()
        self._computed(now, (job, epoch))

    # -- decode ------------------------------------------------------------------------------

    def join(self, job: Job, now: float) -> None:
        """A prompt's KV is here: decode it as soon as there is a place; output >= 2 tokens."""
        self.decode_waiting.append(job)
        if not self.coupled:
            self._admit(now)
            self._plan_leave()

    def step_s_with(self, job: Job) -> float:
        """TBT of the batch if the job joined it now."""
        batch = self.batch
        assert batch is not None
        waiting = len(self.decode_waiting)
        tokens = sum(j.request.prompt_tokens for j in self.decode_waiting)
        more = batch.d1 * (waiting + 1) + batch.d2 * (tokens + job.request.prompt_tokens)
        return batch.step_s + more

    def _admit(self, now: float) -> None:
        batch = self.batch
        assert batch is not None
        while self.decode_waiting and batch.size < self.batch_max:
            job = self.decode_waiting[0]
            blocks = self._decode_blocks(job)
            if batch.size and self.cache.reserved + blocks > self.cache.capacity:
                return
            self.decode_waiting.popleft()
            self.cache.reserve(blocks)
            tokens = job.request.prompt_tokens + 1
            steps = job.output_tokens - 1
            job.first_step = batch.join(job, now, kv_tokens=tokens, steps=steps)
            job.joined_s = batch.at_s

    def _decode_blocks(self, job: Job) -> int:
        """KV blocks a decode takes: its prompt is in the cache already where it was prefilled."""
        tokens = job.output_tokens + (job.request.prompt_tokens if job.moved else 0)
        return -(-tokens // self.block_tokens)

    def _leave(self, now: float) -> None:
        """Members whose last token came by now."""
        batch = self.batch
        assert batch is not None
        for job in batch.settle(now):
            batch.left(job.request.prompt_tokens + job.output_tokens)
            self.cache.reserve(-self._decode_blocks(job))
            last = job.first_step + job.output_tokens - 1
            wait_s = job.joined_s - job.first_token_s
            tbt, tpot = batch.tbt_s(job.first_step, last, wait_s)
            self.hooks.decoded(job, now, tbt, tpot)

    def _plan_leave(self) -> None:
        batch = self.batch
        assert batch is not None
        if batch.leaves:
            event = (self.epoch, batch.version)
            self.hooks.schedule(batch.next_leave_s(), self._leave_event, event)

    def _leave_event(self, now: float, event: tuple[int, int]) -> None:
        assert self.batch is not None
        if event == (self.epoch, self.batch.version) and not self.coupled:
            self._leave(now)
            self._admit(now)
            self._plan_leave()

    # -- failure -----------------------------------------------------------------------------

    def die(self) -> list[Job]:
        """Lose everything; returns the jobs that were on the node."""
        running = [self.running] if self.running else []
        lost = [*running, *self.queue, *self.decode_waiting]
        if self.batch is not None:
            lost += self.batch.clear()
        self.queue.clear()
        self.decode_waiting.clear()
        self.cache.clear()
        self.running, self.coupled, self.alive = None, False, False
        self.epoch += 1
        return lost
