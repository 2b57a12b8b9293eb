"""What the admin API tells of the prefix index: hot prefixes, the tree, one prefix, a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from core import wire
from core.domain import NodeId
from core.errors import BadRequest
from core.gateway.overview import fleet_views
from core.hashing import root_key
from core.index.types import TreeCell
from core.prompt import TEXT_SALT, prompt_keys

if TYPE_CHECKING:
    from core.gateway.service import Service

TREE_FRESH_S = 2.0
TREES_KEPT = 32
HOT_COMPARED = 50
"""Hot prefixes that may stand for a block which is not counted itself."""
HOT_SEARCHED = 500
"""Hot prefixes looked through for those that one node holds."""


def hot_prefixes(service: Service, limit: int, node: str = "") -> wire.HotPrefixes:
    """GET /cache/hot; with `node`, of those that it holds. NotFound for an unknown node."""
    fleet, now = service.conductor.fleet, service.clock.now()
    slot = fleet.slot(NodeId(node)) if node else None
    found = service.conductor.index.hot(now, HOT_SEARCHED if node else limit)
    if slot is not None:
        found = [hot for hot in found if slot in hot.holders][:limit]
    return wire.HotPrefixes(
        prefixes=[
            wire.HotPrefixView(
                key=f"{hot.key:016x}",
                blocks=hot.depth_blocks,
                tokens=hot.tokens,
                rate_per_s=hot.rate_per_s,
                hits=float(hot.hits),
                holders=[fleet.node_at(slot) for slot in hot.holders],
            )
            for hot in found
        ]
    )


class Trees:
    """Views of the tree: one walk at a time, and a fresh one is given to everybody who asks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._walking = asyncio.Lock()
        self._kept: dict[tuple[str, int], tuple[float, wire.CacheTree]] = {}

    async def view(self, root: str, budget: int) -> wire.CacheTree:
        """GET /cache/tree; `root` is a cell's key, empty for the whole index."""
        async with self._walking:
            now = self._service.clock.now()
            kept = self._kept.get((root, budget))
            if kept is not None and 0 <= now - kept[0] < TREE_FRESH_S:
                return kept[1]
            tree = await cache_tree(self._service, root, budget)
            if len(self._kept) >= TREES_KEPT:
                self._kept.clear()
            self._kept[root, budget] = (self._service.clock.now(), tree)
            return tree


async def cache_tree(service: Service, root: str, budget: int) -> wire.CacheTree:
    """Walk the tree; the walk lets other work run between its slices."""
    index = service.conductor.index
    start = block_key(root, field="root") if root else None
    slices = index.tree_slices(service.clock.now(), start, budget=budget)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            cells: list[TreeCell] = end.value
            break
        await asyncio.sleep(0)
    names, stats = _root_names(service), index.stats()
    return wire.CacheTree(
        cells=[_cell(cell, names) for cell in cells],
        entries=stats.entries,
        entries_max=stats.entries_max,
        memory_bytes=stats.memory_bytes,
    )


def prefix_view(service: Service, name: str) -> wire.PrefixView:
    """GET /cache/prefixes/{key}."""
    fleet, trust = service.conductor.fleet, service.conductor.trust
    views, index, now = fleet_views(service), service.conductor.index, service.clock.now()
    facts = index.prefix(block_key(name, field="key"), now)
    depth, hits, rate = facts.depth_blocks, facts.hits, facts.rate_per_s
    if facts.listed and depth is None:
        # Accesses are counted at some depths only; a hot prefix is carried on from there.
        hot = next((h for h in index.hot(now, HOT_COMPARED) if h.key == facts.key), None)
        if hot is not None:
            depth, hits, rate = hot.depth_blocks, hot.hits, hot.rate_per_s
    return wire.PrefixView(
        key=f"{facts.key:016x}",
        listed=facts.listed,
        holders=[
            wire.HolderView(
                node=fleet.node_at(slot),
                medium=medium,
                trust=trust.trust(slot),
                eligible=views.eligible(slot),
            )
            for slot, medium in facts.holders
        ],
        block_size=facts.block_size,
        children=facts.children,
        ahead_blocks=facts.ahead_blocks,
        depth_tokens=depth * facts.block_size if depth is not None and facts.listed else None,
        hits=hits,
        rate_per_s=rate,
        age_s=facts.age_s,
        copyable=_copyable(service, facts.key, depth),
    )


