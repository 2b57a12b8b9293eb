"""Alerts and jobs as rows and words."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest
from dashboard_samples import NOON

from core import wire
from core.control.alert_rules import RULES
from dashboard.alerts import models as am
from dashboard.alerts.evidence import alert_evidence
from dashboard.parts.theme import LIGHT


def alert(name: str, **more: object) -> wire.AlertView:
    given: dict[str, object] = {
        "name": name, "severity": "page", "state": "firing", "summary": "users wait",
        "monitor": "burn_fast", "limit": 14.4, "for_s": 60, "value": 20.0, "worst": 31.0,
        "since": NOON - timedelta(minutes=3), "evidence": {"bad": 12, "window_s": 300}, **more,
    }  # fmt: skip
    return wire.AlertView.model_validate(given)


OFF = wire.WebhookView(on=False)


def test_every_rule_of_the_service_has_its_evidence() -> None:
    assert {r.name for r in RULES} == set(am.EVIDENCE)


def test_one_dead_node_is_the_evidence_itself() -> None:
    one = alert("nodes_dead", evidence={"dead": ["gpu-7"]})
    assert am.evidence_page(one) == ("views/nodes.py", "gpu-7", {"node": "gpu-7"})
    both = alert("nodes_dead", evidence={"dead": ["gpu-7", "gpu-8"]})
    assert am.evidence_page(both) == am.EVIDENCE["nodes_dead"]
    assert (am.value_words(1.0, "nodes"), am.value_words(2.0, "nodes")) == ("1 node", "2 nodes")


def test_an_alert_says_how_long_how_bad_and_why() -> None:
    said = am.alert_text(alert("slo_burn_fast"), {}, NOON)
    assert said.startswith("burn_fast above 14.4 for 60 s; now 20; worst 31; for 3 min")
    assert said.endswith("; bad 12, window 5 min.")  # facts nobody has a sentence for
    known = alert(
        "x", acknowledged=wire.AcknowledgementView(author="ada", at=NOON, note="on it")
    )  # fmt: skip
    assert "ada knows of it: on it" in am.alert_text(known, {}, NOON)


@pytest.mark.parametrize(
    ("rule", "facts", "words"),
    [
        (
            "slo_burn_fast",
            {
                "long": [400, 12, 2], "short": [1, 1, 0], "long_rate": 3.0, "short_rate": 100.0,
                "objective": 0.99,
            },
            "in 1 h 12 of 400 requests missed their limits, 2 failed, burn rate 3; in 5 min 1 of "
            "1 request missed their limits, 0 failed, burn rate 100; the objective is 99.00 % "
            "within limits",
        ),
        (
            "decisions_slow",
            {"decisions": 900, "decision_p99_s": 0.03, "ttft_p50_s": 0.075},
            "p99 of 900 decisions in 5 min 30 ms, median TTFT 75 ms",
        ),
        (
            "load_uneven", {"busiest": "gpu-7", "nodes": 8},
            "the busiest of 8 prefill nodes is gpu-7",
        ),
        (
            "cache_signal_lost", {"node": "gpu-7", "nodes": 3},
            "longest that of gpu-7, and of 2 other nodes",
        ),
        ("cache_signal_lost", {"node": "gpu-7", "nodes": 1}, "longest that of gpu-7"),
        ("nodes_dead", {"dead": ["gpu-7", "gpu-8"]}, "gpu-7, gpu-8"),
        (
            "hotspots", {"groups": ["00ab" * 4, "00cd" * 4]},
            "prefix groups that are not calm: 00ab00ab, 00cd00cd",
        ),
        ("hit_uneven", {"best": "a", "worst": "b"}, "most reuse on a, least on b"),
        (
            "hit_missed", {"achieved": 0.2, "reachable": 0.8},
            "20 % of the prompt tokens reused where 80 % could be",
        ),
        (
            "audit_broken", {"entry": 17, "what": "hash differs", "checked": 16},
            "entry 17: hash differs (16 were read)",
        ),
        ("spool_filling", {"rows": 12000, "error": "gone"},
         "12 k rows wait; the last error was: gone"),
        ("records_dropped", {"total": 5, "error": ""}, "5 given up since the start"),
        ("loop_lag", {}, ""),
    ],
)  # fmt: skip
def test_evidence_has_words(rule: str, facts: dict[str, object], words: str) -> None:
    assert alert_evidence(rule, {"value": 2.0, "limit": 1.0, **facts}) == words


def test_tiles_count_pages_and_what_nobody_knows_of() -> None:
    tickets = [alert("a", severity="ticket"), alert("b", state="pending")]
    tiles = {t.name: t for t in am.alert_tiles(tickets, OFF)}
    assert (tiles["Firing"].value, tiles["Firing"].level) == ("1", "warn")
    assert tiles["Not acknowledged"].value == "1"
    assert tiles["Webhook"].word == "alerts are shown here only"
    assert am.alert_tiles([alert("p")], OFF)[0].level == "bad"
    assert am.alert_tiles([], OFF)[0].sub == "every rule is quiet"


def test_rules_read_with_their_units() -> None:
    row = am.alert_rows([alert("lag", monitor="loop_lag", limit=0.1, below=True, value=0.2)],
                        {"loop_lag": "s"}, UTC)[0]  # fmt: skip
    assert row["Rule"] == "loop_lag below 100 ms for 60 s"
    assert row["Now"] == "200 ms"
    two = alert("slow", limit=0.001, for_s=300.0, also="felt", also_limit=0.1)
    assert am.rule_words(two, "s").endswith(" above 1 ms, and felt above 10 %, for 5 min")
    assert am.value_words(0.058, "share") == "5.8 %"
    assert am.value_words(3.0, "1/min") == "3/min"


def test_the_monitor_is_drawn_with_its_limit() -> None:
    points = [
        wire.MonitorPoint(at=NOON + timedelta(seconds=5 * i), values=[None if i < 2 else i])
        for i in range(6)
    ]
    series = wire.MonitorSeries(names=["burn_fast"], step_s=5, points=points)
    figure = am.monitor_figure(series, alert("a"), "", LIGHT, zone=UTC)
    assert figure["data"][1]["y"] == [14.4, 14.4]
    assert "between 2 and 5; limit 14.4" in figure["layout"]["meta"]


def test_jobs_that_fail_come_first() -> None:
    well = wire.JobView(
        name="a", what="w", kind="job", every_s=60, runs=3, failures=0, last_at=NOON
    )
    bad = well.model_copy(update={"name": "b", "last_error": "no room", "failures": 2})
    new = well.model_copy(update={"name": "c", "last_at": None})
    rows = am.job_rows([well, bad, new], now=NOON + timedelta(seconds=9), zone=UTC)
    assert [(r["Job"], r["State"]) for r in rows] == [
        ("b", "✕ failed last"), ("a", "✓ well"), ("c", "○ not yet"),
    ]  # fmt: skip
    assert rows[1]["Last"] == "9.0 s old"
