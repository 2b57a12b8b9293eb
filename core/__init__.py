"""Conductor: a global scheduler for fleets of LLM engines that explains every decision."""

from core.clock import ManualClock, SystemClock, seeded
from core.conductor import Conductor
from core.domain import (
    Decision,
    EngineKind,
    Health,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Rejection,
    Request,
    RequestId,
    Role,
)
from core.hashing import chain, root_key, token_array
from core.tunables import Tunables

__all__ = [
    "Conductor",
    "Decision",
    "EngineKind",
    "Health",
    "ManualClock",
    "NodeId",
    "NodeSpec",
    "Outcome",
    "OutcomeKind",
    "Rejection",
    "Request",
    "RequestId",
    "Role",
    "SystemClock",
    "Tunables",
    "chain",
    "root_key",
    "seeded",
    "token_array",
]
