"""A seeded workload generator of our own: conversation, tool/agent, API and coding mixes.

A `Mix` is data. Sessions start as a Poisson process whose rate jumps between a calm and a burst
level (a two-state Markov-modulated process); each session belongs to a tenant and starts from
one of the mix's system prompts, both drawn from Zipf laws (`skew`); its turns append user text and
the answers, with log-normal lengths and think times. Agents branch off parallel calls from the
same context; coding sessions edit the middle of their context, which cuts the shared prefix.

Only the blocks' identities are made, as in the published traces: see `_Context`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from core.errors import BadRequest
from core.simulation.traces import Trace, TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """A length or time: median, spread of the logarithm, and bounds."""

    median: float
    sigma: float
    low: float = 1.0
    high: float = 200_000.0

    def draw(self, rng: random.Random) -> float:
        """One value within the bounds."""
        value = self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0))
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """One kind of traffic. Lengths in tokens, times in seconds, shares in 0..1."""

    kind: str
    system_prompts: int
    system_tokens: LogNormal
    user_tokens: LogNormal
    output_tokens: LogNormal
    think_s: LogNormal
    turns_mean: float
    branch_share: float = 0.0
    """Chance that a turn also issues parallel calls from the same context."""
    branches: int = 3
    edit_share: float = 0.0
    """Chance that a turn changes the context somewhere in its later half."""
    prompt_max: int = 128_000


MIXES: dict[str, tuple[tuple[float, Mix], ...]] = {}
"""Mix name -> (share of sessions, mix)."""

_CONVERSATION = Mix(
    kind="conversation", system_prompts=40, system_tokens=LogNormal(median=700, sigma=0.6),
    user_tokens=LogNormal(median=2400, sigma=1.5), output_tokens=LogNormal(median=330, sigma=0.7),
    think_s=LogNormal(median=45, sigma=1.0), turns_mean=3.0,
)  # fmt: skip
_AGENT = Mix(
    kind="agent", system_prompts=25, system_tokens=LogNormal(median=4500, sigma=0.5),
    user_tokens=LogNormal(median=700, sigma=1.1), output_tokens=LogNormal(median=140, sigma=0.8),
    think_s=LogNormal(median=2.5, sigma=0.8), turns_mean=6.0, branch_share=0.25,
)  # fmt: skip
_API = Mix(
    kind="api", system_prompts=150, system_tokens=LogNormal(median=1100, sigma=0.7),
    user_tokens=LogNormal(median=600, sigma=1.2), output_tokens=LogNormal(median=90, sigma=0.9),
    think_s=LogNormal(median=1.0, sigma=0.5), turns_mean=1.0,
)  # fmt: skip
_CODING = Mix(
    kind="coding", system_prompts=60, system_tokens=LogNormal(median=9000, sigma=0.7),
    user_tokens=LogNormal(median=350, sigma=1.0), output_tokens=LogNormal(median=60, sigma=0.8),
    think_s=LogNormal(median=8, sigma=0.9), turns_mean=12.0, edit_share=0.35,
)  # fmt: skip
for _mix in (_CONVERSATION, _AGENT, _API, _CODING):
    MIXES[_mix.kind] = ((1.0, _mix),)
MIXES["mixed"] = ((0.4, _CONVERSATION), (0.2, _AGENT), (0.3, _API), (0.1, _CODING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What to generate: `requests` in all, at `rate_per_s` on average.

    burst: the rate's factor in bursts (1: none), which take `burst_share` of the time in
    stretches of about `burst_s`. skew: exponent of the Zipf laws over tenants and system
    prompts (0: uniform). hot_share: share of all sessions that start with one and the same
    system prompt of `hot_tokens`, on top of the skew.
    """

    mix: str = "conversation"
    requests: int = 1000
    rate_per_s: float = 3.0
    seed: int = 0
    block_tokens: int = 512
    tenants: int = 8
    skew: float = 1.0
    burst: float = 1.0
    burst_share: float = 0.1
    burst_s: float = 20.0
    hot_share: float = 0.0
    hot_tokens: int = 8192

    def __post_init__(self) -> None:
        _check(self)


def generate(workload: Workload) -> Trace:
    """The trace of a workload: same workload, same trace, to the byte."""
    maker = _Generator(workload)
    w = workload
    name = f"generated-{w.mix}-{w.requests}-seed{w.seed}"
    return Trace(name=name, block_tokens=w.block_tokens, requests=maker.requests())