def _copyable(service: Service, key: int, depth_blocks: int | None) -> bool | None:
    """Whether a recent prompt begins with the prefix of this key and depth; None: not known."""
    known = service.moves.recent
    if depth_blocks is None:
        return None if len(known) else False
    return known.find(key, depth_blocks) is not None


async def lookup(service: Service, asked: wire.LookupAsk) -> wire.LookupView:
    """POST /cache/lookup: tokenize as for a request, and match; nothing is counted."""
    base, adapter = service.names.resolve(asked.model)
    sizes = service.names.block_sizes(base, adapter)
    if not sizes:
        raise BadRequest(f"no node serves {asked.model}", field="model")
    body = asked.model_dump(include={"prompt", "messages"}, exclude_none=True)
    prompt = await service.prompts.of_body(body, base, served=asked.model)
    keys = await prompt_keys(
        prompt, base, block_sizes=sizes, adapter=adapter, salt=asked.cache_salt
    )
    index = service.conductor.index
    row = index.match(keys)
    salt = asked.cache_salt if prompt.exact else TEXT_SALT + asked.cache_salt
    return wire.LookupView(
        model=base,
        adapter=adapter,
        tokens=prompt.length,
        exact=prompt.exact,
        source=prompt.source,
        chains=[
            _chain(
                service,
                row,
                chain,
                size,
                root_key(base, adapter=adapter, salt=salt, block_size=size),
            )
            for size, chain in keys.items()
        ],
        nodes=_matches(service, row, prompt.length),
    )


def _chain(
    service: Service, row: np.ndarray, chain: list[int], size: int, root: int
) -> wire.ChainView:
    fleet = service.conductor.fleet
    best = max(
        (int(row[slot]) for slot, spec in fleet.slots() if spec.block_size == size), default=0
    )
    blocks = best // size
    return wire.ChainView(
        block_size=size,
        blocks=len(chain),
        root=f"{root:016x}",
        matched_blocks=blocks,
        key=f"{chain[blocks - 1]:016x}" if blocks else "",
    )


def _matches(service: Service, row: np.ndarray, tokens: int) -> list[wire.NodeMatchView]:
    fleet, views = service.conductor.fleet, fleet_views(service)
    found = [
        wire.NodeMatchView(
            node=spec.id,
            tokens=int(row[slot]),
            share=min(int(row[slot]) / max(tokens, 1), 1.0),
            eligible=views.eligible(slot),
        )
        for slot, spec in fleet.slots()
        if slot < len(row) and row[slot]
    ]
    return sorted(found, key=lambda m: (-m.tokens, m.node))


def _cell(cell: TreeCell, names: Mapping[int, str]) -> wire.TreeCellView:
    parent = "" if cell.parent is None else f"{cell.parent:016x}"
    if cell.others:
        key, label = f"others:{parent}", f"others ({cell.others})"
    elif cell.parent is None:
        key, label = f"{cell.key:016x}", names.get(cell.key, "")
    else:
        key, label = f"{cell.key:016x}", f"{cell.blocks} blocks"
    return wire.TreeCellView(
        key=key,
        parent=parent,
        label=label or key,
        depth_tokens=cell.depth_tokens,
        blocks=cell.blocks,
        tokens=cell.tokens,
        holders=cell.holders,
        hits=float(cell.hits),
        age_s=cell.age_s,
    )


def _root_names(service: Service) -> dict[int, str]:
    """Root key -> what its caches have in common, for the roots without a salt."""
    names: dict[int, str] = {}
    for served, (base, adapter) in service.names.table().items():
        for size in service.conductor.block_sizes(base, adapter):
            key = root_key(base, adapter=adapter, block_size=size)
            names[key] = f"{served}, {size}-token blocks"
    return names


def block_key(text: str, *, field: str) -> int:
    """A block key as people write it; BadRequest names the field."""
    try:
        if len(text) > 16:
            raise ValueError
        return int(text, 16)
    except ValueError:
        raise BadRequest("must be 16 hex digits", field=field) from None
