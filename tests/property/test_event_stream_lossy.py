"""A lossy wire between a model engine and the index: never a block too many, whole when quiet."""

import random
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import Slot
from core.hashing import chain, root_key, token_array
from core.index.event_stream import Apply, EventCursor, Forget, RequestReplay, Status
from core.index.ingest import NodeIngest
from core.index.prefix_index import PrefixIndex

SIZE = 4
ROOT = root_key("m", block_size=SIZE)
PROMPTS = [[p // 2] * SIZE + [p] * SIZE * (1 + p % 4) + list(range(SIZE)) for p in range(8)]
KEYS = [chain(token_array(tokens), SIZE, ROOT) for tokens in PROMPTS]


@dataclass
class Engine:
    """A cache of prefixes that publishes what it does, and answers replays from a buffer."""

    rng: random.Random
    buffer_max: int
    process: int = 0
    cached: dict = field(default_factory=dict)
    seq: int = -1
    buffer: list = field(default_factory=list)

    def hash_of(self, key):
        return key ^ self.process if self.process else key

    def act(self):
        act = self.rng.choices(["store", "evict", "clear", "restart"], [6, 4, 0.3, 0.3])[0]
        if act == "restart":
            self.process += 1
            self.cached, self.seq, self.buffer = {}, -1, []
            return None
        return self.publish(getattr(self, act)())

    def store(self):
        at = self.rng.randrange(len(PROMPTS))
        have = sum(1 for key in KEYS[at] if key in self.cached)
        upto = self.rng.randint(have, len(KEYS[at]))
        fresh = KEYS[at][have:upto]
        if not fresh:
            return []
        for i, key in enumerate(fresh, have):
            self.cached[key] = KEYS[at][i - 1] if i else None
        parent = self.hash_of(KEYS[at][have - 1]) if have else None
        tokens = PROMPTS[at][have * SIZE : upto * SIZE]
        return [["BlockStored", list(map(self.hash_of, fresh)), parent, tokens, SIZE, None]]

    def evict(self):
        leaves = [key for key in self.cached if key not in self.cached.values()]
        if not leaves:
            return []
        key = self.rng.choice(leaves)
        del self.cached[key]
        return [["BlockRemoved", [self.hash_of(key)], "GPU"]]

    def clear(self):
        self.cached = {}
        return [["AllBlocksCleared"]]

    def publish(self, events):
        self.seq += 1
        data = msgspec.msgpack.encode([self.process * 1e6 + self.seq, events, 0])
        frame = [b"", self.seq.to_bytes(8, "big"), data]
        self.buffer = [*self.buffer, frame][-self.buffer_max :]
        return frame


class Link:
    """Carries frames with faults, and does what the cursor asks for."""

    def __init__(self, seed, *, buffer_max, has_replay, faults):
        self.rng = random.Random(seed)
        self.engine = Engine(self.rng, buffer_max)
        self.index = PrefixIndex()
        self.index.add_node(Slot(0), block_size=SIZE)
        self.ingest = NodeIngest(self.index, Slot(0), model="m", block_size=SIZE)
        self.cursor = EventCursor(has_replay=has_replay)
        self.faults = faults
        self.now = 0.0
        self.behind = []
        self.do(self.cursor.start(0.0))

    def do(self, actions):
        for action in actions:
            if isinstance(action, Apply):
                while not self.ingest.apply(action.batch, self.rng.choice([1, 3, 100])):
                    pass
            elif isinstance(action, Forget):
                self.ingest.forget()
            elif isinstance(action, RequestReplay):
                self.answer(action)

    def answer(self, ask):
        fault = self.rng.choice(["silent", "short", "hole", "garbage", *["none"] * 4])
        replies = [f for f in self.engine.buffer if int.from_bytes(f[1], "big") >= ask.from_seq]
        if not self.faults:
            fault = "none"
        if fault == "silent":
            return
        if fault == "short":
            replies = replies[: self.rng.randint(0, len(replies))]
        if fault == "hole" and len(replies) > 2:
            del replies[self.rng.randrange(1, len(replies))]
        if fault == "garbage":
            replies.insert(0, [b"", b"x"])
        for frame in [*([b"", *f] for f in replies), [b"", b"", b"\xff" * 8, b""]]:
            self.do(self.cursor.replayed(frame, self.now, token=ask.token))

    def step(self):
        self.now += self.rng.choice([0.1, 0.1, 3.0])
        self.do(self.cursor.tick(self.now))
        process = self.engine.process
        frame = self.engine.act()
        if self.engine.process != process:
            # A probe tells sooner or later; before it does, nothing can be promised.
            self.do(self.cursor.epoch_changed("process start", self.now))
            self.behind.clear()
        if frame is not None:
            self.send(frame)

    def send(self, frame):
        fault = self.rng.random() if self.faults else 1.0
        if fault < 0.08:
            return
        if fault < 0.16:
            self.behind.append(frame)
            return
        self.do(self.cursor.live(frame, self.now))
        if fault < 0.3:
            self.do(self.cursor.live(frame, self.now))
        for late in self.behind:
            self.do(self.cursor.live(late, self.now))
        self.behind.clear()

    def check(self):
        """When everything published is applied, nothing is listed that the engine lacks."""
        caught_up = self.cursor.last_applied == self.engine.seq
        if self.cursor.status is Status.LIVE and caught_up:
            listed = {key for keys in KEYS for key in keys if self.index.holds(Slot(0), key)}
            assert listed <= self.engine.cached.keys()
            assert self.index.stats().blocks[0] == len(listed)

    def settle(self):
        """Faults stop; the stream becomes good again within a minute of its clock."""
        self.faults = False
        for _ in range(80):
            self.now += 1.0
            self.do(self.cursor.tick(self.now))
            if self.now % 7 < 1:
                self.send(self.engine.publish([]))
        assert self.cursor.status is Status.LIVE
        assert not self.cursor.degraded
        assert self.cursor.last_applied == self.engine.seq


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 80),
    buffer_max=st.sampled_from([3, 20, 1000]),
    has_replay=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_lossy_stream_never_gives_false_credit_and_recovers(seed, steps, buffer_max, has_replay):
    link = Link(seed, buffer_max=buffer_max, has_replay=has_replay, faults=True)
    for _ in range(steps):
        link.step()
        link.check()
    link.settle()
    link.check()
    link.index.check_integrity()
    assert len(link.cursor._held) == 0


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 80))
@settings(max_examples=80, deadline=None)
def test_with_enough_history_the_index_equals_the_engine(seed, steps):
    link = Link(seed, buffer_max=10_000, has_replay=True, faults=True)
    for _ in range(steps):
        link.step()
    link.settle()
    # Learned anew from the first batch on: whole again whatever happened before.
    link.do(link.cursor.epoch_changed("asked for", link.now))
    listed = {key for keys in KEYS for key in keys if link.index.holds(Slot(0), key)}
    assert listed == set(link.engine.cached)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_gaps_that_the_buffer_covers_leave_no_trace(seed, steps):
    """Only losses, all of them repairable: the index equals the engine after each repair."""
    link = Link(seed, buffer_max=10_000, has_replay=True, faults=False)
    for _ in range(steps):
        frame = link.engine.publish(getattr(link.engine, link.rng.choice(["store", "evict"]))())
        if link.rng.random() < 0.7:
            link.do(link.cursor.live(frame, link.now))
            assert link.cursor.last_applied == link.engine.seq
            listed = {key for keys in KEYS for key in keys if link.index.holds(Slot(0), key)}
            assert listed == set(link.engine.cached)
    assert link.cursor.stats.forgotten == 0
