"""What every page says when there is nothing to show, and what it shows beside that."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from dashboard_samples import node, state

from core import wire
from dashboard.api.client import Unreachable
from dashboard.api.feed import Look
from dashboard.overview import models as vm
from dashboard.parts import page as page_module

NEWEST = datetime(2026, 3, 1, tzinfo=UTC)


def stored(newest_at: datetime | None) -> wire.StorageView:
    """A record store whose last decision is of then."""
    database = wire.DatabaseView(
        url="sqlite://", kind="sqlite", schema_version="1", newest_schema="1", size_bytes=1,
        rows={}, newest_at=newest_at, read_at=NEWEST,
    )  # fmt: skip
    return wire.StorageView(database=database, export_rows_max=1)


@pytest.mark.parametrize(
    ("nodes", "answer", "shown"),
    [
        (1, stored(NEWEST), ["body"]),
        (0, stored(NEWEST), ["No node is registered", "history"]),
        (0, stored(None), ["No node is registered"]),
        (0, Unreachable("away"), ["No node is registered"]),
    ],
)
def test_without_nodes_what_was_recorded_before_is_still_to_be_read(
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    answer: wire.StorageView | Unreachable,
    shown: list[str],
) -> None:
    found: list[str] = []
    fleet = state(*[node(f"n{i}") for i in range(nodes)])

    def kept(*_: object, **__: object) -> wire.StorageView:
        if isinstance(answer, Unreachable):
            raise answer
        return answer

    monkeypatch.setattr(page_module, "connection", lambda: Look(state=fleet))
    monkeypatch.setattr(page_module, "kept", kept)
    monkeypatch.setattr(page_module, "notice", lambda n: found.append(n.title))
    page_module._run(
        lambda _: found.append("body"), vm.no_nodes_notice, lambda: found.append("history")
    )
    assert found == shown
