"""Faults an engine can be told to have, at start or while it runs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

HANGS = ("", "engine", "server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Everything off by default. Shares are 0..1; counts run down to 0."""

    kill: bool = False
    """Die at once, as by SIGKILL."""
    hang: Literal["", "engine", "server"] = ""
    """`engine`: no step runs, HTTP answers. `server`: no route but the faults' answers."""
    slow: float = 1.0
    """Factor on every step's time."""
    error_rate: float = 0.0
    """Share of generation requests answered with `error_status`."""
    error_status: int = 500
    lose_events: int = 0
    """So many coming event batches never reach the live socket; their numbers are used up."""
    lose_events_share: float = 0.0
    lose_from_replay: bool = False
    """Lost batches are missing from the replay buffer too."""
    silent_clear: bool = False
    """Forget the whole cache once, without an event."""
    drop_streams: int = 0
    """So many coming streams break off after `drop_after_tokens`."""
    drop_stream_share: float = 0.0
    drop_after_tokens: int = 4

    def changed(self, values: Any) -> Faults:
        """These faults with some changed. Raises ValueError naming the field and what it takes."""
        if not isinstance(values, Mapping):
            raise ValueError("faults must be a JSON object")
        known = {f.name: f for f in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"faults.{name} is unknown; known are {', '.join(known)}")
            _check(name, value, type(getattr(Faults(), name)))
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def _check(name: str, value: Any, kind: Any) -> None:
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (kind is not bool and isinstance(value, bool)):
        raise ValueError(f"faults.{name} must be {kind.__name__}, not {value!r}")
    if kind is str and value not in HANGS:
        raise ValueError(f"faults.{name} must be one of {HANGS}, not {value!r}")
    if kind is int or kind is float:
        _check_bounds(name, value)


def _check_bounds(name: str, value: float) -> None:
    low, high = 0.0, math.inf
    if name.endswith(("_share", "_rate")):
        high = 1.0
    elif name == "error_status":
        low, high = 400, 599
    if not low <= value <= high or (name == "slow" and not value):
        raise ValueError(f"faults.{name} must be {low:g}..{high:g}, not {value:g}")


class FaultDice:
    """Decides, case by case, whether a fault strikes; counts run down here."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self.faults = faults
        self._rng = rng

    def fail_request(self) -> bool:
        """Whether to answer this generation request with an error."""
        return bool(self.faults.error_rate) and self._rng.random() < self.faults.error_rate

    def lose_batch(self) -> bool:
        """Whether this event batch gets lost on the wire."""
        return self._strike("lose_events", self.faults.lose_events_share)

    def drop_stream(self) -> bool:
        """Whether this stream will break off."""
        return self._strike("drop_streams", self.faults.drop_stream_share)

    def _strike(self, counter: str, share: float) -> bool:
        left: int = getattr(self.faults, counter)
        if left:
            self.faults = self.faults.changed({counter: left - 1})
            return True
        return bool(share) and self._rng.random() < share
