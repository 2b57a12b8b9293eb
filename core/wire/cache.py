"""What the prefix index holds: hot prefixes and the tree."""

from __future__ import annotations

from core.wire.base import Answer


class HotPrefixView(Answer):
    """A prefix that is asked for often. Keys are 16 hex digits."""

    key: str
    blocks: int
    tokens: int
    rate_per_s: float
    hits: float = 0.0
    holders: list[str] = []


class HotPrefixes(Answer):
    """GET /cache/hot, hottest first."""

    prefixes: list[HotPrefixView]


class TreeCellView(Answer):
    """A cell of the cache tree: a run of blocks without forks, or "others (n)"."""

    key: str
    parent: str
    """Empty for the root."""
    label: str = ""
    depth_tokens: int = 0
    blocks: int = 0
    tokens: int = 0
    holders: int = 0
    hits: float = 0.0
    age_s: float | None = None


class CacheTree(Answer):
    """GET /cache/tree: at most `budget` cells, largest first within their parent."""

    cells: list[TreeCellView]
    entries: int = 0
    """Unique blocks in the index."""
    entries_max: int = 0
    memory_bytes: int = 0
