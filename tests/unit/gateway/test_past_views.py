"""Distributions of stored requests and readings."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from core.domain import Telemetry
from core.errors import BadRequest
from core.gateway.admin_past import span
from core.gateway.past_views import POINTS_MAX, calibration, readings_view, timings_view
from core.ports import TelemetryPoint, Timing, Timings

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def timing(**changes) -> Timing:
    fields = {
        "at": T0, "prefill_node": "p", "predicted_ttft_s": 1.0, "predicted_tbt_s": 0.05,
        "ttft_slo_s": 2.0, "tbt_slo_s": 0.1, "ttft_s": 1.0, "tbt_s": 0.05,
    }  # fmt: skip
    return Timing(**{**fields, **changes})


def test_margins_split_at_the_limit_and_keep_what_lies_beyond():
    rows = (
        timing(ttft_s=2.0),
        timing(ttft_s=2.01),
        timing(ttft_s=1e-9),
        timing(ttft_s=1e9),
        timing(ttft_s=None),
        timing(tbt_slo_s=None),
    )
    view = timings_view(Timings(requests=rows, covered_from=T0), T0, T0)
    kept = sum(b.ttft for b in view.margins if b.high <= 1.0001)
    missed = sum(b.ttft for b in view.margins if b.low >= 0.9999)
    assert (kept, missed) == (3, 2)
    assert (view.margins[0].ttft, view.margins[-1].ttft) == (1, 1)
    assert sum(b.tbt for b in view.margins) == 5
    assert view.requests == 6


def test_calibration_tells_bias_spread_and_a_bounded_sample():
    rng = np.random.default_rng(1)
    predicted = np.exp(rng.normal(0, 1, 4000))
    found = calibration(predicted, predicted * 1.5 * np.exp(rng.normal(0, 0.1, 4000)))
    assert found.bias == pytest.approx(1.5, rel=0.02)
    assert found.within_factor_2 == pytest.approx(0.998, abs=0.01)
    assert 200 <= len(found.points) <= POINTS_MAX
    assert all(b.low_s < b.high_s and b.ratio_p10 < b.ratio_p50 < b.ratio_p90 for b in found.bins)
    assert sum(b.count for b in found.bins) >= 3950
    assert calibration(np.array([]), np.array([])).bias is None


def test_readings_are_thinned_and_counters_become_growth():
    def reading(n: int, cached: float) -> TelemetryPoint:
        told = Telemetry(kv_usage=n / 10, prompt_tokens_total=100.0 * n, cached_tokens_total=cached)
        return TelemetryPoint("a", T0 + timedelta(seconds=n), told)

    rows = [reading(1, 0.0), reading(2, 50.0), reading(3, 150.0), reading(4, 10.0)]
    view = readings_view("a", rows, T0, T0, 100)
    assert [p.hit_share for p in view.points] == [None, 0.5, 1.0, None]
    thin = readings_view("a", rows, T0, T0, 2)
    assert [p.at for p in thin.points] == [rows[1].at, rows[3].at]
    assert readings_view("a", [], T0, T0, 2).points == []


def test_a_stretch_of_time_must_make_sense():
    start, end = span(T0, T0 + timedelta(hours=1))
    assert (start, end) == (T0, T0 + timedelta(hours=1))
    assert span(T0.replace(tzinfo=None), T0 + timedelta(hours=1))[0] == T0
    for since, until in ((T0, T0), (T0 - timedelta(days=8), T0)):
        with pytest.raises(BadRequest) as error:
            span(since, until)
        assert error.value.field == "since"
