"""The Tuning page's rows and words."""

from __future__ import annotations

from datetime import timedelta

import pytest
from dashboard_samples import NOON, quantiles, series

from core import wire
from dashboard.parts.theme import LIGHT
from dashboard.tuning import figures as tuning_figures
from dashboard.tuning import models as tm


def preview(**more: object) -> wire.PreviewView:
    given: dict[str, object] = {
        "revision": 3, "decisions": 200, "left_out": 2, "moved": 50,
        "moves": [wire.MoveView(source=f"a{i}", target="b", count=20 - i) for i in range(15)],
        "before": wire.PreviewFigures(ttft_mean_s=1.0, hit=0.5, imbalance=1.2),
        "after": wire.PreviewFigures(ttft_mean_s=0.5, hit=0.4, imbalance=1.2),
        "examples": [], "effects": [],
        **more,
    }  # fmt: skip
    return wire.PreviewView.model_validate(given)


def test_preview_tiles_say_better_worse_and_unknown_in_words() -> None:
    tiles = {t.name: t for t in tm.preview_tiles(preview())}
    assert tiles["Decisions that move"].value == "25.0 %"
    assert tiles["TTFT, mean"].word == "better: lower by 50.0 %"
    assert (tiles["Cache hit"].level, tiles["Cache hit"].word) == (
        "warn",
        "worse: lower by 20.0 %",
    )
    assert tiles["Imbalance"].word == "about the same"
    assert tiles["TBT, mean"].word == "not known"


@pytest.mark.parametrize(
    ("before", "after", "up", "said"),
    [(0.0, 0.0, False, "about the same"), (0.0, 3.0, False, "worse: higher"),
     (0.0, 3.0, True, "better: higher"), (2.0, 1.0, False, "better: lower by 50.0 %")],
)  # fmt: skip
def test_verdicts(before: float, after: float, up: bool, said: str) -> None:
    assert tm.verdict(before, after, more_is_better=up)[1] == said


def test_the_moves_chart_is_bounded_and_says_the_rest() -> None:
    figure = tuning_figures.moves(preview(), LIGHT)
    assert len(figure["data"][0]["y"]) == tuning_figures.MOVES_SHOWN
    assert "21 more between other pairs" in figure["layout"]["meta"]


def test_constant_inputs_are_named() -> None:
    effect = wire.EffectView(
        path="linear.alpha", matters=False, changed=0, constant_inputs=["match_tokens"],
        text="cannot matter: match_tokens was equal",
    )  # fmt: skip
    row = tm.effect_rows(preview(effects=[effect]))[0]
    assert row["Constant input"] == "match_tokens"
    assert row["Matters"] == "○ no"


def test_before_and_after_takes_medians_and_leaves_the_step_between_out() -> None:
    points = [
        wire.SeriesPoint(
            at=NOON + timedelta(minutes=i), requests=10, ttft_s=quantiles(2.0 if i < 5 else 1.0)
        )
        for i in range(10)
    ]
    measured = series(*points).model_copy(update={"step_s": 60.0})
    rows = {r["Measure"]: r for r in tm.comparison_rows(measured, NOON + timedelta(minutes=4.5))}
    ttft = rows["TTFT p99"]
    assert (ttft["Before"], ttft["After"]) == ("2 s", "1 s")
    assert ttft["Change"] == "✓ better: lower by 50.0 %"
    assert ttft["Steps"] == "4 / 5"
    assert rows["TBT p99"]["Change"] == "too few steps to compare"


def test_revisions_and_what_waits_read_as_sentences() -> None:
    revision = wire.FullRevision(
        revision=4, base=3, at=NOON, author="ada", reason="less waiting", kind="guard",
        changes={f"linear.p{i}": [0.1, 0.2] for i in range(6)},
    )  # fmt: skip
    row = tm.revision_rows(wire.RevisionList(live=4, revisions=[revision]))[0]
    assert row["Kind"] == "● live · ▲ rolled back by the guard"
    assert str(row["Changes"]).endswith("and 2 more")
    waiting = wire.ScheduledView(
        id="1", created_at=NOON, due_at=NOON, action="revert", changes={"policy": "x"},
        state="pending",
    )  # fmt: skip
    done = waiting.model_copy(update={"id": "0", "state": "done"})
    rows = tm.scheduled_rows([done, waiting], NOON.tzinfo)  # type: ignore[arg-type]
    assert [r["State"] for r in rows] == ["◷ waits", "✓ done"]
    assert rows[0]["Act"] == "take back"


def test_the_guard_speaks() -> None:
    guard = wire.GuardView(
        enabled=True, state="watching", live=5, good=4, ends_in_s=60, objective=0.99
    )
    assert tm.guard_words(guard)[1] == "watching revision 5; would restore 4, 60 s left"
    assert tm.guard_words(guard.model_copy(update={"enabled": False}))[0] == "warn"


def test_the_canary_is_compared_in_units() -> None:
    measure = wire.ComparedView(
        name="ttft_s", live=0.5, candidate=0.25, low=-0.3, high=-0.2, verdict="better"
    )
    row = tm.canary_rows(wire.CanaryView(running=True, measures=[measure]))[0]
    assert (row["Measure"], row["Live"], row["Canary"]) == ("TTFT, mean", "500 ms", "250 ms")
    assert row["Difference, 95 %"] == "-300 ms to -200 ms"