def _check(w: Workload) -> None:
    """BadRequest names the first field out of bounds."""
    rules: list[tuple[str, bool, str]] = [
        ("mix", w.mix in MIXES, f"one of {', '.join(MIXES)}"),
        ("requests", 1 <= w.requests <= 10_000_000, "1..10000000"),
        ("rate_per_s", 0 < w.rate_per_s < 1e6, "above 0 and below 1e6"),
        ("block_tokens", 1 <= w.block_tokens <= 65536, "1..65536"),
        ("tenants", 1 <= w.tenants <= 100_000, "1..100000"),
        ("skew", 0 <= w.skew <= 10, "0..10"),
        ("burst", 1 <= w.burst <= 1000, "1..1000"),
        ("burst_share", 0 < w.burst_share < 1, "above 0 and below 1"),
        ("burst_s", w.burst_s > 0, "above 0"),
        ("hot_share", 0 <= w.hot_share <= 1, "0..1"),
        ("hot_tokens", 0 <= w.hot_tokens <= 1_000_000, "0..1000000"),
    ]
    for name, good, expected in rules:
        if not good:
            raise BadRequest(f"{name}: expected {expected}, not {getattr(w, name)}", field=name)


class _Zipf:
    """Draws 0..n-1 with probability proportional to 1 / (rank + 1) ** skew."""

    def __init__(self, n: int, skew: float) -> None:
        weights = [(rank + 1) ** -skew for rank in range(n)]
        self.cumulative = list(itertools.accumulate(weights))

    def draw(self, rng: random.Random) -> int:
        return bisect(self.cumulative, rng.random() * self.cumulative[-1])


