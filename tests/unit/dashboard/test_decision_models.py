from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from dashboard_samples import NOON, outcome, row, selection

from core import wire
from core.domain import OutcomeKind, Reason
from dashboard.decisions import models as dm
from dashboard.decisions.filters import Filters, query_of
from dashboard.parts.window import fixed, relative


def test_every_outcome_the_api_takes_can_be_chosen_and_shown() -> None:
    annotation = wire.DecisionQuery.model_fields["outcome"].annotation
    literals = {v for part in get_args(annotation) for v in get_args(part)}
    assert set(dm.OUTCOMES) == {k.value for k in OutcomeKind} | literals


def test_every_reason_has_words() -> None:
    assert set(dm.REASONS) == {r.value for r in Reason}


def test_rows_of_running_finished_and_refused_requests() -> None:
    rows = dm.table_rows(
        [
            row(),
            row(outcome=None),
            row(routed=False, status=429, code="slo_unreachable", outcome=None),
            row(outcome=outcome(kind=OutcomeKind.TIMEOUT, ttft_s=None)),
            row(outcome=outcome(slo_missed="ttft")),
        ]
    )
    assert [r["Outcome"] for r in rows] == [
        "✓ ok", "… running", "▲ rejected 429 slo_unreachable", "✕ timed out", "✓ ok",
    ]  # fmt: skip
    assert [r["Limits"] for r in rows] == ["✓ met", "-", "-", "-", "✕ TTFT"]
    assert (rows[0]["Match"], rows[0]["Reachable"], rows[0]["Reported"]) == (0.64, 0.8, 0.64)
    assert rows[1]["Reported"] is None
    assert rows[2]["TTFT predicted"] is None


def test_tiles_of_a_missed_limit_and_a_missed_match() -> None:
    tiles = dm.summary_tiles(row(outcome=outcome(ttft_s=4.0)))
    assert [t.level for t in tiles] == ["ok", "bad", "ok", "warn"]
    assert "20 times predicted" in tiles[1].word
    assert "160 less than the best" in tiles[3].word


def test_tiles_of_a_rejection_name_status_code_and_reason() -> None:
    refused = row(routed=False, status=429, code="slo", message="too late", outcome=None)
    tile = dm.summary_tiles(refused)[0]
    assert (tile.value, tile.word, tile.sub) == ("429", "slo", "too late")


def test_waterfall_lanes_follow_on_and_keep_what_is_not_named() -> None:
    parts = dm.waterfall(row(predicted_ttft_s=0.25))
    predicted = [(s.name, s.start_s) for s in parts if s.lane == "predicted"]
    assert predicted == [("queue", 0.0), ("prefill", 0.1), ("to first token", 0.2)]
    observed = [(s.name, s.start_s, s.length_s) for s in parts if s.lane == "observed"]
    assert observed == [("first token", 0.0, 0.3), ("stream", 0.3, pytest.approx(1.2))]


def test_waterfall_shows_what_the_service_took_for_itself() -> None:
    parts = dm.waterfall(row(decide_s=0.001, waited_s=0.05))
    observed = [(s.name, pytest.approx(s.start_s), pytest.approx(s.length_s)) for s in parts[-4:]]
    assert observed == [
        ("queue", 0.0, 0.05), ("decide", 0.05, 0.001), ("first token", 0.051, 0.249),
        ("stream", 0.3, 1.2),
    ]  # fmt: skip


def test_waterfall_of_a_rejection_is_empty() -> None:
    nothing = {f"predicted_{n}_s": 0.0 for n in ("queue", "transfer", "prefill", "ttft")}
    assert dm.waterfall(row(routed=False, outcome=None, **nothing)) == []


def test_negative_terms_are_no_stack() -> None:
    assert not dm.adds_up(selection(("a", {"x": 5.0, "y": -2.0}, 3.0)))
    assert dm.adds_up(selection(("a", {"x": 1.0, "y": 2.0}, 3.0)))
    assert not dm.adds_up(selection())


def test_node_weights_behind_totals_are_told() -> None:
    made = selection(("a", {"x": 0.5}, 1.25), ("b", {"x": 0.5}, 0.5), sense="max")
    assert dm.weight_note(made) == ""
    made.candidates[0].inputs["node_weight"] = 2.5
    told = "Totals are what the terms give, times the node's weight: a 2.5."
    assert dm.weight_note(made) == told


def test_candidates_table_keeps_terms_and_inputs_apart() -> None:
    rows = dm.candidate_rows(selection(("a", {"queue": 1.23456}, 1.23456), ("b", {}, 2.0)))
    assert rows[0]["term: queue"] == 1.235
    assert rows[1]["term: queue"] is None
    assert rows[0]["load"] == 0.5
    assert rows[1]["Why it lost"] == "worse"


def test_exclusions_are_put_in_words() -> None:
    found = wire.SelectionView(sense="min", excluded={"breaker_open": ["a", "b"], "new": ["c"]})
    assert dm.excluded_rows(found) == [
        {"Reason": "its breaker is open", "Nodes": "a, b"},
        {"Reason": "new", "Nodes": "c"},
    ]


def test_prediction_table_divides_only_what_was_observed() -> None:
    first, second = dm.prediction_rows(row(outcome=outcome(tbt_s=None)))
    assert first["Observed / predicted"] == "1.5"
    assert second["Observed / predicted"] == "-"


def test_what_was_not_observed_is_said_in_words() -> None:
    whole = row(outcome=outcome(ttft_s=None, tbt_s=None, no_ttft="not streamed", no_tbt="so too"))
    _, ttft, tbt, _ = dm.summary_tiles(whole)
    assert (ttft.word, tbt.word) == ("not observed", "not observed")
    assert ttft.sub.startswith("not streamed; predicted ") and tbt.sub.startswith("so too; ")
    assert dm.unobserved(whole) == "No observed time to first token: not streamed."
    assert dm.unobserved(row()) == dm.unobserved(row(outcome=None)) == ""


def test_filters_become_a_query_and_an_id_searches_all_history() -> None:
    last, start = relative("5m", NOON), NOON - timedelta(minutes=5)
    query = query_of(Filters(node="a", outcome="open"), window=last, cursor="c")
    assert (query.since, query.node, query.outcome, query.cursor) == (start, "a", "open", "c")
    assert query.until is None
    stretch = fixed(start, NOON, NOON)
    assert query_of(Filters(), window=stretch, cursor=None).until == NOON
    found = query_of(Filters(q="abc"), window=stretch, cursor=None)
    assert (found.since, found.until) == (None, None)
    assert Filters().empty


def test_title_carries_zone_and_milliseconds() -> None:
    at = datetime(2026, 3, 1, 1, 2, 3, 4000, tzinfo=UTC)
    assert dm.title(row(at=at), UTC, "UTC") == "2026-03-01 01:02:03.004 UTC, request r1"
