"""Recorded engine messages: where they are, how to read them, and what they say by themselves.

The reading here uses nothing of core.index: it is what the tests hold the product against.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

REPO = Path(__file__).resolve().parents[3]
FIXTURES = REPO / "tests" / "fixtures" / "events"
SHARED = Path(os.environ.get("CONDUCTOR_SHARED", REPO.parent / "shared")) / "captures"
CAPTURES = [
    "dynamo-mocker/events",
    "sglang/events",
    "vllm/events-basic",
    "vllm/events-bytes-cbor",
    "vllm/events-evictions",
    "vllm/events-lora",
    "vllm/pd/events-nixl-decode",
    "vllm/pd/events-nixl-prefill",
]
COPIED = ["sglang/events", "vllm/events-basic", "vllm/events-lora"]


@dataclass
class Capture:
    name: str
    frames: list[list[bytes]]
    payloads: list
    reannounced: set[int] = field(default_factory=set)
    """Messages in which the engine was asked to report reused blocks again."""

    @property
    def is_sglang(self):
        return self.name.startswith("sglang")


def shared(path):
    if not SHARED.exists():
        pytest.skip(f"needs the captures in {SHARED} (set CONDUCTOR_SHARED)")
    return SHARED / path


def load(name):
    frames = read_frames(shared(f"{name}.frames.jsonl"))
    decoded = json.loads(shared(f"{name}.decoded.json").read_text())
    payloads = [plain(m["payload"]) for m in decoded["messages"]]
    again, before = set(), 0
    for note in decoded["notes"]:
        after = note.get("frames_so_far", before)
        if "kv_cache_report_mode=full" in note.get("step", ""):
            again.update(range(before, after))
        before = after
    return Capture(name, frames, payloads, again)


def load_copied(name):
    frames = read_frames(FIXTURES / f"{name.replace('/', '-')}.frames.jsonl")
    return Capture(name, frames, [msgspec.msgpack.decode(f[2]) for f in frames])


def read_frames(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [[base64.b64decode(f) for f in line["frames_b64"]] for line in lines]


def plain(value):
    """Decoded JSON with byte strings restored."""
    if isinstance(value, dict):
        if value.keys() == {"bytes_hex"}:
            return bytes.fromhex(value["bytes_hex"])
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


@dataclass
class EngineCache:
    """What a node holds, as prefixes of tokens: (adapter, salt, tokens) of each block's end."""

    counts_copies: bool
    copies: dict = field(default_factory=dict)
    prefix: dict = field(default_factory=dict)
    seen: set = field(default_factory=set)

    def message(self, payload, *, again=False):
        for event in payload[1]:
            getattr(self, event["type"])(event, again)

    def BlockStored(self, event, again):  # noqa: N802
        adapter, parent = event.get("lora_name") or "", event.get("parent_block_hash")
        if parent is None:
            extra = [k for k in (event.get("extra_keys") or [None])[0] or [] if k != adapter]
            at = (adapter, event.get("cache_salt") or (extra[0] if extra else ""), ())
        elif parent in self.prefix:
            at = self.prefix[parent]
        else:
            return
        size = event["block_size"]
        for i, block in enumerate(event["block_hashes"]):
            at = (at[0], at[1], at[2] + tuple(event["token_ids"][i * size : (i + 1) * size]))
            self.seen.add((size, at))
            self.prefix[block] = at
            known = self.copies.get(block, 0)
            fresh = not known or (self.counts_copies and not again)
            self.copies[block] = known + 1 if fresh else known

    def BlockRemoved(self, event, again):  # noqa: N802
        for block in event["block_hashes"]:
            left = self.copies.pop(block, 0) - 1
            if left > 0:
                self.copies[block] = left
            else:
                self.prefix.pop(block, None)

    def AllBlocksCleared(self, event, again):  # noqa: N802
        self.copies.clear()
        self.prefix.clear()

    @property
    def held(self):
        return set(self.prefix.values())
