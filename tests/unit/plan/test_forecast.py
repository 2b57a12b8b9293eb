"""The forecast: what it expects, and that it only counts while it is better than persistence."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.plan.forecast import (
    COMPARED_MIN,
    GROWTH_MAX,
    SERIES_MAX,
    STEP_S,
    Forecaster,
    Key,
    Smoother,
    Track,
)
from core.tunables import Forecast, Tunables

KEY = Key("m", "default")


def track(horizon=6, season=0, **rules) -> Track:
    return Track(Smoother(Forecast(**rules), season), horizon)


def fed(t: Track, values) -> Track:
    for value in values:
        t.close(value)
    return t


def test_a_constant_is_expected_to_stay():
    t = fed(track(), [7.0] * 50)
    assert t.expected == pytest.approx(7.0) and t.error == pytest.approx(0.0)
    assert not t.beats_persistence  # as good is not better


def test_noise_around_a_level_is_smoothed_and_beats_persistence():
    rng = random.Random(1)
    t = fed(track(), [100 + rng.gauss(0, 20) for _ in range(400)])
    assert t.expected == pytest.approx(100, abs=25)
    assert t.beats_persistence and t.error < 0.85 * t.persistence_error


def test_on_a_random_walk_it_does_not_count():
    rng, value, values = random.Random(2), 1000.0, []
    for _ in range(400):
        value = max(value + rng.gauss(0, 20), 0.0)
        values.append(value)
    assert not fed(track(), values).beats_persistence


def test_a_steady_rise_is_followed():
    t = fed(track(damping=1.0, trend=0.3), [5.0 * n for n in range(200)])
    assert t.expected == pytest.approx(5.0 * (199 + 6), rel=0.01)
    assert t.beats_persistence


def test_seasons_are_learned():
    def wave(n):
        return 100 + 80 * math.sin(2 * math.pi * n / 24)

    values = [wave(n) for n in range(24 * 30)]
    plain, seasonal = fed(track(), values), fed(track(season=24, level=0.1, trend=0.0), values)
    assert seasonal.beats_persistence and seasonal.error < 0.3 * plain.error


def test_too_few_comparisons_do_not_count():
    rng = random.Random(3)
    t = fed(track(), [100 + rng.gauss(0, 20) for _ in range(6 + COMPARED_MIN - 1)])
    assert t.compared == COMPARED_MIN - 1 and not t.beats_persistence


@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=80),
    st.integers(0, 12),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.floats(0.5, 1),
)
def test_it_is_always_a_number_and_never_negative(values, season, level, trend, damping):
    t = fed(track(season=season, level=level, trend=trend, damping=damping), values)
    assert math.isfinite(t.expected) and t.expected >= 0
    assert math.isfinite(t.error) and t.error >= 0


def play(f: Forecaster, rates, *, start_s=0.0, tokens=100) -> float:
    """So many requests in each step, one after another; the time at the end."""
    now = start_s
    for rate in rates:
        for _ in range(int(rate)):
            f.observe(KEY, tokens)
        now += STEP_S
        f.tick(now)
    return now


def test_steps_are_counted_per_second():
    f = Forecaster(Forecast(), 0.0)
    play(f, [10, 20])
    arrivals, tokens = f.total
    assert (arrivals.last, tokens.last) == (20 / STEP_S, 2000 / STEP_S)
    assert {(k, q) for k, q, _ in f.tracks()} == {
        (k, q) for k in (Key("", ""), KEY) for q in ("arrivals", "prefill_tokens")
    }


def rise(n=300, seed=4):
    """A noisy rise, which a trend expects and persistence does not."""
    rng = random.Random(seed)
    return [max(20 + 2 * i + rng.gauss(0, 6), 0) for i in range(n)]


def test_growth_is_one_until_the_forecast_has_earned_it():
    f = Forecaster(Forecast(trend=0.2, damping=1.0), 0.0)
    now = play(f, rise()[: COMPARED_MIN // 2])
    assert f.growth == 1.0
    play(f, rise()[COMPARED_MIN // 2 :], start_s=now)
    assert 1.0 < f.growth <= GROWTH_MAX


def test_switched_off_it_changes_nothing():
    f = Forecaster(Forecast(enabled=False, trend=0.2, damping=1.0), 0.0)
    play(f, rise())
    assert f.total[1].beats_persistence and f.growth == 1.0


def test_silence_is_zeros_and_a_long_one_starts_anew():
    f = Forecaster(Forecast(), 0.0)
    now = play(f, [10] * 10)
    f.tick(now + 5 * STEP_S)
    assert f.total[0].last == 0.0 and f.total[0].expected < 10 / STEP_S
    f.tick(now + 1e6)
    assert [k for k, _, _ in f.tracks()] == [Key("", "")] * 2


def test_series_are_bounded():
    f = Forecaster(Forecast(), 0.0)
    for n in range(2 * SERIES_MAX):
        f.observe(Key(f"m{n}", "x"), 1)
    f.tick(STEP_S)
    keys = {k for k, _, _ in f.tracks()}
    assert len(keys) == SERIES_MAX + 2 and Key("other", "other") in keys


def test_the_rules_are_tunable():
    changed = Tunables().changed({"forecast.season_s": 600.0, "forecast.horizon_s": 60.0})
    assert Forecaster(changed.forecast, 0.0).horizon_steps == 12