@dataclass(slots=True)
class _Context:
    """A token stream known by its whole blocks' ids; text after them has no identity yet."""

    ids: list[int] = field(default_factory=list)
    tokens: int = 0

    def fork(self) -> _Context:
        return _Context(list(self.ids), self.tokens)

    def extend(self, tokens: int, block: int, fresh: Iterator[int]) -> None:
        """Append text of its own: every block completed by it gets a new id."""
        self.tokens += tokens
        while len(self.ids) < self.tokens // block:
            self.ids.append(next(fresh))

    def edit(self, at_token: int, block: int, fresh: Iterator[int]) -> None:
        """Change a token: the blocks from there on are other blocks now."""
        kept = min(at_token // block, len(self.ids))
        for i in range(kept, len(self.ids)):
            self.ids[i] = next(fresh)

    def prompt(self, block: int, fresh: Iterator[int]) -> list[int]:
        """Ids of a prompt of this context; a partly filled last block is never shared."""
        return [*self.ids, next(fresh)] if self.tokens % block else list(self.ids)


@dataclass(slots=True)
class _Session:
    mix: Mix
    name: str
    tenant: str
    context: _Context
    turns: int
    turn: int = 0
    last: int = -1
    """Number of the session's latest request in order of generation."""
    think_s: float | None = None


class _Generator:
    def __init__(self, workload: Workload) -> None:
        self.w = workload
        self.rng = random.Random(workload.seed)
        self.fresh = itertools.count()
        self.sequence = itertools.count()
        self.tenant_law = _Zipf(workload.tenants, workload.skew)
        self.prompts: dict[tuple[str, int], _Context] = {}
        self.prompt_law = {
            mix.kind: _Zipf(mix.system_prompts, workload.skew) for _, mix in MIXES[workload.mix]
        }

    def requests(self) -> list[TraceRequest]:
        """All requests in order of arrival."""
        made: list[TraceRequest] = []
        due: list[tuple[float, int, _Session]] = []
        starts = self._session_starts()
        next_start = next(starts)
        while len(made) < self.w.requests:
            if not due or next_start <= due[0][0]:
                session = self._session()
                heapq.heappush(due, (next_start, next(self.sequence), session))
                next_start = next(starts)
                continue
            at, _, session = heapq.heappop(due)
            self._turn(made, at, session)
            if session.turn < session.turns:
                session.think_s = session.mix.think_s.draw(self.rng)
                later = at + self._service_s(made[-1]) + session.think_s
                heapq.heappush(due, (later, next(self.sequence), session))
        return self._in_order(made[: self.w.requests])

    def _session_starts(self) -> Iterator[float]:
        """Start times whose mean rate gives the wanted request rate, modulated by bursts."""
        w, rng = self.w, self.rng
        base = w.rate_per_s / self._requests_per_session()
        calm = base / (1 - w.burst_share + w.burst_share * w.burst)
        calm_s = w.burst_s * (1 - w.burst_share) / w.burst_share
        now, bursting = 0.0, False
        until = rng.expovariate(1 / calm_s)
        while True:
            step = rng.expovariate(calm * w.burst if bursting else calm)
            if now + step < until:
                now += step
                yield now
            else:
                now, bursting = until, not bursting
                until = now + rng.expovariate(1 / (w.burst_s if bursting else calm_s))

    def _requests_per_session(self) -> float:
        return sum(
            share * mix.turns_mean * (1 + mix.branch_share * mix.branches)
            for share, mix in MIXES[self.w.mix]
        )

    def _session(self) -> _Session:
        shares = list(itertools.accumulate(share for share, _ in MIXES[self.w.mix]))
        mix = MIXES[self.w.mix][bisect(shares, self.rng.random() * shares[-1])][1]
        tenant = self.tenant_law.draw(self.rng)
        turns = 1
        if mix.turns_mean > 1:
            turns += int(self.rng.expovariate(1.0) * (mix.turns_mean - 0.5))
        name = f"{mix.kind[0]}{next(self.sequence)}"
        return _Session(mix, name, f"tenant-{tenant}", self._system_prompt(mix).fork(), turns)

    def _system_prompt(self, mix: Mix) -> _Context:
        if self.rng.random() < self.w.hot_share:
            return self._shared(("hot", 0), LogNormal(median=self.w.hot_tokens, sigma=0.0))
        number = self.prompt_law[mix.kind].draw(self.rng)
        return self._shared((mix.kind, number), mix.system_tokens)

    def _shared(self, key: tuple[str, int], length: LogNormal) -> _Context:
        """The system prompt of that key, made on first use with a length of its own seed."""
        if key not in self.prompts:
            tokens = int(length.draw(random.Random(f"{self.w.seed}:{key}")))
            context = _Context()
            context.extend(tokens, self.w.block_tokens, self.fresh)
            self.prompts[key] = context
        return self.prompts[key]

    def _turn(self, made: list[TraceRequest], at: float, session: _Session) -> None:
        """One turn, and the parallel calls it may issue from the same context."""
        mix, context, block = session.mix, session.context, self.w.block_tokens
        if session.turn > 0 and self.rng.random() < mix.edit_share:
            context.edit(int(context.tokens * self.rng.uniform(0.5, 1.0)), block, self.fresh)
        session.turn += 1
        if self.rng.random() < mix.branch_share:
            for _ in range(mix.branches):
                self._ask(made, at + self.rng.uniform(0.0, 0.5), session, context.fork())
        session.last = self._ask(made, at, session, context)
        made_now = made[session.last]
        context.extend(made_now.output_tokens, block, self.fresh)
        if context.tokens >= mix.prompt_max:
            session.turns = session.turn

    def _ask(
        self, made: list[TraceRequest], at: float, session: _Session, context: _Context
    ) -> int:
        mix, block = session.mix, self.w.block_tokens
        added = min(int(mix.user_tokens.draw(self.rng)), max(mix.prompt_max - context.tokens, 1))
        context.extend(added, block, self.fresh)
        request = TraceRequest(
            arrival_s=at,
            prompt_tokens=context.tokens,
            output_tokens=int(mix.output_tokens.draw(self.rng)),
            hash_ids=context.prompt(block, self.fresh),
            session=session.name,
            turn=session.turn,
            parent=session.last,
            tenant=session.tenant,
            kind=mix.kind,
            think_s=session.think_s if session.last >= 0 else None,
        )
        made.append(request)
        return len(made) - 1

    def _service_s(self, r: TraceRequest) -> float:
        """A plain guess of the service time, so that turns do not overlap when replayed by time."""
        return r.prompt_tokens / 10_000 + r.output_tokens * 0.03

    def _in_order(self, made: list[TraceRequest]) -> list[TraceRequest]:
        """Sorted by arrival with parents renumbered, stretched to the wanted mean rate.

        The first sessions' later turns come late, so the raw rate starts low; stretching all
        times alike keeps the shape.
        """
        order = sorted(range(len(made)), key=lambda i: made[i].arrival_s)
        place = {old: new for new, old in enumerate(order)}
        first, last = made[order[0]].arrival_s, made[order[-1]].arrival_s
        stretch = len(made) / self.w.rate_per_s / (last - first) if last > first else 1.0
        result = []
        for old in order:
            r = made[old]
            parent = place.get(r.parent, -1) if r.parent >= 0 else -1
            think = None if r.think_s is None else round(r.think_s * stretch, 3)
            at = round((r.arrival_s - first) * stretch * 1e3) / 1e3
            result.append(replace(r, arrival_s=at, parent=parent, think_s=think))
        return result
