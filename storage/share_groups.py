"""Requests by tenant, model and pair of nodes as a table of sums that merge: small, and packed.

A group is a tenant, a model, a prefill and a decode node, both empty for rejections. Tables add
up, whatever stretches of time they are of. One with very many groups is `capped`: the smallest
are put together as the others of their tenant and model, so that these sums stay exact.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

COUNTS = (
    "decisions", "rejected", "finished", "failed", "aborted", "ttft_missed", "tbt_missed",
    "slo_missed", "prompt_tokens", "match_tokens",
)  # fmt: skip
"""What is added up of each group, in the order of the columns; see `core.ports.RequestShare`."""
KEYS = ("tenant", "model", "prefill_node", "decode_node")
TENANT, MODEL, PREFILL, DECODE, OTHERS = range(5)
_FIRST = 5
"""Column of the first count."""
DECISIONS = _FIRST
PENDING_MAX = 200_000
"""Rows that wait to be added up, 24 MB: a week of hours is three times as many."""
_LEVEL = 1
"""Of the compression: packing a table of 5,000 groups takes 3 ms."""

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A table of n groups: int64 of shape (n, 15), a row a group, in no order.

    The first four columns are numbers of names, the fifth is 1 for the others of an owner, the
    rest are `COUNTS`. The node of number 0 is the empty one.
    """

    tenants: Sequence[str]
    models: Sequence[str]
    nodes: Sequence[str]
    table: Whole
    oldest_us: int
    """Time of the oldest decision; meaningless without any."""

    @property
    def decisions(self) -> int:
        """All of them."""
        return int(self.table[:, DECISIONS].sum())

    def names(self, row: Whole) -> tuple[str, str, str, str]:
        """Tenant, model, prefill and decode node of a row."""
        tenant, model, prefill, decode = row[:OTHERS].tolist()
        return self.tenants[tenant], self.models[model], self.nodes[prefill], self.nodes[decode]

    def ranked(self) -> Whole:
        """The rows, most decisions first; equal ones by their names."""
        ranks = [_rank(names) for names in (self.tenants, self.models, self.nodes, self.nodes)]
        keys = [rank[self.table[:, column]] for column, rank in enumerate(ranks)]
        return self.table[np.lexsort([*keys[::-1], -self.table[:, DECISIONS]])]


def grouped(rows: Iterable[Sequence[str | int | None]], oldest_us: int) -> Groups:
    """From rows of `KEYS` (None: no node) and `COUNTS`."""
    tenants, models, nodes = _numbers(), _numbers(), _numbers("")
    table = [
        (
            tenants.setdefault(str(tenant), len(tenants)),
            models.setdefault(str(model), len(models)),
            nodes.setdefault(str(prefill or ""), len(nodes)),
            nodes.setdefault(str(decode or ""), len(nodes)),
            0,
            *map(int, counts),  # type: ignore[arg-type]
        )
        for tenant, model, prefill, decode, *counts in rows
    ]
    return _groups(tenants, models, nodes, _shaped(table), oldest_us)


def merged(parts: Iterable[Groups]) -> Groups:
    """The parts together; what they say of the same group is added up.

    They are taken one by one, and added up whenever `PENDING_MAX` rows wait.
    """
    tenants, models, nodes = _numbers(), _numbers(), _numbers("")
    tables, oldest_us = [_shaped([])], []
    for part in parts:
        if sum(map(len, tables[1:])) > PENDING_MAX:
            tables = [_added(np.concatenate(tables), len(models), len(nodes))]
        table = part.table.copy()
        table[:, TENANT] = _renumbered(part.tenants, tenants)[table[:, TENANT]]
        table[:, MODEL] = _renumbered(part.models, models)[table[:, MODEL]]
        node = _renumbered(part.nodes, nodes)
        table[:, PREFILL], table[:, DECODE] = node[table[:, PREFILL]], node[table[:, DECODE]]
        tables.append(table)
        if len(table):
            oldest_us.append(part.oldest_us)
    added = _added(np.concatenate(tables), len(models), len(nodes))
    return _groups(tenants, models, nodes, added, min(oldest_us, default=0))


