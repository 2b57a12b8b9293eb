"""One replication as operators see it: from the plan to its end, and the words for its states.

    state       started      finished          cancelled
    planned  -> running      -                 cancelled
    running     -            done | failed     cancelled

A plan of a dry run stays `planned` and is replaced by the next look.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from core.domain import NodeId
from core.plan.migration import MigrationPlan


class MoveState(enum.StrEnum):
    """Where a move stands."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self in (MoveState.DONE, MoveState.FAILED, MoveState.CANCELLED)


@dataclass(slots=True, kw_only=True)
class Move:
    """A prefix on its way to a node."""

    id: str
    plan: MigrationPlan
    source: NodeId
    target: NodeId
    how: str
    """Name of the executor."""
    planned_at: datetime
    kv_bytes_per_token: float
    dry_run: bool = False
    manual: bool = False
    reason: str = ""
    author: str = ""
    state: MoveState = MoveState.PLANNED
    started_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    moved_tokens: int = 0
    """Came from elsewhere."""
    computed_tokens: int = 0
    """Computed by the target anew."""
    error: str = ""

    @property
    def moved_bytes(self) -> float:
        """KV that travelled."""
        return self.moved_tokens * self.kv_bytes_per_token

    def facts(self) -> dict[str, object]:
        """For the event log."""
        plan = self.plan
        found = {
            "id": self.id,
            "prefix": f"{plan.key:016x}",
            "tokens": plan.tokens,
            "source": self.source,
            "target": self.target,
            "how": self.how,
            "benefit_s": round(plan.benefit_s, 3),
            "moved_bytes": self.moved_bytes,
            "computed_tokens": self.computed_tokens,
            "reason": self.reason,
            "actor": self.author,
            "error": self.error,
        }
        return {name: value for name, value in found.items() if value not in ("", 0, 0.0)}
