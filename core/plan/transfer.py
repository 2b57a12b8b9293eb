"""Moving KV between nodes: which link two nodes share and how long bytes take on it.

T_transfer(bytes) = latency + bytes / (line rate * efficiency); 0 on the node itself. What queues
at the sender is the caller's to add; what hides behind compute is taken off by
`exposed_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from core.domain import LinkKind, NodeSpec
from core.errors import Invalid

Floats = npt.NDArray[np.float64]
Number = TypeVar("Number", float, npt.NDArray[np.float64])


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One kind of link: line rate in bytes/s, latency in s, and the share of the rate reached."""

    bytes_per_s: float
    latency_s: float = 0.0
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        """Check bounds; Invalid names the field."""
        if not self.bytes_per_s > 0:
            raise Invalid(f"bytes_per_s: {self.bytes_per_s} must be above 0", field="bytes_per_s")
        if not 0 < self.efficiency <= 1:
            raise Invalid(f"efficiency: {self.efficiency} is outside 0..1", field="efficiency")
        if not self.latency_s >= 0:
            raise Invalid(f"latency_s: {self.latency_s} is below 0", field="latency_s")

    @property
    def s_per_byte(self) -> float:
        """Seconds that one byte takes, latency apart."""
        return 1.0 / (self.bytes_per_s * self.efficiency)


LINKS: dict[LinkKind, Link] = {
    LinkKind.NVLINK: Link(bytes_per_s=900e9, latency_s=1e-6, efficiency=0.875),
    LinkKind.IB_NDR: Link(bytes_per_s=50e9, latency_s=1e-6, efficiency=0.925),
    LinkKind.IB_HDR: Link(bytes_per_s=25e9, latency_s=1.5e-6, efficiency=0.925),
    LinkKind.ROCE: Link(bytes_per_s=12.5e9, latency_s=7.5e-6, efficiency=0.925),
    LinkKind.TCP: Link(bytes_per_s=3.125e9, latency_s=75e-6, efficiency=0.75),
}
"""S2 4.4.2: rates as written there; latency and efficiency are the middles of its ranges. Its
table of 4K transfers is at line rate, that is with efficiency 1."""


def kv_dtype_factor(dtype: str) -> float:
    """Bytes of a KV cache of this dtype over those of 16 bits: 0.5 for FP8 and INT8 (S2 4.4.2).

    Names as engines write them: auto, bfloat16, float16, fp8, fp8_e4m3, fp8_e5m2, int8. Invalid
    for others.
    """
    if dtype.startswith("fp8") or dtype == "int8":
        return 0.5
    if dtype in ("auto", "bfloat16", "float16", "bf16", "fp16"):
        return 1.0
    raise Invalid(
        f"kv_dtype: {dtype!r} is not auto, bfloat16, float16, fp8* or int8", field="kv_dtype"
    )


def exposed_seconds(transfer_s: Number, compute_s: Number | float, layers: int) -> Number:
    """Part of a layer-wise transfer that does not hide behind the compute that uses it.

    Layer i computes once its KV is there, while the next layers arrive: both together take
    max(T + C/l, C + T/l), so max(T - C (l-1)/l, T/l) is exposed. One layer hides nothing.
    """
    share = 1.0 / max(layers, 1)
    late = transfer_s - compute_s * (1.0 - share)
    first = transfer_s * share
    if isinstance(late, np.ndarray):
        return np.maximum(late, first)
    return max(late, first)


class Topology:
    """Link figures from any node to all others, as rows over slots.

    Rows are built on demand and kept until a node changes. `uniform` replaces all links: every
    two nodes then share that one.
    """

    NO_PATH_S_PER_BYTE = 1.0
    """Beside an infinite latency: finite, so that moving 0 bytes costs inf and not NaN."""

    def __init__(
        self,
        slots: int = 8,
        *,
        links: dict[LinkKind, Link] | None = None,
        uniform: Link | None = None,
    ) -> None:
        self.uniform = uniform
        self._links = dict(LINKS if links is None else links)
        self._bits = {kind: 1 << i for i, kind in enumerate(LinkKind)}
        self._hosts: dict[str, int] = {"": -1}
        self._host = np.full(slots, -1, np.int64)
        self._kinds = np.zeros(slots, np.int64)
        self._alive = np.zeros(slots, np.bool_)
        self._rows: dict[int, tuple[Floats, Floats]] = {}
        self._listed: dict[int, tuple[list[float], list[float]]] = {}

    @property
    def slots(self) -> int:
        """Length of every row."""
        return len(self._host)

    def resize(self, slots: int) -> None:
        """Widen the rows to `slots`; they never shrink."""
        more = slots - self.slots
        if more > 0:
            self._host = np.append(self._host, np.full(more, -1))
            self._kinds = np.append(self._kinds, np.zeros(more, np.int64))
            self._alive = np.append(self._alive, np.zeros(more, np.bool_))
            self._changed()

    def set_node(self, slot: int, spec: NodeSpec) -> None:
        """Place a node, or a changed one, in a slot."""
        self.resize(slot + 1)
        host = spec.place.host
        self._host[slot] = self._hosts.setdefault(host, len(self._hosts))
        self._kinds[slot] = self._mask(spec.links)
        self._alive[slot] = True
        self._changed()

    def remove_node(self, slot: int) -> None:
        """Take the node out of a slot: no path leads there any more."""
        self._alive[slot] = False
        self._changed()

    def row(self, source: int) -> tuple[Floats, Floats]:
        """(latency_s, s_per_byte) from `source` to each slot, both of shape (slots,), read-only.

        0 and 0 to itself; inf and `NO_PATH_S_PER_BYTE` where no path leads.
        """
        found = self._rows.get(source)
        if found is None:
            found = self._rows[source] = self._build(source)
        return found

    def listed(self, source: int) -> tuple[list[float], list[float]]:
        """`row` as lists, for those who look at few slots."""
        found = self._listed.get(source)
        if found is None:
            latency, per_byte = self.row(source)
            found = self._listed[source] = latency.tolist(), per_byte.tolist()
        return found

    def seconds(self, nbytes: float, source: int, target: int) -> float:
        """Time to move `nbytes` between two slots over idle links; inf without a path."""
        if source == target or nbytes <= 0:
            return 0.0
        latency, per_byte = self.row(source)
        return latency.item(target) + nbytes * per_byte.item(target)

    def _changed(self) -> None:
        self._rows.clear()
        self._listed.clear()

    def _build(self, source: int) -> tuple[Floats, Floats]:
        latency = np.full(self.slots, np.inf)
        per_byte = np.full(self.slots, self.NO_PATH_S_PER_BYTE)
        for link, reached in self._reached(source):
            latency[reached] = link.latency_s
            per_byte[reached] = link.s_per_byte
        latency[source] = per_byte[source] = 0.0
        latency.setflags(write=False)
        per_byte.setflags(write=False)
        return latency, per_byte

    def _reached(self, source: int) -> Iterable[tuple[Link, npt.NDArray[np.bool_]]]:
        """Links from slowest to fastest with the slots each reaches: later ones overrule."""
        if not self._alive[source]:
            return
        if self.uniform is not None:
            yield self.uniform, self._alive
            return
        shared = np.where(self._alive, self._kinds & self._kinds[source], 0)
        same_host = (self._host == self._host[source]) & (self._host >= 0)
        for kind in reversed(LinkKind):
            reached = (shared & self._bits[kind]) > 0
            yield self._links[kind], reached & same_host if kind is LinkKind.NVLINK else reached

    def _mask(self, kinds: Iterable[LinkKind]) -> int:
        return sum(self._bits[kind] for kind in set(kinds))
