"""Changes of the live parameters: checked as a whole, numbered, remembered while we run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from core.clock import Clock
from core.conductor import Conductor
from core.errors import Conflict, Invalid, NotFound
from core.policy import get_policy
from core.tunables import diff, resolve

HISTORY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One applied change: path -> (old, new)."""

    revision: int
    base: int
    at: datetime
    author: str
    reason: str
    changes: Mapping[str, tuple[Any, Any]]


class Revisions:
    """Applies changes to the conductor, each made from the revision its author saw."""

    def __init__(self, conductor: Conductor, clock: Clock) -> None:
        self._conductor = conductor
        self._clock = clock
        self.history: deque[Revision] = deque(maxlen=HISTORY)

    def change(
        self, changes: Mapping[str, Any], *, base: int, reason: str, author: str
    ) -> Revision:
        """Apply all changes together, for the next decision on.

        Conflict where `base` is not the live revision; Invalid naming the path where a value
        is out of bounds, or where nothing would change.
        """
        live = self._conductor
        if base != live.revision:
            text = f"the live revision is {live.revision}, the change was made from {base}"
            raise Conflict(text, field="base")
        new = live.tunables.changed({_path(p, changes, live): v for p, v in changes.items()})
        try:
            get_policy(new.policy)
        except NotFound as error:
            raise Invalid(error.message, field="policy") from None
        found = diff(live.tunables, new)
        if not found:
            raise Invalid("every value is what it is already", field="changes")
        made = Revision(
            revision=live.revision + 1,
            base=base,
            at=self._clock.wall(),
            author=author,
            reason=reason,
            changes=found,
        )
        live.apply(new, made.revision)
        self.history.appendleft(made)
        return made


def _path(name: str, changes: Mapping[str, Any], live: Conductor) -> str:
    """Full path of a name: short names belong to the policy that will be live."""
    policy = changes.get("policy", live.tunables.policy)
    return resolve(name, policy if isinstance(policy, str) else live.tunables.policy)
