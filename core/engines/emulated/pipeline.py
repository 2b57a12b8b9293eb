"""One long prompt computed by several engines: each holds a share of the layers (F 3.3).

Stage s takes the prompt in chunks. When it has computed a chunk it hands it over to stage s + 1:
the chunk's hidden states, and with them the KV of all layers before, so that the last stage ends
with the KV of the whole prompt, may cache it, and goes on to decode. A stage computes a chunk in
its share of the layers' part of the time that one engine would take; a hand-over takes the time of
receiving the KV that comes with it. Other work of an engine goes on between chunks.

The last stage gets the client's own request, the others `POST /emulated/pipeline`; all of them
with the same description of the group. Hand-overs are `POST /emulated/pipeline/{name}`. What
travels is a fingerprint of the chunk's tokens, which the receiver compares with its own: a wrong
hand-over shows in the text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
import xxhash

from core.engines.emulated.costs import StepCosts
from core.engines.emulated.sequence import pack
from core.engines.emulated.transfer import ask_peer

PATH = "/emulated/pipeline"
EARLY_MAX = 1024
"""Hand-overs kept for groups whose own request has not come yet."""
STAGES_MAX = 64


@dataclass(slots=True, kw_only=True)
class Part:
    """An engine's part in a group."""

    name: str
    stage: int
    layers: tuple[int, ...]
    """Of each stage."""
    peers: tuple[tuple[str, int], ...]
    """Host and port of each stage."""
    prefix: int
    """Tokens that every stage has cached."""
    ends: tuple[int, ...]
    """Prompt tokens up to the end of each chunk."""
    arrived: int
    """Chunks that can be computed here; all of them on the first stage."""
    over: int = 0
    """Chunks computed here."""
    due_s: float = 0.0
    """When the last hand-over will have arrived."""

    @property
    def last(self) -> bool:
        """Whether the prompt's KV ends up here."""
        return self.stage == len(self.layers) - 1

    @property
    def share(self) -> float:
        """Of the layers."""
        return self.layers[self.stage] / sum(self.layers)

    def available(self, computed: int) -> int:
        """Tokens that can be computed after `computed` ones, within one chunk."""
        if self.over >= self.arrived:
            return 0
        return self.ends[self.over] - computed

    def begins(self, computed: int) -> bool:
        """Whether a chunk begins there."""
        return computed == (self.ends[self.over - 1] if self.over else self.prefix)

    def compute_s(self, costs: StepCosts, computed: int, count: int) -> float:
        """Seconds of `count` tokens here; each chunk costs the prefill's constant once."""
        constant = costs.c0 if self.begins(computed) else 0.0
        return self.share * (constant + costs.prefill_s(computed, count))

    def receive_s(self, costs: StepCosts, chunk: int) -> float:
        """Seconds of receiving a chunk with the KV of the layers before this stage's."""
        begin = self.ends[chunk - 1] if chunk else self.prefix
        before = sum(self.layers[: self.stage]) / sum(self.layers)
        return costs.transfer_s(round((self.ends[chunk] - begin) * before))


class BadPart(ValueError):
    """A description of a group that makes no sense; says what."""


def part_of(told: Mapping[str, Any], *, stage: int | None, prompt: int, block: int) -> Part:
    """A part out of a request; the last stage where `stage` is None. Raises BadPart."""
    try:
        layers = tuple(int(n) for n in told["layers"])
        peers = tuple(_peer(str(url)) for url in told["urls"])
        chunks = [int(n) for n in told["chunks"]]
        prefix, name = int(told["prefix_tokens"]), str(told["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadPart(f"pipeline lacks a usable field: {error!r}") from None
    stage = len(layers) - 1 if stage is None else stage
    if not isinstance(stage, int):
        raise BadPart("pipeline.stage must be a whole number")
    if not 2 <= len(layers) <= STAGES_MAX or len(peers) != len(layers) or min(layers) < 1:
        raise BadPart("pipeline needs 2 stages or more, each with an address and layers")
    if not 0 <= stage < len(layers) or not name:
        raise BadPart("pipeline has no such stage, or no name")
    if prefix < 0 or prefix % block or not chunks or min(chunks) < 1:
        raise BadPart(f"pipeline needs chunks, and a prefix in whole blocks of {block} tokens")
    if prefix + sum(chunks) != prompt:
        raise BadPart(f"pipeline covers {prefix + sum(chunks)} tokens, the prompt has {prompt}")
    ends = tuple(prefix + sum(chunks[: j + 1]) for j in range(len(chunks)))
    return Part(
        name=name,
        stage=stage,
        layers=layers,
        peers=peers,
        prefix=prefix,
        ends=ends,
        arrived=0 if stage else len(ends),
    )


def _peer(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"{url!r} is not http://host:port")
    return parts.hostname, parts.port


def fingerprint(tokens: Items[int], part: Part, chunk: int) -> int:
    """What a chunk's hidden states stand for: all of the prompt's tokens up to its end."""
    return xxhash.xxh3_64_intdigest(pack(list(tokens[: part.ends[chunk]])))


class EarlyChunks:
    """Hand-overs that came before the request they belong to; the oldest are given up."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()

    def keep(self, name: str, chunk: int, value: int) -> None:
        """Keep a hand-over."""
        self._kept.setdefault(name, []).append((chunk, value))
        while sum(map(len, self._kept.values())) > EARLY_MAX:
            self._kept.popitem(last=False)

    def take(self, name: str) -> list[tuple[int, int]]:
        """Those of a group, in the order in which they came."""
        return self._kept.pop(name, [])


async def hand_over(part: Part, chunk: int, value: int) -> None:
    """Tell the next stage that a chunk is computed. Raises TransferFailed."""
    host, port = part.peers[part.stage + 1]
    body = orjson.dumps({"stage": part.stage + 1, "chunk": chunk, "fingerprint": value})
    await ask_peer(host, port, f"{PATH}/{part.name}", body)
