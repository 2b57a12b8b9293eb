"""What operators last said of a node, in a form that outlives the process. Pure.

A standing is what the records keep beside a node's spec: where the node came from, its cordon,
its note, a manual hold of its breaker, and whether it was taken out for good. Times are wall
clock: monotonic time means nothing to the next process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from core.domain import NodeSpec
from core.fleet.switch import State, Switch

Origin = Literal["file", "api", "dns", "publisher", "rank"]
FLEET = "/breaker"
"""Name under which the global breaker's standing is kept; no node is called like it."""


class KeptCordon(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cordon or drain as it stood."""

    draining: bool
    since: datetime
    reason: str = ""
    actor: str = ""
    finished_at: datetime | None = None


class KeptNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A maintenance note."""

    text: str
    author: str = ""
    at: datetime


class KeptBreaker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A breaker that an operator tripped or holds closed; `until` None: until it is reset."""

    state: Literal["tripped", "held"]
    reason: str
    actor: str
    until: datetime | None = None

    def left_s(self, at: datetime) -> float | None:
        """Seconds it still has to last at `at`; None without an end, 0 once it is over."""
        return None if self.until is None else max((self.until - at).total_seconds(), 0.0)


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything kept of one node."""

    origin: Origin = "api"
    stated: str = ""
    """Digest of the spec that the settings file stated; empty for other origins."""
    stated_weight: float = 1.0
    weight: float | None = None
    """An operator's weight; None: as stated."""
    cordon: KeptCordon | None = None
    note: KeptNote | None = None
    breaker: KeptBreaker | None = None
    removed: bool = False
    """An operator took it out: it comes back by an operator's act alone, or a new statement."""

    def data(self) -> Mapping[str, Any]:
        """As JSON values."""
        return as_data(self)

    @property
    def says_something(self) -> bool:
        """Whether an operator said anything."""
        return self.removed or any(
            said is not None for said in (self.weight, self.cordon, self.note, self.breaker)
        )

    def keeps_out(self, spec: NodeSpec, origin: Origin) -> bool:
        """Whether a removal still holds for a node that is stated again.

        A statement that was changed in the settings file is newer than the removal and wins.
        """
        same = self.origin == origin and (origin != "file" or self.stated == digest(spec))
        return self.removed and same

    def weighed(self, spec: NodeSpec) -> NodeSpec:
        """`spec` with the operator's weight, unless another weight was stated since."""
        if self.weight is None or spec.weight != self.stated_weight:
            return spec
        return replace(spec, weight=self.weight)


def as_data(kept: Standing | KeptBreaker) -> Mapping[str, Any]:
    """What is kept as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(kept)
    return found


def removed(kept: Standing) -> Standing:
    """What stays of a node that an operator took out: that it is out, and what was stated."""
    return Standing(
        origin=kept.origin, stated=kept.stated, stated_weight=kept.stated_weight, removed=True
    )


def from_data(data: Mapping[str, Any]) -> Standing:
    """A standing from its JSON values; ValueError where it is none."""
    return msgspec.convert(data, Standing, strict=False)


def breaker_from_data(data: Mapping[str, Any]) -> KeptBreaker | None:
    """The global breaker's standing; None where nobody holds it. ValueError where it is none."""
    return msgspec.convert(data, KeptBreaker, strict=False) if data else None


def kept_breaker(switch: Switch, now: float, at: datetime) -> KeptBreaker | None:
    """What to keep of a breaker at monotonic `now` and wall time `at`; None: nothing manual."""
    if switch.state not in (State.TRIPPED, State.HELD):
        return None
    until = None if switch.until_s is None else at + timedelta(seconds=switch.until_s - now)
    return KeptBreaker(
        state="tripped" if switch.state is State.TRIPPED else "held",
        reason=switch.reason,
        actor=switch.actor,
        until=until,
    )


def digest(spec: NodeSpec) -> str:
    """16 hex digits that stand for a stated spec."""
    encoded = msgspec.json.encode(spec, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


def same_breaker(one: KeptBreaker | None, other: KeptBreaker | None) -> bool:
    """Whether both say the same; ends are compared by the second, for clocks are."""
    if one is None or other is None or one.until is None or other.until is None:
        return one == other
    apart = abs((one.until - other.until).total_seconds())
    return apart < 1.0 and _endless(one) == _endless(other)


def _endless(kept: KeptBreaker) -> KeptBreaker:
    return msgspec.structs.replace(kept, until=None)
