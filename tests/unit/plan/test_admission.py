"""Admission by predicted limits, early rejection, classes, Retry-After."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.plan.admission import (
    Forecast,
    class_share,
    judge,
    judged_tbt_s,
    tbt_drain_s,
    ttft_drain_s,
)
from core.tunables import Admission, Tunables

RULES = Tunables().admission
FINE = Forecast(ttft_s=5.0, queue_s=4.0, tbt_now_s=0.05, tbt_then_s=0.06, tbt_floor_s=0.02)
LIMITS: dict[str, Any] = {"ttft_slo_s": 10.0, "tbt_slo_s": 0.1, "load": 0.5}


def test_what_keeps_both_limits_is_admitted() -> None:
    assert judge(FINE, RULES, **LIMITS) is None
    at_the_limit = replace(FINE, ttft_s=10.0, tbt_then_s=0.1)
    assert judge(at_the_limit, RULES, **LIMITS) is None


def test_a_late_first_token_is_refused_with_the_time_until_the_queue_drains() -> None:
    out = judge(replace(FINE, ttft_s=13.0, queue_s=9.0), RULES, **LIMITS)
    assert out is not None
    assert (out.status, out.code, out.predicted_s, out.limit_s) == (
        429,
        "predicted_ttft_slo",
        13.0,
        10.0,
    )
    assert out.retry_after_s == pytest.approx(3.0)
    assert "13 s" in out.message
    assert "10 s" in out.message
    assert "even without a queue" not in out.message


def test_a_prompt_that_is_too_slow_by_itself_is_told_so() -> None:
    out = judge(replace(FINE, ttft_s=15.0, queue_s=1.0), RULES, **LIMITS)
    assert out is not None
    assert out.retry_after_s == pytest.approx(1.0)
    assert out.message.endswith("even without a queue")


def test_retry_after_is_capped() -> None:
    long = replace(FINE, ttft_s=5000.0, queue_s=4999.0)
    out = judge(long, RULES, **LIMITS)
    assert out is not None
    assert out.retry_after_s == RULES.retry_after_max_s


def test_early_rejection_looks_at_the_end_of_the_prefill() -> None:
    later = replace(FINE, tbt_now_s=0.05, tbt_then_s=0.15)
    now = replace(FINE, tbt_now_s=0.15, tbt_then_s=0.05)
    late_rules = replace(RULES, early_rejection=False)
    assert judge(later, RULES, **LIMITS) is not None
    assert judge(now, RULES, **LIMITS) is None
    assert judge(later, late_rules, **LIMITS) is None
    assert judge(now, late_rules, **LIMITS) is not None
    unknown = replace(now, tbt_then_s=None)
    assert judged_tbt_s(unknown, RULES) == 0.15


def test_slow_tokens_are_refused_with_the_time_until_the_batch_shrinks() -> None:
    slow = replace(FINE, tbt_then_s=0.18, tbt_floor_s=0.02, decode_s=10.0)
    out = judge(slow, RULES, **LIMITS)
    assert out is not None
    assert out.code == "predicted_tbt_slo"
    assert out.retry_after_s == pytest.approx(10.0 * 0.08 / 0.16)
    assert "180 ms" in out.message
    assert "100 ms" in out.message


def test_slack_stretches_the_limits() -> None:
    over = replace(FINE, ttft_s=14.0, tbt_then_s=0.14)
    assert judge(over, replace(RULES, ttft_slack=1.5, tbt_slack=1.5), **LIMITS) is None
    assert judge(over, replace(RULES, ttft_slack=1.5), **LIMITS) is not None


def test_off_admits_everything() -> None:
    hopeless = replace(FINE, ttft_s=float("inf"), tbt_now_s=9.0, tbt_then_s=9.0)
    assert judge(hopeless, replace(RULES, mode="off"), **LIMITS) is None


def test_lower_classes_are_shed_first_as_load_grows() -> None:
    f = replace(FINE, ttft_s=7.0)

    def admitted(priority: int, load: float) -> bool:
        limits = LIMITS | {"load": load}
        return judge(f, RULES, **limits, priority=priority, top_priority=2) is None

    assert [admitted(p, 0.0) for p in (0, 1, 2)] == [True, True, True]
    assert [admitted(p, 0.8) for p in (0, 1, 2)] == [False, True, True]
    assert [admitted(p, 1.0) for p in (0, 1, 2)] == [False, True, True]


def test_class_share_by_its_rule() -> None:
    def share(priority: int, load: float, top: int = 2) -> float:
        return class_share(priority, RULES, top_priority=top, load=load)

    assert share(2, 1.0) == share(3, 1.0) == share(0, 0.0) == 1.0
    assert share(1, 1.0) == pytest.approx(0.8)
    assert share(0, 0.5) == pytest.approx(0.8)
    assert share(-50, 1.0) == RULES.priority_share_min
    assert share(0, 7.0) == share(0, 1.0)
    assert share(-1, 1.0, top=0) == pytest.approx(0.8)


def test_drain_times() -> None:
    assert ttft_drain_s(12.0, 10.0, queue_s=5.0) == pytest.approx(2.0)
    assert ttft_drain_s(12.0, 10.0, queue_s=1.0) == 1.0
    assert ttft_drain_s(9.0, 10.0, queue_s=5.0) == 0.0
    assert tbt_drain_s(0.2, 0.1, floor_s=0.0, decode_s=8.0) == pytest.approx(4.0)
    assert tbt_drain_s(0.2, 0.1, floor_s=0.15, decode_s=8.0) == 8.0
    assert tbt_drain_s(0.2, 0.1, floor_s=0.2, decode_s=8.0) == 0.0


seconds = st.floats(0, 100)


@given(
    ttft=seconds,
    queue_share=st.floats(0, 1),
    tbt=seconds,
    load=st.floats(0, 1),
    priority=st.integers(-3, 3),
    slo=st.floats(0.1, 50),
    mode=st.sampled_from(["reject", "off"]),
)
@settings(max_examples=200, deadline=None)
def test_refusals_are_consistent(
    ttft: float,
    queue_share: float,
    tbt: float,
    load: float,
    priority: int,
    slo: float,
    mode: str,
) -> None:
    f = Forecast(ttft_s=ttft, queue_s=ttft * queue_share, tbt_now_s=tbt, decode_s=5.0)
    rules = Admission(mode=mode)
    limits: dict[str, Any] = {"ttft_slo_s": slo, "tbt_slo_s": slo, "top_priority": 3}
    out = judge(f, rules, **limits, load=load, priority=priority)
    lower = judge(f, rules, **limits, load=load, priority=priority - 1)
    busier = judge(f, rules, **limits, load=1.0, priority=priority)
    if out is None:
        assert mode == "off" or (ttft <= slo and tbt <= slo)
    else:
        assert out.predicted_s > out.limit_s
        assert out.limit_s <= slo
        assert 0 <= out.retry_after_s <= rules.retry_after_max_s
        assert lower is not None
        assert busier is not None
