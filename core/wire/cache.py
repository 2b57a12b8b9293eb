"""What the prefix index holds: hot prefixes, the tree, one prefix, and where a prompt lies."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from pydantic import Field, model_validator

from core.domain import Medium, Trust
from core.wire.base import Answer, Ask

PROMPT_CHARS_MAX = 1_000_000


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


class HolderView(Answer):
    """A node that holds a block."""

    node: str
    medium: Medium
    """The fastest medium it has it in."""
    trust: Trust
    """How far the node's cache signal is believed."""
    eligible: bool
    """Whether a request could go there now."""


class PrefixView(Answer):
    """GET /cache/prefixes/{key}: one block and the prefix that ends with it."""

    key: str
    listed: bool
    """False: nobody is known to hold it; all figures are then 0."""
    holders: list[HolderView] = []
    block_size: int = 0
    children: int = 0
    """Blocks that continue it."""
    ahead_blocks: int = 0
    """How far it goes on before it branches or ends."""
    depth_tokens: int | None = None
    """Its length, known where accesses of it are counted."""
    hits: int = 0
    rate_per_s: float = 0.0
    """Accesses, averaged over about a minute."""
    age_s: float | None = None
    """Since the last counted access."""
    copyable: bool | None = None
    """Whether its tokens, which a copy needs, are known from a recent prompt; None where its length
    is not known, so that only trying tells."""


class LookupAsk(Ask):
    """POST /cache/lookup: a prompt (text or token ids) or a conversation, as a client sends it."""

    model: str = Field(min_length=1, max_length=256)
    prompt: str | list[int] | None = Field(default=None, max_length=PROMPT_CHARS_MAX)
    messages: list[dict[str, Any]] | None = Field(default=None, max_length=10_000)
    cache_salt: str = Field(default="", max_length=256)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class NodeMatchView(Answer):
    """How much of a looked-up prompt one node holds."""

    node: str
    tokens: int
    share: float
    eligible: bool


class ChainView(Answer):
    """The looked-up prompt as blocks of one size."""

    block_size: int
    blocks: int
    """Whole blocks of the prompt."""
    root: str
    """Key under which the tree of such prompts hangs."""
    matched_blocks: int
    """Of the longest match anywhere."""
    key: str = ""
    """Of the deepest block that somebody holds; empty where nobody holds any."""


class LookupView(Answer):
    """Where a prompt lies in the fleet's caches; nothing is counted as an access."""

    model: str
    """The base model."""
    adapter: str = ""
    tokens: int
    exact: bool
    """False: no tokenizer is at hand, so text is matched with text only."""
    source: str
    """Who made the token ids: ids, local, engine; or text."""
    chains: list[ChainView]
    nodes: list[NodeMatchView]
    """Longest match first; nodes without a match are left out."""


class ReplicationPoint(Answer):
    """The index at one moment."""

    at: datetime
    blocks: int
    """Distinct blocks."""
    copies: int
    """Blocks added up over the nodes that hold them."""
    evicted: int = 0
    """Since the service started: listed blocks given up to stay within the bound."""


class Replication(Answer):
    """GET /cache/replication: of the last week."""

    step_s: float
    """Between two samples; answers of many samples are thinned."""
    points: list[ReplicationPoint]
    complete: bool = True
    """False: stored samples could not be read, these are of this process alone."""
