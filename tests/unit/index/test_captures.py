"""Recorded engines, message by message: the index lists what they hold and nothing else."""

import json

import event_captures as captures
import msgspec
import pytest
from event_captures import CAPTURES, COPIED, EngineCache, shared

from core.domain import Medium, Slot
from core.hashing import chain, root_key, token_array
from core.index.event_stream import Apply, EventCursor, Status
from core.index.events import Cleared, Removed, Stored, decode_batch, parse_live, parse_replay
from core.index.ingest import NodeIngest
from core.index.prefix_index import PrefixIndex

SLOT = Slot(3)


def replay_through_everything(capture):
    """Frames -> cursor -> ingest -> index, checked against the oracle after each message."""
    size = next(e["block_size"] for p in capture.payloads for e in p[1] if "block_size" in e)
    index = PrefixIndex()
    index.add_node(SLOT, block_size=size)
    sglang = capture.is_sglang
    ingest = NodeIngest(index, SLOT, model="tiny", block_size=size, counts_copies=not sglang)
    oracle = EngineCache(counts_copies=not sglang)
    cursor = EventCursor(has_replay=False)
    assert cursor.start(0.0) == []
    for at, frames in enumerate(capture.frames):
        actions = cursor.live(frames, float(at))
        assert [type(action) for action in actions] == [Apply]
        while not ingest.apply(actions[0].batch, 7):
            pass
        oracle.message(capture.payloads[at], again=at in capture.reannounced)
        check(index, ingest, oracle)
    assert cursor.status is Status.LIVE
    index.check_integrity()
    return index, ingest, oracle


def check(index, ingest, oracle):
    held = oracle.held
    for size, prefix in oracle.seen:
        keys = keys_of(size, prefix)
        assert index.holds(SLOT, keys[-1]) == (prefix in held), prefix
        whole = 0
        while whole < len(keys) and (*prefix[:2], prefix[2][: (whole + 1) * size]) in held:
            whole += 1
        assert index.match({size: keys})[SLOT] == whole * size
    assert index.stats().blocks[SLOT] == len(held)
    assert ingest.stats().copies == sum(oracle.copies.values()) - len(oracle.copies)


def keys_of(size, prefix, cache={}):  # noqa: B006
    if (size, prefix) not in cache:
        adapter, salt, tokens = prefix
        root = root_key("tiny", adapter=adapter, salt=salt, block_size=size)
        cache[size, prefix] = chain(token_array(tokens), size, root)
    return cache[size, prefix]


def unseen(name):
    """SGLang's recording begins after a warm-up request, whose one block it evicts later."""
    return 1 if name.startswith("sglang") else 0


@pytest.mark.parametrize("name", COPIED)
def test_copied_captures(name):
    capture = captures.load_copied(name)
    _, ingest, oracle = replay_through_everything(capture)
    assert oracle.seen
    assert ingest.stats().unknown_removed == unseen(name)


@pytest.mark.parametrize("name", CAPTURES)
def test_every_capture(name):
    capture = captures.load(name)
    _, ingest, _ = replay_through_everything(capture)
    if name.startswith(("vllm", "sglang")):
        assert ingest.stats().unknown_removed == unseen(name)
        assert ingest.stats().orphan_blocks == 0


@pytest.mark.parametrize("name", CAPTURES)
def test_decoding_equals_the_recorded_json(name):
    capture = captures.load(name)
    for frames, payload in zip(capture.frames, capture.payloads, strict=True):
        batch = decode_batch(parse_live(frames).payload)
        assert (batch.ts, batch.rank) == (payload[0], payload[2])
        assert len(batch.events) == len(payload[1])
        for event, raw in zip(batch.events, payload[1], strict=True):
            assert type(event).__name__ == {"BlockStored": "Stored", "BlockRemoved": "Removed"}.get(
                raw["type"], "Cleared"
            )
            if isinstance(event, Stored):
                assert event.hashes == raw["block_hashes"]
                assert event.parent == raw.get("parent_block_hash")
                assert event.tokens.tolist() == raw["token_ids"]
                assert event.adapter == (raw.get("lora_name") or "")
            elif isinstance(event, Removed):
                assert event.hashes == raw["block_hashes"]


def shapes():
    return json.loads((captures.FIXTURES / "event-shapes-by-version.json").read_text())["shapes"]


@pytest.mark.parametrize("shape", shapes(), ids=lambda s: s["version"])
def test_the_same_batch_from_each_release_means_the_same(shape):
    batch = decode_batch(captures.base64.b64decode(shape["payload_b64"]))
    stored, removed, cleared = batch.events
    assert (batch.ts, batch.rank) == (1.5, 0)
    assert (stored.hashes, stored.parent, stored.block_size) == ([11, 22], None, 2)
    assert stored.tokens.tolist() == [1, 2, 3, 4]
    assert stored.medium is removed.medium is Medium.GPU
    assert stored.salt == ("salt" if shape["version"] != "0.16.0" else "")
    assert (removed.hashes, cleared) == ([11], Cleared())


def test_shapes_in_the_tree_are_those_of_the_captures():
    path = shared("vllm/event-shapes-by-version.json")
    assert json.loads(path.read_text())["shapes"] == shapes()


def test_recorded_replays_parse():
    for ask in json.loads(shared("vllm/replay.json").read_text()):
        for reply in ("first_reply_b64", "last_reply_b64"):
            if ask.get(reply) and ask["socket"] == "DEALER":
                frame = parse_replay([captures.base64.b64decode(f) for f in ask[reply]])
                assert frame.seq in (ask["first_seqs"][0], ask["last_seqs"][-1])
                assert frame.seq == -1 or decode_batch(frame.payload).events
    for reply in json.loads(shared("sglang/replay.json").read_text())["replies"]:
        empty, topic, seq, payload = reply
        if not payload.startswith("<"):
            frame = parse_replay([bytes.fromhex(f) for f in (empty, topic, seq, payload)])
            assert frame.seq in (15, -1)
            if frame.seq == 15:
                assert decode_batch(frame.payload).events == [Cleared()]


def test_two_engines_share_keys_though_not_hashes():
    """The same prompt on vLLM (unsigned and bytes hashes) gives the same keys of ours."""
    both = [captures.load(f"vllm/events-{name}") for name in ("basic", "bytes-cbor")]
    index = PrefixIndex()
    first = {}
    for slot, capture in enumerate(both):
        index.add_node(Slot(slot), block_size=32)
        ingest = NodeIngest(index, Slot(slot), model="tiny", block_size=32)
        first[slot] = decode_batch(capture.frames[0][2]).events[0]
        while not ingest.apply(decode_batch(capture.frames[0][2]), 1000):
            pass
    assert first[0].hashes != first[1].hashes
    assert first[0].tokens.tolist() == first[1].tokens.tolist()
    keys = chain(first[0].tokens, 32, root_key("tiny", block_size=32))
    assert index.match({32: keys}).tolist() == [len(keys) * 32] * 2


def test_generic_decoder_agrees_on_the_copied_frames():
    for name in COPIED:
        for frames in captures.load_copied(name).frames:
            raw = msgspec.msgpack.decode(frames[2])
            assert decode_batch(frames[2]).ts == raw[0]
