"""Hostile bytes: MalformedFrame and nothing else, in bounded time, without lasting harm."""

import json
import random
import struct
import time
from base64 import b64decode
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.domain import Slot
from core.errors import MalformedFrame
from core.hashing import chain, root_key
from core.index.event_stream import Apply, EventCursor, Forget
from core.index.events import Stored, decode_batch, parse_live, parse_replay
from core.index.ingest import NodeIngest
from core.index.prefix_index import PrefixIndex

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "events"
SEEDS = [
    b64decode(json.loads(line)["frames_b64"][2])
    for path in sorted(FIXTURES.glob("*.frames.jsonl"))
    for line in path.read_text().splitlines()
] + [
    b64decode(shape["payload_b64"])
    for shape in json.loads((FIXTURES / "event-shapes-by-version.json").read_text())["shapes"]
]
GOOD = msgspec.msgpack.encode([1.0, [["BlockStored", [10**9, 10**9 + 1], None, [5] * 8, 4]], 0])
LIMIT_S = 2.0
"""Far above what a decode takes, far below what unbounded work would."""


def survives(payload):
    """Decodes or refuses; what decodes can be applied, and the next good batch still works."""
    began = time.process_time()
    index = PrefixIndex(entries_max=2_000)
    index.add_node(Slot(0), block_size=4)
    ingest = NodeIngest(index, Slot(0), model="m", block_size=4, blocks_max=1_000)
    cursor = EventCursor(has_replay=False)
    cursor.start(0.0)
    for seq, data in enumerate((payload, GOOD)):
        for action in cursor.live([b"", seq.to_bytes(8, "big"), data], 0.0):
            if isinstance(action, Forget):
                ingest.forget()
            if isinstance(action, Apply):
                while not ingest.apply(action.batch, 64):
                    pass
    index.check_integrity()
    assert index.stats().entries <= 2_000
    good = decode_batch(GOOD).events[0]
    keys = chain(good.tokens, 4, root_key("m", block_size=4))
    assert index.match({4: keys}).tolist() == [8]
    assert time.process_time() - began < LIMIT_S


@given(st.binary(max_size=400))
@example(b"")
@settings(max_examples=300, deadline=None)
def test_random_bytes(payload):
    try:
        decode_batch(payload)
    except MalformedFrame:
        pass
    survives(payload)


@given(seed=st.sampled_from(SEEDS), edits=st.integers(1, 8), rng=st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_mutated_real_batches(seed, edits, rng):
    data = bytearray(seed)
    for _ in range(edits):
        at = rng.randrange(len(data))
        act = rng.randrange(4)
        if act == 0:
            data[at] = rng.randrange(256)
        elif act == 1:
            del data[at : at + rng.randrange(1, 9)]
            data = data or bytearray(b"\x00")
        elif act == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            data[at] = rng.choice([0xC0, 0xC1, 0xC6, 0xDB, 0xDD, 0xDF, 0xCF, 0xD3, 0xFF])
    survives(bytes(data))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)
NAMES = ["BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockMoved"]
FIELDS = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"]
FIELDS += ["lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind", "locality", "cache_salt"]
hashes = st.lists(st.integers(0, 30) | st.binary(max_size=2), max_size=4)
maps = st.dictionaries(st.sampled_from(FIELDS), values | hashes, max_size=8)
events = st.one_of(
    st.builds(lambda name, rest: {"type": name, **rest}, st.sampled_from(NAMES), maps),
    st.builds(lambda name, rest: [name, *rest], st.sampled_from(NAMES), st.lists(values | hashes)),
    values,
)


@given(ts=values, batch=st.lists(events, max_size=5) | values, rest=st.lists(values, max_size=3))
@settings(max_examples=100, deadline=None)
def test_well_formed_msgpack_of_the_wrong_shape(ts, batch, rest):
    survives(msgspec.msgpack.encode([ts, batch, *rest]))


