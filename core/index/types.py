"""What the index tells others: figures about itself, hot prefixes, cells of its tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.domain import BlockKey, Medium, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """Size and health of the prefix index. `blocks` counts entries each node holds."""

    entries: int
    """Distinct blocks listed, whoever holds them."""
    entries_max: int
    blocks: Mapping[Slot, int]
    open_nodes: int
    """Nodes whose blocks are not closed under prefixes: they are walked, not galloped."""
    unswept_lanes: int
    """Bits of cleared or removed nodes still to be swept out of the entries."""
    evicted: int
    """Entries dropped to stay inside `entries_max`."""
    refused: int
    """Stored blocks not listed, since the index was full or their prefix had been dropped."""
    orphans: int
    """Listed blocks whose parent the holding node does not hold."""
    lower_tier: int
    """Entries held in a medium below the GPU by some node."""
    touched: int
    """Prefixes whose accesses are being counted."""
    memory_bytes: int
    """Estimate, from the sizes of the tables and of one key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPrefix:
    """A prefix that is asked for often; rate is per second, decayed over a minute."""

    key: BlockKey
    depth_blocks: int
    tokens: int
    rate_per_s: float
    hits: int
    holders: tuple[Slot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCell:
    """One cell of the tree view: a run of blocks without a branch, held by the same nodes.

    parent: key of the cell above, None at a root. A cell with `others` > 0 stands for that many
    further children of `parent` that were left out; its key is then 0 and its figures are 0.
    """

    key: BlockKey
    parent: BlockKey | None
    depth_tokens: int
    """Tokens of the prefix up to and including this cell."""
    blocks: int
    tokens: int
    holders: int
    hits: int
    age_s: float | None
    """Seconds since the last counted access, None where none was counted."""
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixFacts:
    """One block and the prefix that ends with it. All figures are 0 where it is not listed."""

    key: BlockKey
    listed: bool
    holders: tuple[tuple[Slot, Medium], ...]
    """Nodes that hold the block, each with the fastest medium it holds it in."""
    block_size: int
    children: int
    """Listed blocks that continue it; at most `CHILDREN_COUNTED`."""
    ahead_blocks: int
    """How far it goes on, from the block on, before it branches or ends."""
    depth_blocks: int | None
    """Its length, known where its accesses are counted."""
    hits: int
    rate_per_s: float
    age_s: float | None
    """Seconds since the last counted access."""
