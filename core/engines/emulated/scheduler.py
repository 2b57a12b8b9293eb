"""Continuous batching with chunked prefill over a block pool, in explicit time.

Theory of operation. `schedule(now)` fills one step: first one token (or the next prompt chunk)
for every running sequence, then waiting ones in order of arrival, until the token budget, the
batch cap or the blocks run out. Blocks are found, taken and made findable here, before the step
runs, so two equal prompts of one step share. `complete(step)` moves progress forward and draws
the tokens. When a running sequence finds no block, the youngest running one is preempted: it
loses its blocks and starts again from the head of the queue. A sequence whose KV comes from
another engine gets blocks for its whole prompt, waits outside the batch until `kv_arrived`, and
then computes only its last prompt token. One that is a part of a pipeline waits there for its
first chunk and computes what has arrived. Tokens are drawn from the prompt's own seed, so the
same prompt gives the same text on every engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from core.engines.emulated.cache import MEDIUM, BlockPool
from core.engines.emulated.costs import StepCosts
from core.engines.emulated.events import BlockStored
from core.engines.emulated.handoff import Holds
from core.engines.emulated.sequence import (
    Sequence,
    State,
    chain,
    draw,
    pack,
    partial_fingerprint,
)


@dataclass(slots=True)
class Step:
    """One forward pass: who computes how many tokens, and when it ends."""

    started_s: float
    ends_s: float
    chunks: list[tuple[Sequence, int]]
    prefills: bool
    """Whether a prompt is computed in it."""


@dataclass(slots=True)
class Counters:
    """Tokens and sequences since the start, as the metrics page names them."""

    queries: int = 0
    hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    computed: int = 0
    generated: int = 0
    preemptions: int = 0
    steps: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )


class Scheduler:
    """Waiting, loading and running sequences of one engine. Holds no clock and no socket."""

    def __init__(
        self,
        pool: BlockPool,
        costs: StepCosts,
        *,
        batch_max: int,
        step_tokens_max: int,
        time_scale: float = 1.0,
        lease_s: float = 30.0,
        sample: Callable[[int, int], int] = draw,
    ) -> None:
        self.pool = pool
        self.costs = costs
        self.waiting: deque[Sequence] = deque()
        self.loading: list[Sequence] = []
        self.running: list[Sequence] = []
        self.holds = Holds(pool, lease_s=lease_s / time_scale)
        self.counters = Counters()
        self.slowdown = 1.0
        """Factor on every step's time (a fault)."""
        self.time_scale = time_scale
        self._batch_max = batch_max
        self._step_tokens_max = step_tokens_max
        self._sample = sample
        self._to_load: list[Sequence] = []
        self._chunks_over: list[tuple[Sequence, int]] = []
        self._broken: list[Sequence] = []

    @property
    def busy(self) -> bool:
        """Whether any sequence is inside."""
        return bool(self.running or self.waiting or self.loading)

    def add(self, sequence: Sequence, *, now: float) -> None:
        """Queue a sequence."""
        sequence.arrived_s = now
        if sequence.part is not None and not sequence.part.arrived:
            sequence.state = State.LOADING
            self.loading.append(sequence)
        else:
            self.waiting.append(sequence)

    def join(self, sequence: Sequence) -> bool:
        """Take the cached prefix that a part of a pipeline starts from; False without it."""
        assert sequence.part is not None
        blocks = sequence.part.prefix // self.pool.block_size
        found = self.pool.match(sequence.hashes, blocks)
        if len(found) < blocks:
            return False
        self.pool.touch(found)
        sequence.blocks, sequence.registered = found, len(found)
        sequence.computed = sequence.part.prefix
        self._count_hits(sequence, sequence.part.prefix)
        return True

    def chunk_arrived(self, sequence: Sequence, chunk: int) -> None:
        """Its stage may compute one more chunk."""
        assert sequence.part is not None
        sequence.part.arrived = chunk + 1
        if sequence.state is State.LOADING:
            self.loading.remove(sequence)
            sequence.state = State.WAITING
            self.waiting.append(sequence)

    def take_parts(self) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        """Chunks to hand over, and parts that lost their blocks, since the last call."""
        over, self._chunks_over = self._chunks_over, []
        broken, self._broken = self._broken, []
        return over, broken

    def schedule(self, now: float) -> Step | None:
        """The next step, or None when nothing can run at `now`; later arrivals do not count."""
        chunks: list[tuple[Sequence, int]] = []
        preempted = self.counters.preemptions
        budget = self._schedule_running(chunks)
        if self.waiting and preempted == self.counters.preemptions:
            self._admit(chunks, budget, now)
        if not chunks:
            return None
        self.counters.steps += 1
        return self._step(chunks, now)

    def _schedule_running(self, chunks: list[tuple[Sequence, int]]) -> int:
        budget = self._step_tokens_max
        index = 0
        while index < len(self.running) and budget:
            sequence = self.running[index]
            count = min(_open_tokens(sequence), budget)
            if not count:
                index += 1
                continue
            if not self._grow(sequence, count):
                break
            chunks.append((sequence, count))
            budget -= count
            index += 1
        return budget

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Blocks for `count` more tokens, preempting the youngest; False if that was itself."""
        size = self.pool.block_size
        end = sequence.computed + count
        missing = -(-end // size) - len(sequence.blocks)
        if missing > 0:
            while missing > self.pool.free_blocks:
                if self._preempt_youngest() is sequence:
                    return False
            sequence.blocks += self.pool.allocate(missing)
        if end // size > sequence.registered:
            self._register(sequence, end // size)
        return True

    def _preempt_youngest(self) -> Sequence:
        victim = self.running.pop()
        self.pool.release(victim.blocks)
        victim.blocks = []
        victim.computed = victim.registered = 0
        victim.charged = False
        victim.preemptions += 1
        self.counters.preemptions += 1
        if victim.part is not None:
            # What earlier stages handed over cannot be had again.
            victim.state = State.FINISHED
            self._broken.append(victim)
            return victim
        victim.state = State.WAITING
        self.waiting.appendleft(victim)
        return victim

    def _admit(self, chunks: list[tuple[Sequence, int]], budget: int, now: float) -> None:
        while self.waiting and budget and len(self.running) < self._batch_max:
            sequence = self.waiting[0]
            if sequence.arrived_s > now:
                break
            if sequence.remote is not None and not sequence.blocks:
                if not self._start_loading(sequence):
                    break
                continue
            count = self._place(sequence, budget)
            if not count:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.state = State.RUNNING
            if sequence.scheduled_s is None:
                sequence.scheduled_s = now
            chunks.append((sequence, count))
            budget -= count

    def _place(self, sequence: Sequence, budget: int) -> int:
        """Take blocks for the first chunk; its length in tokens, or 0 when they are not there."""
        fresh = not sequence.blocks and sequence.part is None
        if fresh and not self._reuse(sequence, budget):
            return 0
        count = min(_open_tokens(sequence), budget)
        end = sequence.computed + count
        missing = -(-end // self.pool.block_size) - len(sequence.blocks)
        if missing > self.pool.free_blocks:
            return 0
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        if end // self.pool.block_size > sequence.registered:
            self._register(sequence, end // self.pool.block_size)
        return count

    def _reuse(self, sequence: Sequence, budget: int) -> bool:
        """Take the cached prefix, if the blocks after it fit too."""
        size = self.pool.block_size
        found = self.pool.match(sequence.hashes, (len(sequence.tokens) - 1) // size)
        cached = len(found) * size
        end = cached + (
            len(sequence.tokens) - cached
            if sequence.remote
            else min(len(sequence.tokens) - cached, budget)
        )
        needed = -(-end // size) - len(found) + self.pool.unreferenced(found)
        if needed > self.pool.free_blocks:
            return False
        self.pool.touch(found)
        sequence.blocks = found
        sequence.computed = cached
        sequence.registered = len(found)
        self._count_hits(sequence, cached)
        if sequence.report_hits and found:
            self._announce(sequence, 0, len(found))
        return True

    def _count_hits(self, sequence: Sequence, cached: int) -> None:
        if sequence.cached_tokens is not None:
            return
        sequence.cached_tokens = cached
        self.counters.queries += sequence.prompt_tokens
        self.counters.hits += cached

    def _start_loading(self, sequence: Sequence) -> bool:
        """Blocks for the whole prompt; the sequence leaves the queue until its KV is there."""
        if not self._reuse(sequence, sequence.prompt_tokens):
            return False
        missing = -(-len(sequence.tokens) // self.pool.block_size) - len(sequence.blocks)
        sequence.blocks += self.pool.allocate(missing)
        self.waiting.popleft()
        sequence.state = State.LOADING
        self.loading.append(sequence)
        self._to_load.append(sequence)
        return True

    def take_loads(self) -> list[Sequence]:
        """Sequences that began to wait for remote KV since the last call."""
        loads, self._to_load = self._to_load, []
        return loads

    def missing_blocks(self, sequence: Sequence) -> list[int]:
        """Remote block numbers that a loading sequence has not got itself."""
        assert sequence.remote is not None
        return list(sequence.remote.blocks[sequence.registered :])

    def kv_arrived(self, sequence: Sequence, fingerprints: Items[int]) -> None:
        """The fetched blocks' contents; foreign content turns the text to nonsense."""
        if sequence.state is not State.LOADING:
            return
        self._check_content(sequence, fingerprints)
        received = len(sequence.tokens) - sequence.computed
        sequence.received_tokens = received
        self.counters.external_queries += received
        self.counters.external_hits += received
        sequence.computed = len(sequence.tokens) - 1
        sequence.charged = True
        sequence.remote = None
        self._requeue(sequence)

    def _check_content(self, sequence: Sequence, fingerprints: Items[int]) -> None:
        expected = list(sequence.hashes[sequence.registered :])
        rest = partial_fingerprint(sequence, self.pool.block_size)
        if rest:
            expected.append(rest)
        got = list(fingerprints[: len(expected)])
        got += [0] * (len(expected) - len(got))
        for want, have in zip(expected, got, strict=True):
            if want != have:
                sequence.text_seed = draw(sequence.text_seed ^ have, 0)

    def recompute(self, sequence: Sequence) -> None:
        """The KV will not come: compute the prompt here."""
        if sequence.state is State.LOADING:
            self.pool.release(sequence.blocks)
            sequence.blocks = []
            sequence.computed = sequence.registered = 0
            sequence.remote = None
            self._requeue(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        self.loading.remove(sequence)
        sequence.state = State.WAITING
        self.waiting.appendleft(sequence)

    def _register(self, sequence: Sequence, full: int) -> None:
        """Make the first `full` blocks findable and announce the new ones."""
        if sequence.part is not None and not sequence.part.last:
            return  # they hold a few of the layers only
        hashes, size = sequence.hashes, self.pool.block_size
        if full > len(hashes):
            parent = hashes[-1] if hashes else sequence.root
            hashes += chain(pack(sequence.tokens[len(hashes) * size : full * size]), size, parent)
        first = sequence.registered
        self.pool.register(sequence.blocks[first:full], hashes[first:full])
        sequence.registered = full
        self._announce(sequence, first, full)

    def _announce(self, sequence: Sequence, first: int, last: int) -> None:
        size = self.pool.block_size
        every: list[str] | None = [sequence.adapter] if sequence.adapter else None
        keys = [every] * (last - first)
        if first == 0 and sequence.salt:
            keys[0] = [*(every or ()), sequence.salt]
        self.pool.pending.append(
            BlockStored(
                sequence.hashes[first:last],
                sequence.hashes[first - 1] if first else None,
                sequence.tokens[first * size : last * size],
                size,
                sequence.adapter_id,
                MEDIUM,
                sequence.adapter,
                keys,
                0,
                "full_attention",
                sequence.session,
            )
        )

    def _step(self, chunks: list[tuple[Sequence, int]], now: float) -> Step:
        costs = self.costs
        seconds, batch, kv_tokens = 0.0, 0, 0
        for sequence, count in chunks:
            if count == 1 and sequence.charged and sequence.part is None:
                batch += 1
                kv_tokens += sequence.computed
                continue
            if sequence.part is not None:
                seconds += sequence.part.compute_s(costs, sequence.computed, count)
                sequence.charged = True
                continue
            seconds += costs.prefill_s(sequence.computed, count)
            if not sequence.charged:
                sequence.charged = True
                seconds += costs.c0
        seconds += costs.decode_s(batch, kv_tokens)
        ends_s = now + seconds * self.slowdown / self.time_scale
        return Step(now, ends_s, chunks, batch < len(chunks))

    def complete(self, step: Step) -> list[Sequence]:
        """Move on by a step that ended; the sequences that got a token, finished ones included."""
        produced, finished = [], False
        counters = self.counters
        for sequence, count in step.chunks:
            if sequence.state is not State.RUNNING:
                continue
            left = sequence.prompt_tokens - sequence.computed
            if left > 0 and not sequence.received_tokens:
                counters.computed += min(count, left)
            sequence.computed += count
            if sequence.part is not None and self._goes_on(sequence):
                finished = True
                continue
            if sequence.computed < len(sequence.tokens):
                continue
            sequence.tokens.append(self._sample(sequence.text_seed, sequence.output_tokens))
            produced.append(sequence)
            if sequence.output_tokens >= sequence.output_tokens_max:
                self._finish(sequence, step.ends_s)
                finished = True
        counters.generated += len(produced)
        if finished:
            self.running = [s for s in self.running if s.state is State.RUNNING]
        return produced

    def _goes_on(self, sequence: Sequence) -> bool:
        """A part has moved on; False where its prompt is whole and it generates here."""
        part = sequence.part
        assert part is not None
        if sequence.computed == part.ends[part.over]:
            self._chunks_over.append((sequence, part.over))
            part.over += 1
        if sequence.computed < sequence.prompt_tokens:
            return True
        if part.last:
            sequence.part = None
            return False
        sequence.state = State.FINISHED
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        return True

    def _finish(self, sequence: Sequence, now: float) -> None:
        sequence.state = State.FINISHED
        self.counters.finished[sequence.finish_reason] += 1
        if sequence.hold_id is None or sequence.finish_reason != "length":
            self.pool.release(sequence.blocks)
            return
        self.holds.pin(sequence.hold_id, sequence, now=now)

    def drop(self, sequence: Sequence, *, reason: str | None = None) -> None:
        """Remove a live sequence; a reason is counted, a client that hung up (None) is not."""
        if sequence.state is State.FINISHED:
            return
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is State.LOADING:
            self.loading.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.state = State.FINISHED
        if reason:
            self.counters.finished[reason] += 1


def _open_tokens(sequence: Sequence) -> int:
    """Tokens that could be computed now."""
    left = len(sequence.tokens) - sequence.computed
    return left if sequence.part is None else min(left, sequence.part.available(sequence.computed))
