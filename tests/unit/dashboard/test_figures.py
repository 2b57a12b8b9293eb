from datetime import UTC
from zoneinfo import ZoneInfo

import plotly.graph_objects as go
import pytest
from dashboard_samples import node, point, quantiles, selection, series

from dashboard.decisions import figures as decision_figures
from dashboard.decisions.models import Segment
from dashboard.parts import figures
from dashboard.parts.theme import DARK, LIGHT, palette, style_sheet

POINTS = series(
    point(0, load={"a": 0.1, "b": 0.9}, requests=10, rejected=2, per_node={"a": 8}),
    point(1, load={"a": 0.3}, ttft_s=quantiles(4.0), tbt_s=quantiles(0.05), hit_achieved=0.5),
)


@pytest.mark.parametrize("p", [LIGHT, DARK])
@pytest.mark.parametrize("make", [figures.slo_ratio, figures.reuse, figures.traffic])
def test_plotly_accepts_every_chart(make, p) -> None:
    for data in (POINTS, series()):
        go.Figure(make(data, p, zone=UTC))


def test_heat_puts_the_busiest_on_top_and_leaves_gaps() -> None:
    figure = figures.load_heat(POINTS, ["a", "b", "c"], LIGHT, zone=UTC, span=False)
    go.Figure(figure)
    trace = figure["data"][0]
    assert trace["y"] == ["c", "a", "b"]  # drawn upwards
    assert trace["z"][2] == [90, None]
    assert "b 90" in figure["layout"]["meta"]


def test_heat_has_room_for_the_names_of_its_rows_where_it_shows_them() -> None:
    def left(*names: str) -> int:
        figure = figures.load_heat(POINTS, names, LIGHT, zone=UTC, span=False)
        return int(figure["layout"]["margin"]["l"])

    assert left("a") < left("prefill-10") < left("prefill-10.rack-7.example")
    assert left(*(f"prefill-{n}" for n in range(figures.NAMED_MAX + 1))) == 16


def test_heat_of_stored_minutes_counts_requests() -> None:
    figure = figures.load_heat(POINTS, ["a", "b"], LIGHT, zone=UTC, span=True)
    assert figure["data"][0]["z"] == [[0, 0], [8, 0]]
    assert figure["data"][0]["zmax"] == 8


def test_times_on_axes_follow_the_zone() -> None:
    figure = figures.reuse(POINTS, LIGHT, zone=ZoneInfo("Asia/Tokyo"))
    assert figure["data"][0]["x"][0] == "2026-03-01T21:00:00"


def test_latency_is_a_share_of_its_limit_and_the_limit_is_in_view() -> None:
    figure = figures.slo_ratio(POINTS, LIGHT, zone=UTC)
    by_name = {t["name"]: t["y"] for t in figure["data"]}
    assert by_name["TTFT p99"] == [None, 2.0]
    assert by_name["TBT p50"] == [None, 0.25]
    assert by_name["limit"] == [1, 1]
    assert "range" not in figure["layout"]["yaxis"]  # it would undo the reader's zoom


def test_traffic_is_per_second_and_adds_up_to_the_requests() -> None:
    bars = {t["name"]: t["y"] for t in figures.traffic(POINTS, LIGHT, zone=UTC)["data"]}
    assert bars["placed"][0] + bars["refused"][0] == pytest.approx(10 / 5)


def test_terms_are_stacked_only_where_they_add_up() -> None:
    additive = selection(("a", {"queue": 1.0, "prefill": 2.0}, 3.0), ("b", {"queue": 4.0}, 4.0))
    product = selection(("a", {"x": 2.0, "y": 3.0}, 6.0))
    names = [t["name"] for t in decision_figures.candidates(additive, LIGHT)["data"]]
    assert names == ["queue", "prefill"]
    assert [t["name"] for t in decision_figures.candidates(product, LIGHT)["data"]] == ["total"]
    go.Figure(decision_figures.candidates(additive, DARK))


def test_waterfall_shows_a_limit_only_when_it_is_near() -> None:
    parts = [Segment("predicted", "queue", 0.0, 0.1), Segment("observed", "first token", 0.0, 0.4)]
    near = decision_figures.waterfall(parts, LIGHT, limit_s=0.5)
    far = decision_figures.waterfall(parts, LIGHT, limit_s=30.0)
    assert [s["x0"] for s in near["layout"]["shapes"]] == [500.0]
    assert far["layout"]["shapes"] == []
    go.Figure(near)


def test_a_thousand_nodes_stay_a_bounded_picture() -> None:
    names = [node(f"n{i}").id for i in range(1000)]
    figure = figures.load_heat(POINTS, names, LIGHT, zone=UTC, span=False)
    assert len(figure["data"][0]["y"]) == figures.HEAT_ROWS_MAX
    assert figure["layout"]["height"] <= 460


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("p", [LIGHT, DARK])
def test_words_can_be_read_on_page_and_panel(p) -> None:
    for colour in (p.text, p.muted, p.ok, p.warn, p.bad):
        assert contrast(colour, p.page) >= 4.5
        assert contrast(colour, p.panel) >= 4.5


@pytest.mark.parametrize("p", [LIGHT, DARK])
def test_heat_is_ordered_by_brightness_alone(p) -> None:
    steps = [luminance(c) for c in p.heat]
    assert steps == sorted(steps, reverse=p is LIGHT)


def test_the_palette_follows_the_theme() -> None:
    assert palette("dark") is DARK
    assert palette(None) is LIGHT
    assert DARK.panel in style_sheet(DARK)
