"""The cost model against the paper's formula, and fits against known coefficients."""

from __future__ import annotations

import json
import math
from importlib import resources

import numpy as np
import pytest

from core.clock import seeded
from core.errors import Invalid, NotFound
from core.plan.cost_model import (
    PrefillFit,
    TbtFit,
    prefill_coefficients,
    prefill_flops,
    prefill_seconds,
    profile,
    profile_from_json,
    profile_names,
    tbt_coefficients,
    tbt_seconds,
)

LLAMA = "llama3-70b-8xa800"


def paper_flops(n: float) -> float:
    """F eq. 1 with the figures of its table 1."""
    layers, d, a, b = 80, 8192, 4, 22
    return layers * (a * n**2 * d + b * n * d**2)


def test_the_promised_profiles_ship() -> None:
    assert profile_names() == (
        "generic-7b-1gpu",
        LLAMA,
        "llama3-70b-8xh800",
        "qwen3-30b-a3b-1xh800",
        "tiny-emulated",
    )
    for name in profile_names():
        assert profile(name).name == name
        assert all(profile(name).source.values())


@pytest.mark.parametrize("length", [1, 512, 8192, 131_072])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_llama_prefill_equals_the_paper_formula(length: int, share: float) -> None:
    prefix = int(length * share)
    c = prefill_coefficients(profile(LLAMA), mfu=0.5)
    expected = (paper_flops(length) - paper_flops(prefix)) / (8 * 312e12 * 0.5)
    assert prefill_seconds(*c, length, prefix) == pytest.approx(expected, rel=1e-12)
    assert prefill_flops(profile(LLAMA), length) == pytest.approx(paper_flops(length), rel=1e-12)


def test_llama_figures() -> None:
    p = profile(LLAMA)
    assert p.kv_bytes_per_token == 320 * 1024
    assert p.flops_per_s == 8 * 312e12
    assert (p.host_bytes_per_s, p.nic_bytes_per_s) == (128e9, 100e9)
    c0, c1, c2 = prefill_coefficients(p, mfu=0.5)
    assert (c0, c1, c2) == pytest.approx((0.0, 9.46407e-5, 2.10051e-9), rel=1e-5)


def test_a_mixture_of_experts_counts_active_weights_only() -> None:
    p = profile("qwen3-30b-a3b-1xh800")
    d, heads_width, kv_width, expert = 2048, 4096, 512, 768
    weights = 2 * d * heads_width + 2 * d * kv_width + 8 * 3 * d * expert + 128 * d
    assert p.linear_flops * d**2 == 2 * weights
    assert p.kv_bytes_per_token == 2 * 48 * kv_width * 2
    assert p.attention_flops * d == 4 * heads_width


def test_coefficients_scale_with_mfu_and_speed() -> None:
    p = profile("generic-7b-1gpu")
    c = np.array(prefill_coefficients(p))
    assert prefill_coefficients(p, speed=0.5) == pytest.approx(2 * c)
    assert prefill_coefficients(p, mfu=0.25)[1:] == pytest.approx(2 * c[1:])
    assert tbt_coefficients(p, speed=2.0) == pytest.approx(np.array(tbt_coefficients(p)) / 2)


@pytest.mark.parametrize(("field", "kw"), [("mfu", {"mfu": 1.5}), ("mfu", {"mfu": 0.0})])
def test_impossible_mfu_is_refused(field: str, kw: dict[str, float]) -> None:
    with pytest.raises(Invalid, match=field):
        prefill_coefficients(profile(LLAMA), **kw)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_impossible_speed_is_refused(speed: float) -> None:
    with pytest.raises(Invalid, match="speed"):
        prefill_coefficients(profile(LLAMA), speed=speed)
    with pytest.raises(Invalid, match="speed"):
        tbt_coefficients(profile(LLAMA), speed=speed)


def test_seconds_take_arrays() -> None:
    length, prefix = np.array([10.0, 20.0]), np.array([0.0, 20.0])
    ones = np.ones(2)
    assert prefill_seconds(ones, ones, ones, length, prefix).tolist() == [111.0, 1.0]
    assert tbt_seconds(ones, 2 * ones, 3 * ones, length, prefix).tolist() == [21.0, 101.0]


def test_tbt_is_the_roofline_of_weights_kv_and_compute() -> None:
    d0, d1, d2 = tbt_coefficients(profile(LLAMA))
    memory = 8 * 2.039e12 * 0.6
    assert d0 == pytest.approx(0.005 + 141e9 / memory)
    assert d1 == pytest.approx(80 * 22 * 8192**2 / (8 * 312e12 * 0.5))
    assert d2 == pytest.approx(327_680 / memory)


def shipped(name: str) -> dict[str, object]:
    text = (resources.files("core.plan") / "profiles" / f"{name}.json").read_bytes()
    loaded: dict[str, object] = json.loads(text)
    return loaded


