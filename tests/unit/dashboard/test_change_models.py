"""Changes on one time line, and the record store's tiles."""

from __future__ import annotations

from datetime import UTC, timedelta

from dashboard_samples import NOON

from core import wire
from dashboard.changes import models as cm
from dashboard.decisions.export import export_query
from dashboard.health import models as sm
from dashboard.parts.theme import LIGHT


def event(kind: str, node: str = "", /, **data: object) -> wire.EventView:
    return wire.EventView(id=kind, at=NOON, kind=kind, node=node, data=data)


CHANGED = event(
    "tunables.changed", author="ada", reason="peak", revision=4, base=3, kind="change",
    changes={"linear.alpha": [0.5, 0.7]},
)  # fmt: skip
OPENED = event("node_breaker.open", "n1", before="closed", cause="error_rate", failures=12)


def test_events_become_sentences_with_who_and_why() -> None:
    first, second = cm.change_rows([CHANGED, OPENED])
    assert first["What"] == "Revision 4: changed"
    assert (first["By"], first["Reason"]) == ("ada", "peak")
    assert first["Details"] == "linear.alpha 0.5 → 0.7"
    assert second["What"] == "n1: node breaker open"
    assert second["By"] == "by itself"
    assert second["Details"] == "was closed; error rate; failures 12"


def test_a_process_that_went_is_told_as_that() -> None:
    gone = event("engine.restarted", "n1", cause="connection_refused")
    lost = event("node.running", "n1", before="running", cause="restarted")
    assert cm.sentence(gone) == "n1: engine gone, nobody listens"
    assert cm.sentence(lost) == "n1: its cache and its requests are taken for lost"
    assert cm.sentence(event("engine.restarted", "n1", cause="sequence_went_back")) == (
        "n1: engine restarted"
    )


def test_an_alert_tells_how_far_it_was_and_why() -> None:
    facts = {"alert": "load_uneven", "severity": "ticket", "summary": "uneven", "value": 2.5,
             "limit": 2.0, "busiest": "gpu-7", "nodes": 8}  # fmt: skip
    fired = event("alert.firing", before="pending", **facts)
    why = "the busiest of 8 prefill nodes is gpu-7"
    assert cm.details(fired) == f"was pending; uneven; 2.5 where the limit is 2; {why}"
    over = event("alert.resolved", before="firing", **facts)
    assert "uneven; at last 2.5 where" in cm.details(over)
    restored = event("tunables.rolled_back", evidence={"rule": "fast", "long": [1, 2, 3]})
    assert cm.details(restored) == ""  # its reason says it


def test_every_kind_has_a_lane_and_every_lane_its_kinds() -> None:
    assert cm.lane_of("global_breaker.tripped") == "Breakers"
    assert cm.lane_of("never.heard_of") == cm.OTHER
    assert cm.kinds_of("Nodes") == ["node.*", "engine.*", "health.*"]
    assert cm.kinds_of(cm.ALL) == []


def test_filters_look_at_words_and_authors() -> None:
    both = [CHANGED, OPENED]
    assert cm.matching(both, by="ADA") == [CHANGED]
    assert cm.matching(both, by="itself") == [OPENED]
    assert cm.matching(both, text="alpha") == [CHANGED]
    assert cm.matching(both) == both


def test_the_time_line_marks_what_people_did() -> None:
    figure = cm.timeline([CHANGED, OPENED], LIGHT, zone=UTC)
    symbols = {t["name"]: t["marker"]["symbol"] for t in figure["data"]}
    assert symbols == {"Configuration": ["circle"], "Breakers": ["diamond-open"]}
    assert "Configuration 1, Breakers 1" in figure["layout"]["meta"]


def storage(**more: object) -> wire.StorageView:
    given: dict[str, object] = {
        "database": wire.DatabaseView(
            url="sqlite:///x", kind="sqlite", schema_version="7", newest_schema="7",
            size_bytes=5_300_000, rows={"decisions": 5, "outcomes": 4}, read_at=NOON,
        ),
        "writer": wire.WriterView(
            available=True, queued=3, written=9, dropped=0, failures=0, lag_s=0.1
        ),
        "export_rows_max": 100, **more,
    }  # fmt: skip
    return wire.StorageView.model_validate(given)


def test_storage_says_what_is_lost_and_what_waits() -> None:
    tiles = {t.name: t for t in sm.storage_tiles(storage())}
    assert tiles["Database"].value == "5.3 MB"
    assert tiles["Lost records"].level == "ok"
    away = storage(
        database=None, error="no connection",
        writer=wire.WriterView(
            available=False, queued=9, written=0, dropped=4, failures=7, lag_s=90.0,
            last_error="refused",
        ),
        spool=wire.SpoolView(rows=40, size_bytes=2000, damaged=0, failures=0),
    )  # fmt: skip
    tiles = {t.name: t for t in sm.storage_tiles(away)}
    assert (tiles["Database"].value, tiles["Database"].word) == ("away", "no connection")
    assert tiles["Waiting to be stored"].word == "does not store: refused"
    assert [tiles[n].level for n in ("Oldest not stored", "Lost records", "Spooled on disk")] == [
        "bad", "bad", "warn",
    ]  # fmt: skip


def test_decisions_that_an_alert_calls_slow_are_not_shown_as_well() -> None:
    service = wire.ServiceView(
        started_at=NOON, uptime_s=1.0, decision_p99_us=9000.0, decision_p50_us=300.0
    )
    well, slow = (sm.service_tiles(service, firing)[1] for firing in ((), {"decisions_slow"}))
    assert (well.level, well.word) == ("ok", "p50 300 µs")
    assert (slow.level, slow.word, slow.sub) == ("warn", "slow: an alert fires", "p50 300 µs")


def test_an_old_schema_and_silent_replicas_are_seen() -> None:
    old = storage().database
    assert old is not None
    behind = storage(database=old.model_copy(update={"schema_version": "5"}))
    assert sm.storage_tiles(behind)[0].word == "schema 5, newest 7"
    replica = wire.ReplicaView(
        id="1", host="h", pid=1, started_at=NOON, seen_at=NOON, alive=False
    )  # fmt: skip
    alive = replica.model_copy(update={"id": "2", "alive": True})
    rows = sm.replica_rows([replica, alive], now=NOON + timedelta(minutes=2), zone=UTC)
    assert [r["State"] for r in rows] == ["✓ alive", "✕ silent"]
    assert rows[1]["Heard of"] == "2 min old"


def test_an_export_keeps_the_filters_and_drops_the_page() -> None:
    query = wire.DecisionQuery(node="a", slo_missed=True, cursor="x", limit=50)
    asked = export_query(query, "parquet", 1000)
    assert (asked.node, asked.slo_missed, asked.cursor) == ("a", True, None)
    assert (asked.format, asked.limit) == ("parquet", 1000)
