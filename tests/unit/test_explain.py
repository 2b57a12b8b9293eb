"""Explanations of stored decisions: who lost, by how much, on which term, and the text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from core.audit import candidates_json, excluded_json
from core.domain import CandidateTable, NodeId, Reason
from core.explain import (
    DECODE_FORMULA,
    explain,
    explain_json,
    explain_text,
    explanation_text,
)
from core.gateway.stored import outcome_view
from core.ports import DecisionRecord, OutcomeRecord, StoredDecision

AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def table(
    columns: dict[str, list[float]],
    terms: dict[str, list[float]],
    total: list[float],
    *,
    chosen: int = 0,
    sense: str = "min",
    tied: int = 1,
) -> str:
    return candidates_json(
        CandidateTable(
            nodes=tuple(NodeId(f"p{i}") for i in range(len(total))),
            sense=sense,
            total=np.array(total),
            columns={name: np.array(column) for name, column in columns.items()},
            terms={name: np.array(term) for name, term in terms.items()},
            chosen=chosen,
            tied=tied,
        )
    )


SUM = table(
    {"match_tokens": [512, 1024, 0], "queue_s": [0.1, 2.0, 0.0]},
    {"queue": [0.1, 2.0, 0.0], "prefill": [0.5, 0.25, 1.75]},
    [0.6, 2.25, 1.75],
)


def record(**changes: Any) -> DecisionRecord:
    fields: dict[str, Any] = {
        "id": "0197-1",
        "at": AT,
        "request_id": "r-1",
        "model": "m",
        "policy": "min_ttft",
        "revision": 7,
        "prompt_tokens": 2048,
        "signal": "exact",
        "prefill_node": "p0",
        "decode_node": "p0",
        "match_tokens": 512,
        "reachable_tokens": 1024,
        "prefix_tokens": 512,
        "predicted_queue_s": 0.1,
        "predicted_transfer_s": 0.0,
        "predicted_prefill_s": 0.5,
        "predicted_ttft_s": 0.6,
        "predicted_tbt_s": 0.02,
        "ttft_slo_s": 1.0,
        "tbt_slo_s": 0.2,
        "candidates": SUM,
        "excluded": excluded_json({Reason.DRAINING: (NodeId("p8"), NodeId("p9"))}),
    }
    return DecisionRecord(**{**fields, **changes})


def outcome(**changes: Any) -> OutcomeRecord:
    fields: dict[str, Any] = {
        "decision_id": "0197-1",
        "decided_at": AT,
        "finished_at": AT,
        "kind": "ok",
        "ttft_s": 1.5,
        "tbt_s": 0.03,
        "e2e_s": 9.0,
        "cached_tokens": 496,
        "output_tokens": 200,
        "status": 200,
    }
    return OutcomeRecord(**{**fields, **changes})


def why(candidates: str, node: str) -> str:
    e = explain(StoredDecision(record(candidates=candidates)))
    return next(c.why_not for c in e.prefill.candidates if c.node == node)


def test_candidates_are_ranked_and_the_deciding_term_is_named():
    e = explain(StoredDecision(record()))
    assert [(c.rank, c.node, c.chosen) for c in e.prefill.candidates] == [
        (1, "p0", True),
        (2, "p2", False),
        (3, "p1", False),
    ]
    assert e.prefill.candidates[0].why_not == ""
    assert e.prefill.candidates[1].behind == pytest.approx(1.15)
    assert why(SUM, "p1") == "1.65 worse in total, mostly queue: 2 against 0.1"
    assert why(SUM, "p2") == "1.15 worse in total, mostly prefill: 1.75 against 0.5"


def test_a_product_is_decided_by_the_factor_that_differs_most():
    product = table({}, {"tokens": [100, 90], "batch": [1, 10]}, [100, 900])
    assert why(product, "p1") == "800 worse in total, mostly batch: 10 against 1"


def test_highest_total_wins_where_the_policy_says_so():
    share = table({}, {"cache": [0.5, 0.1], "idle": [0.1, 0.2]}, [0.6, 0.3], sense="max")
    assert why(share, "p1") == "0.3 worse in total, mostly cache: 0.1 against 0.5"


def test_a_tie_is_told_from_a_loss():
    tie = table({}, {"queue": [1.0, 1.0, 2.0]}, [1.0, 1.0, 2.0], tied=2)
    assert why(tie, "p1") == "equal total; the seeded draw took the other"
    assert "mostly queue" in why(tie, "p2")
    e = explain(StoredDecision(record(candidates=tie)))
    assert e.prefill.tied == 2
    assert "2 tied, drawn by seed" in explanation_text(e)


def test_a_decode_node_that_breaks_a_limit_is_told_from_a_slower_one():
    decode = table(
        {"tbt_s": [0.03, 0.25, 0.04], "feasible": [1, 0, 1]},
        {"transfer": [0.1, 0.0, 0.2]},
        [0.13, 0.0, 0.24],
    )
    e = explain(StoredDecision(record(decode_node="d0", decode_candidates=decode)))
    assert e.decode is not None and e.decode.formula == DECODE_FORMULA
    reasons = {c.node: c.why_not for c in e.decode.candidates}
    assert reasons["p1"] == "its batch would break a limit: 250 ms between tokens predicted"
    assert reasons["p2"].startswith("0.11 worse in total")
    assert e.verdict == "Placed on p0 for prefill and d0 for decode."


def test_the_reason_for_less_than_the_best_match_is_given():
    e = explain(StoredDecision(record()))
    assert e.missed_match == (
        "p1 holds 1024 tokens, but lost: 1.65 worse in total, mostly queue: 2 against 0.1."
    )
    gone = explain(StoredDecision(record(reachable_tokens=2000)))
    assert "was no candidate" in gone.missed_match
    assert explain(StoredDecision(record(match_tokens=1024))).missed_match == ""


def test_predicted_stands_against_observed_and_limit():
    e = explain(StoredDecision(record(), outcome()))
    assert (e.ttft.predicted_s, e.ttft.observed_s, e.ttft.limit_s) == (0.6, 1.5, 1.0)
    assert e.ttft.missed and not e.tbt.missed
    assert not explain(StoredDecision(record())).ttft.missed, "not observed, not missed"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "not streamed: the answer came whole, so no token was seen on its own"),
        ({"e2e_s": None}, "whoever carried the request out did not report it"),
        ({"kind": "timeout"}, "it failed before a first token"),
        ({"kind": "client_abort"}, "the client left before a first token"),
    ],
)
def test_what_was_not_observed_says_why_in_text_and_in_the_api(changes, why):
    ended = outcome(ttft_s=None, tbt_s=None, **changes)
    e = explain(StoredDecision(record(), ended))
    assert (e.ttft.unobserved, e.tbt.unobserved) == (why, why)
    assert explanation_text(e).count(f"  no observed time to first token: {why}\n") == 1
    view = outcome_view(ended)
    assert (view.no_ttft, view.no_tbt) == (why, why)


def test_a_single_token_has_no_time_between_tokens():
    e = explain(StoredDecision(record(), outcome(tbt_s=None)))
    assert e.ttft.unobserved == ""
    assert "no observed time between tokens: no two tokens" in explanation_text(e)
    assert "no observed" not in explanation_text(explain(StoredDecision(record(), outcome())))


def test_exclusions_keep_reason_nodes_and_the_rest():
    many = excluded_json({Reason.ROLE: tuple(NodeId(f"d{i}") for i in range(20))})
    e = explain(StoredDecision(record(excluded=many)))
    (x,) = e.prefill.excluded
    assert (x.reason, x.nodes[0], len(x.nodes), x.more) == ("role", "d0", 16, 4)
    assert "excluded, role: d0, d1" in explanation_text(e)
    assert "and 4 more" in explanation_text(e)


def test_a_rejection_says_what_and_why():
    refused = record(
        status=429,
        code="predicted_ttft_slo",
        message="12 s predicted, 1 s allowed",
        retry_after_s=8.0,
        prefill_node=None,
        decode_node=None,
        match_tokens=0,
        candidates="",
    )
    e = explain(StoredDecision(refused))
    assert e.verdict == (
        "Refused with 429 predicted_ttft_slo: 12 s predicted, 1 s allowed. Retry after 8 s."
    )
    assert e.prefill.candidates == () and e.missed_match == ""
    text = explanation_text(e)
    assert "Refused with 429" in text and "excluded, draining: p8, p9" in text
    assert "No outcome yet" not in text


def test_a_policy_this_release_does_not_know_is_still_explained():
    e = explain(StoredDecision(record(policy="of_the_future")))
    assert e.prefill.formula == "" and len(e.prefill.candidates) == 3


def test_the_text_tells_the_whole_story():
    text = explanation_text(explain(StoredDecision(record(), outcome())))
    for part in (
        "Decision 0197-1 at 2026-03-01 12:00:00.250000 UTC",
        "Request r-1: model m, 2048 prompt tokens",
        "Placed on p0.",
        "Policy min_ttft, revision 7, signal exact",
        "chosen node holds     512 (25.0%)",
        "best match reachable  1024 (50.0%)",
        "engine reported       496 (24.2%)",
        "of which queue 100 ms, transfer 0 ms, prefill 500 ms",
        "T_queue + T_transfer + T_prefill",
        "excluded, draining: p8, p9",
        "Outcome: ok, 200 tokens in 9 s, status 200.",
    ):
        assert part in text
    ttft = next(line for line in text.splitlines() if "time to first token" in line)
    assert ttft.split()[-8:] == ["token", "600", "ms", "1.5", "s", "1", "s", "missed"]
    header = next(line for line in text.splitlines() if line.split()[:1] == ["node"])
    assert header.split() == ["node", "total", "queue", "prefill", "match_tokens"]


def test_as_json_it_can_be_read_by_programs():
    found = json.loads(explain_json(StoredDecision(record(), outcome())))
    assert found["verdict"] == "Placed on p0."
    assert found["prefill"]["candidates"][1]["why_not"].startswith("1.15 worse")
    assert found["decision"]["id"] == found["outcome"]["decision_id"] == "0197-1"
    assert explain_text(StoredDecision(record())).startswith("Decision 0197-1")


def test_a_failure_names_its_node():
    failed = outcome(kind="engine_error", status=502, failed_node="d0", error="reset")
    text = explanation_text(explain(StoredDecision(record(), failed)))
    assert "Outcome: engine_error, 200 tokens in 9 s, status 502, d0 failed: reset." in text


def test_an_open_decision_has_no_outcome_yet():
    text = explanation_text(explain(StoredDecision(record())))
    assert text.rstrip().endswith("No outcome yet.")
    assert "engine reported" not in text
