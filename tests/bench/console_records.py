"""An hour of records up to now, of the nodes of `engine_host`, written as the product writes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from core.ports import DecisionRecord, OutcomeRecord
from storage import migrate
from storage.database import writer_engine
from storage.insert import Inserter, Row
from storage.rollups import RollUp
from storage.rows import decision_values, outcome_values
from tests.bench import storage_rows

HOUR_S = 3600
BATCH = 4_000


def an_hour(url: str, *, nodes: int, per_s: float) -> int:
    """Fill a new database; how many decisions it holds then."""
    migrate.upgrade(url)
    engine = writer_engine(url)
    inserter, count = Inserter(engine), int(HOUR_S * per_s)
    begins = datetime.fromtimestamp(time.time() - HOUR_S, UTC)
    made = recent(begins, count, nodes=nodes, per_s=per_s)
    while batch := list(itertools.islice(made, BATCH)):
        inserter.store(
            row
            for decision, outcome in batch
            for row in (
                Row("decisions", decision_values(decision)),
                Row("outcomes", outcome_values(outcome)),
            )
        )
    inserter.store([])
    RollUp(engine).run(budget_s=float("inf"))
    engine.dispose()
    return count


def recent(
    begins: datetime, count: int, *, nodes: int, per_s: float
) -> Iterator[tuple[DecisionRecord, OutcomeRecord]]:
    """Decisions with their outcomes, from `begins` on, each with a prompt of its kind."""
    later = begins - storage_rows.T0
    for d in storage_rows.decisions(count, per_s=per_s, nodes=nodes):
        decision = msgspec.structs.replace(
            d, id=_id(d.at + later, d.id), at=d.at + later,
            prefill_node=_name(d.prefill_node), decode_node=_name(d.decode_node),
        )  # fmt: skip
        yield decision, next(storage_rows.outcomes(iter([decision]), seed=int(d.id[16:], 16)))


def _id(at: datetime, former: str) -> str:
    """Ids begin with their time."""
    return f"{int(at.timestamp() * 1000):012x}{former[12:]}"


def _name(node: str | None) -> str:
    return f"node-{int((node or '-0').rpartition('-')[2]):03}"