def by_owner(groups: Groups) -> Groups:
    """The sums of each tenant and model."""
    table = groups.table.copy()
    table[:, PREFILL : OTHERS + 1] = 0
    return _with(groups, _added(table, len(groups.models), len(groups.nodes)))


def capped(groups: Groups, most: int) -> Groups:
    """At most `most` groups with nodes, the largest; what is left as the others of its owner."""
    table = groups.ranked()
    rest = np.cumsum(table[:, OTHERS] == 0) > most
    table[rest, PREFILL:OTHERS] = 0
    table[rest, OTHERS] = 1
    return _with(groups, _added(table, len(groups.models), len(groups.nodes)))


class _Packed(msgspec.Struct, array_like=True):
    """What is stored: the names, and column by column its type and its bytes."""

    tenants: Sequence[str]
    models: Sequence[str]
    nodes: Sequence[str]
    columns: list[tuple[str, bytes]]


_decode = msgspec.msgpack.Decoder(_Packed).decode


def packed(groups: Groups) -> bytes:
    """A table as bytes; its time stands beside it.

    Each column in the narrowest type that holds it, little-endian, all deflated: on average 12
    bytes a group of ten seconds, 8 of an hour.
    """
    columns = [_column(column) for column in groups.table.T]
    whole = _Packed(groups.tenants, groups.models, groups.nodes, columns)
    return zlib.compress(msgspec.msgpack.encode(whole), _LEVEL)


def unpacked(data: bytes, oldest_us: int) -> Groups:
    """What `packed` wrote."""
    found = _decode(zlib.decompress(data))
    columns = [np.frombuffer(content, kind).astype(np.int64) for kind, content in found.columns]
    return Groups(found.tenants, found.models, found.nodes, np.stack(columns, axis=1), oldest_us)


def _column(column: Whole) -> tuple[str, bytes]:
    kind = np.min_scalar_type(int(column.max(initial=0))).newbyteorder("<")
    return kind.str, column.astype(kind).tobytes()


def _numbers(*names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _renumbered(names: Sequence[str], numbers: dict[str, int]) -> Whole:
    """The number in `numbers` of each of these names, new ones at its end."""
    found = [numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(found, dtype=np.int64)


def _groups(
    tenants: Iterable[str], models: Iterable[str], nodes: Iterable[str], table: Whole, at_us: int
) -> Groups:
    return Groups(list(tenants), list(models), list(nodes), table, at_us)


def _with(groups: Groups, table: Whole) -> Groups:
    """Another table, with those of the names that occur in it."""
    tenants, table[:, TENANT] = _used(groups.tenants, table[:, TENANT])
    models, table[:, MODEL] = _used(groups.models, table[:, MODEL])
    ends = np.concatenate(([0], table[:, PREFILL], table[:, DECODE]))
    nodes, numbers = _used(groups.nodes, ends)
    table[:, PREFILL], table[:, DECODE] = np.split(numbers[1:], 2)
    return _groups(tenants, models, nodes, table, groups.oldest_us)


def _used(names: Sequence[str], numbers: Whole) -> tuple[list[str], Whole]:
    found, again = np.unique(numbers, return_inverse=True)
    return [names[number] for number in found.tolist()], again.reshape(-1)


def _added(table: Whole, models: int, nodes: int) -> Whole:
    """Rows of the same group as one."""
    if not len(table):
        return table
    group = table[:, TENANT] * models + table[:, MODEL]
    group = ((group * nodes + table[:, PREFILL]) * nodes + table[:, DECODE]) * 2
    group += table[:, OTHERS]
    order = np.argsort(group, kind="stable")
    firsts = np.flatnonzero(np.diff(group[order], prepend=-1))
    added = table[order[firsts]]
    added[:, _FIRST:] = np.add.reduceat(table[order, _FIRST:], firsts, axis=0)
    return added


def _shaped(rows: list[tuple[int, ...]]) -> Whole:
    return np.array(rows, dtype=np.int64).reshape(-1, _FIRST + len(COUNTS))


def _rank(names: Sequence[str]) -> Whole:
    """Of each name its place among all in order."""
    rank = np.empty(len(names), dtype=np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return rank
