"""What the SLO page shows, from sums over stored requests."""

from __future__ import annotations

from datetime import UTC

import pytest
from dashboard_samples import NOON, point, series

from core import wire
from dashboard.parts.theme import DARK, LIGHT
from dashboard.slo import figures as slo_figures
from dashboard.slo import models as sm


def share(**more: object) -> wire.ShareView:
    given = {"tenant": "a", "model": "m", "decisions": 100, "finished": 100, **more}
    return wire.ShareView.model_validate(given)


def shares(*groups: wire.ShareView) -> wire.Shares:
    count = sum(g.decisions for g in groups)
    return wire.Shares(since=NOON, until=NOON, decisions=count, groups=list(groups))


def calibration(**more: object) -> wire.Calibration:
    given = {
        "count": 10, "bias": 1.0, "within_factor_2": 0.9, "points": [(0.1, 0.2), (1.0, 0.9)],
        "bins": [
            {"low_s": 0.1, "high_s": 0.4, "count": 9,
             "ratio_p10": 0.5, "ratio_p50": 1.0, "ratio_p90": 2.0}
        ],
        **more,
    }  # fmt: skip
    return wire.Calibration.model_validate(given)


def timings() -> wire.TimingsView:
    bins = [
        {"low": 0.1, "high": 1.0, "ttft": 8, "tbt": 9},
        {"low": 1.0, "high": 10.0, "ttft": 2, "tbt": 0},
        {"low": 10.0, "high": 100.0, "ttft": 0, "tbt": 0},
    ]
    given = {
        "since": NOON, "until": NOON, "requests": 10, "margins": bins,
        "ttft": calibration(), "tbt": calibration(count=0, bias=None, bins=[], points=[]),
    }  # fmt: skip
    return wire.TimingsView.model_validate(given)


def test_attainment_counts_failures_as_misses_and_leaves_broken_off_ones_out() -> None:
    kept = sm.total(shares(share(finished=110, aborted=10, failed=2, slo_missed=3, ttft_missed=3)))
    assert (kept.finished, kept.bad) == (100, 5)
    assert kept.attainment == pytest.approx(0.95)
    assert kept.met(kept.ttft_missed) == pytest.approx(0.97)
    assert sm.total(shares()).attainment is None
    assert sm.total(shares(share(finished=2, failed=2, slo_missed=2))).attainment == 0.0


def test_rows_are_by_tenant_and_model_over_all_nodes_worst_first() -> None:
    found = sm.attainment_rows(
        shares(
            share(prefill_node="x"),
            share(prefill_node="y"),
            share(tenant="", slo_missed=50),
            share(tenant="c", finished=0, rejected=100),
        ),
        0.99,
    )
    assert [r["Tenant"] for r in found] == ["(none)", "a", "c"]
    assert [r["Requests"] for r in found] == [100, 200, 100]
    assert [r["Objective"] for r in found] == ["✕ missed", "✓ kept", "○ nothing finished"]


@pytest.mark.parametrize(
    ("missed", "left", "level"),
    [(0, 1.0, "ok"), (8, 0.2, "warn"), (10, 0.0, "bad"), (30, -2, "bad")],
)
def test_the_error_budget(missed: int, left: float, level: str) -> None:
    kept = sm.total(shares(share(decisions=1000, finished=1000, slo_missed=missed)))
    assert sm.budget_left(kept.attainment, 0.99) == pytest.approx(left)
    tile = sm.tiles(kept, 0.99, None)[3]
    assert tile.level == level


@pytest.mark.parametrize(
    ("finished", "missed", "level", "word"),
    [(77, 1, "warn", "▲ missed once"), (77, 2, "bad", "✕ missed"), (200, 1, "ok", "✓ kept")],
)
def test_one_missed_request_of_a_few_is_too_few_to_judge(
    finished: int, missed: int, level: str, word: str
) -> None:
    found = shares(share(finished=finished, slo_missed=missed, ttft_missed=missed))
    tiles = sm.tiles(sm.total(found), 0.99, None)
    assert [t.level for t in tiles[:4]] == [level, level, "ok", level]
    assert [r["Objective"] for r in sm.attainment_rows(found, 0.99)] == [word]


def test_burn_rates_alarm_only_where_both_windows_do() -> None:
    def levels(**burn: float) -> list[str]:
        return [t.level for t in sm.tiles(sm.Kept(), 0.99, {k[1:]: v for k, v in burn.items()})[4:]]

    assert levels(_5m=20.0, _1h=15.0, _30m=7.0, _6h=6.5) == ["bad", "bad"]
    assert levels(_5m=20.0, _1h=2.0, _30m=7.0, _6h=0.5) == ["warn", "ok"]
    assert levels(_5m=1.0) == ["none", "none"]
    assert [t.level for t in sm.tiles(sm.Kept(), 0.99, None)] == ["none"] * 6


def test_the_objective_is_a_live_parameter() -> None:
    item = wire.TunableView.model_construct(path=sm.OBJECTIVE, value=0.95)
    assert sm.objective_of([item]) == 0.95
    assert sm.objective_of([]) == sm.OBJECTIVE_DEFAULT


def test_words_say_how_much_was_read_and_how_good_predictions_are() -> None:
    assert sm.coverage("12:00", True, 1200) == "all 1,200 requests of the window"
    assert sm.coverage("12:00", False, 5) == "the newest 5 requests, back to 12:00"
    assert sm.calibration_words(calibration(bias=1.5)).startswith("too low: median")
    assert sm.calibration_words(calibration(bias=0.5)).startswith("too high")
    assert sm.calibration_words(calibration()).startswith("without bias")
    assert sm.calibration_words(calibration(bias=None)) == "nothing to compare"


def test_charts_have_the_limit_the_objective_and_twins() -> None:
    for p in (LIGHT, DARK):
        figure = slo_figures.margins(timings(), p)
        assert figure["data"][-1]["x"] == [1, 1]
        assert figure["layout"]["meta"] == "2 over the TTFT limit, 0 over the TBT limit"
        drawn = slo_figures.calibration(timings().ttft, p, "#000000")
        assert drawn["data"][1]["y"] == [pytest.approx(0.2)]
        assert slo_figures.calibration(timings().tbt, p, "#000000")["data"][0]["x"] == []
    assert len(sm.margin_rows(timings())) == 2
    assert [r["Time"] for r in sm.calibration_rows(timings())] == ["TTFT"]
    points = [
        point(0, finished=10, good=9),
        point(1),
        point(2, finished=11, aborted=1, good=10),
    ]
    line = slo_figures.attainment(series(*points), 0.95, LIGHT, zone=UTC)
    assert line["data"][0]["y"] == [90.0, None, 100.0]
    assert line["data"][1]["y"] == [95.0, 95.0]
    assert line["layout"]["meta"] == "Lowest 90 %, last 100 %"
    assert slo_figures.attainment(series(), 0.95, LIGHT, zone=UTC)["data"][1]["x"] == []
