"""The Lab's axes, rows, words and charts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from dashboard_samples import NOON

from core import wire
from dashboard.lab import figures as lab_figures
from dashboard.lab import models as lm
from dashboard.parts.theme import LIGHT

ALPHA = wire.TunableView(path="linear.alpha", value=0.5, default=0.5, low=0.0, high=1.0)
COUNT = wire.TunableView(path="smg_cache_aware.spread_max", value=32, default=32, low=0, high=1000)
FLAG = wire.TunableView(
    path="fetch.enabled", value=True, default=True, choices=[False, True]
)  # fmt: skip


def point(label: str, **more: object) -> wire.LabPoint:
    given: dict[str, object] = {
        "label": label, "policy": "linear", "live": label == "live",
        "figures": {"ttft_mean_s": 1.0, "hit": 0.5}, "ttft_curve_s": [0.1 * i for i in range(200)],
        **more,
    }  # fmt: skip
    return wire.LabPoint.model_validate(given)


def job(*points: wire.LabPoint, **more: object) -> wire.LabJob:
    given: dict[str, object] = {
        "id": "lab-1", "state": "done", "method": "simulate", "source": "shipped", "done": 3,
        "total": 3, "created_at": NOON, "started_at": NOON, "base": 4, "requests": 50,
        "ended_at": NOON + timedelta(seconds=8), "points": list(points), **more,
    }  # fmt: skip
    return wire.LabJob.model_validate(given)


@pytest.mark.parametrize(
    ("text", "item", "values"),
    [("0.1:0.5:0.2", ALPHA, [0.1, 0.3, 0.5]), ("0.2, 0.4", ALPHA, [0.2, 0.4]),
     ("8:16:8", COUNT, [8, 16]), ("off, on", FLAG, [False, True])],
)  # fmt: skip
def test_axes_are_read_from_text(text: str, item: wire.TunableView, values: list[object]) -> None:
    assert lm.axis_values(text, item) == (values, "")
    assert [type(v) for v in values] == [type(v) for v in lm.axis_values(text, item)[0]]


@pytest.mark.parametrize(
    ("text", "item", "wrong"),
    [("0.1:0.5", ALPHA, "expected"), ("0:9:1", ALPHA, "outside"), ("", ALPHA, "no value"),
     ("0:1:0.001", ALPHA, "at most 50"), ("perhaps", FLAG, "expected"), ("1:inf:1", ALPHA, "ex")],
)  # fmt: skip
def test_bad_axes_are_named(text: str, item: wire.TunableView, wrong: str) -> None:
    _, said = lm.axis_values(text, item)
    assert said.startswith(item.path)
    assert wrong in said


def test_runs_count_the_live_configuration_and_seeds() -> None:
    assert lm.runs_of("simulate", 2, {"a": [1, 2], "b": [1, 2, 3]}, 2) == 18
    assert lm.runs_of("rescore", 2, {}, 5) == 3


def test_points_read_live_first_then_best_and_say_what_they_gain() -> None:
    fast = point("fast", figures={"ttft_mean_s": 0.5, "hit": 0.4, "rejected": 0.0}, pareto=True,
                 params={"linear.alpha": 0.9})  # fmt: skip
    found = job(point("slow", figures={"ttft_mean_s": 2.0, "hit": 0.1}), fast, point("live"),
                best="fast")  # fmt: skip
    rows = lm.point_rows(found)
    assert [r["Configuration"] for r in rows] == ["live", "fast", "slow"]
    assert rows[1]["Mark"] == "★ best ◆ Pareto"
    assert rows[1]["TTFT against live"] == "better: lower by 50.0 %"
    assert lm.best_words(found) == "fast: mean TTFT 500 ms against 1 s live."
    assert "50 requests simulated under 3 configurations in 8 s" in lm.job_words(found)
    draft = lm.draft_of(fast, found)
    assert (draft.base, draft.changes) == (4, {"linear.alpha": 0.9})


def test_the_front_is_of_the_two_figures_that_are_shown() -> None:
    def at(label: str, ttft_s: float, hit: float) -> wire.LabPoint:
        figures = {"ttft_mean_s": ttft_s, "hit": hit, "imbalance": 9 - ttft_s}
        return point(label, figures=figures, pareto=True)

    points = [at("best", 1, 0.5), at("twin", 1, 0.5), at("worst", 3, 0.4), at("most", 2, 0.9)]
    assert [p.label for p in lm.front_of(points, "hit", "ttft_mean_s")] == ["best", "twin", "most"]
    by_balance = [p.label for p in lm.front_of(points, "imbalance", "ttft_mean_s")]
    assert by_balance == ["worst", "most", "best", "twin"]
    found = lab_figures.pareto(job(*points), LIGHT, x="hit", y="ttft_mean_s")
    assert [len(t["x"]) for t in found["data"]] == [1, 3]


def test_charts_say_their_content_in_words_and_stay_bounded() -> None:
    many = [point(f"p{i}") for i in range(12)]
    curves = lab_figures.curves(many, LIGHT)
    assert len(curves["data"]) == lab_figures.CURVES_MAX
    assert "p0: half within 10 s" in curves["layout"]["meta"]
    found = job(point("live"), point("a", pareto=True), point("b", figures={"hit": 0.2}))
    figure = lab_figures.pareto(found, LIGHT, x="hit", y="ttft_mean_s")
    assert [t["name"] for t in figure["data"]] == ["Pareto front of these two", "live"]
    assert "a: 50.0 %, 1 s" in figure["layout"]["meta"]
    assert lm.curve_rows(many)[0]["50 %"] == "10 s"
