"""One request inside the engine: its tokens, blocks, progress and times."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from core.engines.emulated.pipeline import Part

TOKEN_BYTES = 4
_WORD = (1 << 64) - 1


class State(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    LOADING = "loading"
    """Blocks allocated, KV on its way from another engine."""
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteKv:
    """Where to fetch the prompt's KV: the fields of `kv_transfer_params` that matter here."""

    host: str
    port: int
    engine_id: str
    request_id: str
    blocks: tuple[int, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A request's state. `tokens` grows by its output; `hashes` by every block that fills."""

    id: str
    tokens: list[int]
    prompt_tokens: int
    output_tokens_max: int
    hashes: list[int]
    text_seed: int
    root: int
    finish_reason: str = "length"
    """What to say when the output reaches its length."""
    arrived_s: float = 0.0
    adapter_id: int | None = None
    adapter: str | None = None
    salt: str | None = None
    session: str | None = None
    report_hits: bool = False
    """Announce reused blocks again (`kv_cache_report_mode: full`)."""
    hold_id: str | None = None
    """Keep the blocks after the end, under this name, for another engine to fetch."""
    remote: RemoteKv | None = None
    part: Part | None = None
    """Its share of a prompt that several engines compute, while that is not done."""
    state: State = State.WAITING
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    registered: int = 0
    """Leading blocks that are findable."""
    cached_tokens: int | None = None
    """Prompt tokens reused from this engine's cache; None before the first admission."""
    received_tokens: int = 0
    charged: bool = False
    """Whether the constant of this prefill was paid."""
    preemptions: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    transfer_params: dict[str, Any] | None = None
    handing: Any = None
    """The hand-over of a part's chunk under way."""
    sink: Any = None
    """Where output goes; the scheduler never looks at it."""

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens


def cache_root(model: str, adapter: str | None, salt: str | None) -> int:
    """Seed of the first block's hash: blocks are shared within it and nowhere else."""
    return xxhash.xxh3_64_intdigest(repr((model, adapter, salt)).encode())


def chain(data: bytes, block_size: int, parent: int) -> list[int]:
    """Hashes of the whole blocks of `data` (4 bytes a token), each seeded with the one before."""
    width = block_size * TOKEN_BYTES
    digest = xxhash.xxh3_64_intdigest
    hashes = []
    for start in range(0, len(data) - width + 1, width):
        parent = digest(data[start : start + width], parent)
        hashes.append(parent)
    return hashes


def pack(tokens: list[int]) -> bytes:
    """Token ids as 4 bytes each.

    Raises OverflowError or TypeError where an id is no unsigned 32-bit integer.
    """
    return array("I", tokens).tobytes()


def partial_fingerprint(sequence: Sequence, block_size: int) -> int:
    """What the prompt's last, unfilled block holds; 0 when the prompt ends with a full block."""
    whole = sequence.prompt_tokens // block_size
    rest = sequence.tokens[whole * block_size : sequence.prompt_tokens]
    parent = sequence.hashes[whole - 1] if whole else sequence.root
    return xxhash.xxh3_64_intdigest(pack(rest), parent) if rest else 0


def draw(seed: int, index: int) -> int:
    """The index-th 64-bit number of a seeded stream (splitmix64's finaliser)."""
    x = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