def test_measured_coefficients_replace_the_analytic_ones() -> None:
    data = shipped(LLAMA) | {
        "prefill_measured": [0.1, 2e-4, 3e-9],
        "tbt_measured": [0.01, 1e-4, 1e-8],
    }
    p = profile_from_json(json.dumps(data))
    assert prefill_coefficients(p) == (0.1, 2e-4, 3e-9)
    assert prefill_coefficients(p, speed=2.0) == (0.05, 1e-4, 1.5e-9)
    assert tbt_coefficients(p) == (0.01, 1e-4, 1e-8)
    assert prefill_coefficients(p, mfu=0.5) == prefill_coefficients(profile(LLAMA), mfu=0.5)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"mfu": 2}, "mfu"),
        ({"layers": 0}, "layers"),
        ({"gpu_flops": "fast"}, "gpu_flops"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_profile_names_the_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid, match=field):
        profile_from_json(json.dumps(shipped(LLAMA) | change))


def test_an_unknown_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match=r"'nope'.*llama3-70b-8xa800"):
        profile("nope")


def observed_prefill(
    fit: PrefillFit, c: tuple[float, float, float], *, count: int, noise: float = 0.0, seed: int = 1
) -> None:
    rng = seeded(seed)
    for _ in range(count):
        length = int(10 ** rng.uniform(2, 5))
        prefix = int(length * rng.random()) if rng.random() < 0.5 else 0
        seconds = prefill_seconds(*c, length, prefix) * (1 + rng.uniform(-noise, noise))
        fit.observe(length, prefix, seconds)


def test_a_fit_recovers_exact_coefficients() -> None:
    c = (0.02, 9e-5, 2e-9)
    fit = PrefillFit()
    observed_prefill(fit, c, count=100)
    assert fit.ready
    assert fit.coefficients() == pytest.approx(c, rel=1e-6)
    assert fit.error < 1e-6


def test_a_fit_beats_a_wrong_prior_on_held_out_observations() -> None:
    fit = PrefillFit()
    observed_prefill(fit, (0.02, 9e-5, 2e-9), count=400, noise=0.2)
    assert fit.coefficients() == pytest.approx((0.02, 9e-5, 2e-9), rel=0.15)
    assert 0.05 < fit.error < 0.15
    assert fit.error_of((0.0, 4e-5, 1e-9)) > 0.4


def test_stalls_do_not_bend_the_fit() -> None:
    c = (0.02, 9e-5, 2e-9)
    fit = PrefillFit()
    observed_prefill(fit, c, count=200, noise=0.05)
    for _ in range(10):
        fit.observe(5000, 0, 60.0)
    assert fit.coefficients() == pytest.approx(c, rel=0.15)


def test_a_fit_forgets() -> None:
    fit = PrefillFit(window=64)
    observed_prefill(fit, (0.02, 9e-5, 2e-9), count=300)
    observed_prefill(fit, (0.01, 3e-5, 1e-9), count=100)
    assert fit.coefficients() == pytest.approx((0.01, 3e-5, 1e-9), rel=1e-6)
    assert fit.observations == 400


def test_coefficients_are_never_negative() -> None:
    fit = PrefillFit()
    rng = seeded(5)
    for _ in range(200):
        length = rng.randrange(100, 10_000)
        fit.observe(length, 0, 0.5 + rng.random() - length * 3e-5)
    assert min(fit.coefficients()) >= 0


def test_ready_needs_enough_and_spread_observations() -> None:
    fit = PrefillFit()
    assert not fit.ready
    assert math.isnan(fit.error)
    assert fit.coefficients() == (0.0, 0.0, 0.0)
    for _ in range(200):
        fit.observe(1000, 0, 0.1)
    assert not fit.ready
    few = PrefillFit()
    observed_prefill(few, (0.02, 9e-5, 2e-9), count=20)
    assert not few.ready


@pytest.mark.parametrize(
    ("length", "prefix", "seconds"),
    [
        (10, 11, 1.0),
        (10, -1, 1.0),
        (10, 0, 0.0),
        (10, 0, -1.0),
        (10, 0, math.nan),
        (10, 0, math.inf),
    ],
)
def test_impossible_observations_are_ignored(length: int, prefix: int, seconds: float) -> None:
    fit = PrefillFit()
    fit.observe(length, prefix, seconds)
    assert fit.observations == 0


def test_a_tbt_fit_recovers_the_roofline() -> None:
    d = tbt_coefficients(profile("generic-7b-1gpu"))
    fit, rng = TbtFit(), seeded(2)
    for _ in range(200):
        batch = rng.randrange(1, 64)
        kv = sum(rng.randrange(100, 4000) for _ in range(batch))
        fit.observe(batch, kv, tbt_seconds(*d, batch, kv))
    assert fit.ready
    assert fit.coefficients() == pytest.approx(d, rel=1e-5)