@given(
    count=st.integers(1, 5),
    blocks=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    parent=st.none() | st.integers(0, 12),
    rng=st.randoms(use_true_random=False),
)
@settings(max_examples=50, deadline=None)
def test_well_formed_events_that_make_no_sense(count, blocks, parent, rng):
    """Own parents, cycles, repeated and contradicting hashes, removals of nothing."""
    batch = []
    for _ in range(count):
        hashes = rng.sample(range(13), len(blocks))
        tokens = [rng.randrange(3) for _ in range(4 * len(hashes))]
        batch.append(["BlockStored", hashes, rng.choice([parent, hashes[-1]]), tokens, 4])
        batch.append(["BlockRemoved", rng.sample(range(13), 3)])
    survives(msgspec.msgpack.encode([0.0, batch, 0]))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 2_000_000,
        b"\x93\x01\x90" + b"\x91" * 500_000,
        b"\x92\x01" + b"\x91" * 500_000 + b"\x90",
        b"\x93\x01\x91\x81\xa4type" + b"\x81\xa4type" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x93\x01\xdd\xff\xff\xff\xff\x90",
        b"\x93\x01\x91\x92\xacBlockRemoved\xdd\xff\xff\xff\xff\x01",
        b"\x93\x01\x91\x92\xacBlockRemoved\x91\xc6\xff\xff\xff\xff\x01",
        b"\x93\x01\x91\x92\xdb\xff\xff\xff\xff",
        b"\x93\xcb" + struct.pack(">d", float("nan")) + b"\x90\x00",
        b"\x93\x01\xdc\xff\xff" + b"\x91\xb0AllBlocksCleared" * 0xFFFF + b"\x00",
        b"\x93\x01\xdd\x00\x02\x00\x00" + b"\x91\xb0AllBlocksCleared" * 0x20000 + b"\x00",
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1] * 9_000_000, 9_000_000]], 0]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [2**40] * 4, 4]], 0]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [-1] * 4, 4]], 0]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1] * 4, -4]], 0]),
        msgspec.msgpack.encode([1.0, [["BlockStored", [1, 1], None, [1] * 8, 4]], 0]),
        msgspec.msgpack.encode(
            [1.0, [["BlockStored", [1], None, [1] * 4, 4, None, "GPU", None, [[], []]]], 0]
        ),
        msgspec.msgpack.encode(
            [1.0, [["BlockStored", [1], None, [1] * 4, 4, None, "GPU", None, ["x" * (2 << 20)]]], 0]
        ),
        msgspec.msgpack.Ext(5, b"x" * 100).data,
    ],
    ids=lambda p: f"{len(p)}-bytes-{p[:6].hex()}",
)
def test_traps(payload):
    survives(payload)


@given(st.lists(st.binary(max_size=20), max_size=6))
@settings(max_examples=200, deadline=None)
def test_frames_of_any_number_and_size(frames):
    for parse in (parse_live, parse_replay):
        try:
            frame = parse(frames)
        except MalformedFrame:
            continue
        assert frame.seq >= -1


def test_what_real_batches_say_survives_a_round_through_arrays_and_maps():
    """A map event and the tagged array with the same fields mean the same."""
    rng = random.Random(1)
    for seed in rng.sample(SEEDS, 20):
        ts, raw_events, *rest = msgspec.msgpack.decode(seed)
        arrays = []
        for event in raw_events:
            if isinstance(event, list):
                arrays.append(event)
                continue
            names = FIELDS[:10] if event["type"] == "BlockStored" else ["block_hashes", "medium"]
            tail = [event.get(name) for name in names]
            if event["type"] == "AllBlocksCleared":
                tail = []
            if event["type"] == "BlockStored" and event.get("cache_salt"):
                tail += [None, None, event["cache_salt"]]
            arrays.append([event["type"], *tail])
        ours, theirs = decode_batch(seed), decode_batch(msgspec.msgpack.encode([ts, arrays, *rest]))
        for a, b in zip(ours.events, theirs.events, strict=True):
            if isinstance(a, Stored):
                assert a.tokens.tolist() == b.tokens.tolist()
                assert (a.hashes, a.parent, a.salt, a.adapter) == (
                    b.hashes,
                    b.parent,
                    b.salt,
                    b.adapter,
                )
            else:
                assert a == b
