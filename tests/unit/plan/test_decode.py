"""Decode scores and feasibility."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.clock import seeded
from core.plan.decode import DecodeScores, score_decode
from core.policy import pick


def scored(k: int = 3, **given: Any) -> DecodeScores:
    """k equal empty nodes with TBT = 10 ms + 1 ms a request + 1 us a token, but for `given`."""
    columns: dict[str, Any] = {
        "d0": [0.010] * k,
        "d1": [0.001] * k,
        "d2": [1e-6] * k,
        "batch": [0] * k,
        "kv_tokens": [0] * k,
        "added_tokens": 1000.0,
        "missing_tokens": [1000] * k,
        "transfer_s": [0] * k,
        "tbt_slo_s": 0.1,
        "strictest_tbt_s": [np.inf] * k,
    } | given
    made = {n: np.array(v, np.float64) if isinstance(v, list) else v for n, v in columns.items()}
    return score_decode(made.pop("d0"), made.pop("d1"), **made)


def test_the_prediction_counts_this_request_in() -> None:
    out = scored(batch=[0, 9, 4], kv_tokens=[0, 20_000, 5000])
    assert out.tbt_s == pytest.approx([0.012, 0.041, 0.021])


def test_the_total_weighs_transfer_against_tokens() -> None:
    kw = {"batch": [9, 0, 0], "transfer_s": [0.0, 0.006, 0.02]}
    totals = scored(**kw).scores.total
    assert totals == pytest.approx([0.021, 0.018, 0.032], abs=1e-5)
    assert totals.argmin() == 1
    assert scored(**kw, tbt_weight=0.1).scores.total.argmin() == 0
    assert scored(**kw, tbt_weight=0.0).scores.terms["tbt"].tolist() == [0, 0, 0]


def test_a_node_breaks_its_own_limit_or_that_of_anyone_in_its_batch() -> None:
    out = scored(tbt_slo_s=0.015, batch=[0, 5, 1], strictest_tbt_s=[np.inf, np.inf, 0.012])
    assert out.feasible.tolist() == [True, False, False]
    strict = scored(tbt_slo_s=1.0, batch=[0, 5, 1], strictest_tbt_s=[0.0121, 0.0159, 0.0131])
    assert strict.feasible.tolist() == [True, False, True]
    slack = scored(tbt_slo_s=0.015, batch=[0, 5, 1], tbt_slack=2.0)
    assert slack.feasible.tolist() == [True, True, True]


def test_kv_in_place_wins_where_times_are_equal() -> None:
    out = scored(missing_tokens=[1000, 0, 1000])
    assert pick(out.scores.total, "min", seeded(0)) == (1, 1)
    busier = scored(missing_tokens=[1000, 0, 1000], batch=[0, 1, 0])
    assert busier.scores.total.argmin() != 1


def test_terms_sum_to_the_total() -> None:
    scores = scored(transfer_s=[0.1, 0.0, 0.3], batch=[1, 2, 3]).scores
    assert sum(scores.terms.values()) == pytest.approx(scores.total)


def test_staying_needs_no_transfer_and_competes_by_its_batch() -> None:
    out = scored(k=2, transfer_s=[0.0, 0.02], missing_tokens=[0, 1000], batch=[30, 0])
    assert out.scores.total.argmin() == 1
    idle = scored(k=2, transfer_s=[0.0, 0.02], missing_tokens=[0, 1000], batch=[5, 0])
    assert idle.scores.total.argmin() == 0


def test_more_requests_or_kv_never_help() -> None:
    base = scored(batch=[4, 4, 4], kv_tokens=[9, 9, 9])
    more = scored(batch=[5, 4, 4], kv_tokens=[9, 99, 9])
    assert (more.scores.total >= base.scores.total).all()
    assert (more.scores.total[:2] > base.scores.total[:2]).all()
