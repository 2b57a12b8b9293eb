"""What the Cache page shows, from the index's tree, prefixes and migrations."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest
from dashboard_samples import NOON, node

from core import wire
from core.domain import Medium, Role, Trust
from core.wire import MigrationView
from dashboard.cache import figures as cache_figures
from dashboard.cache import models as cm
from dashboard.parts.theme import DARK, LIGHT

ROOT, A, B, C = ("0" * 15 + n for n in "1abc")


def cell(key: str, parent: str = "", **more: object) -> wire.TreeCellView:
    given = {"key": key, "parent": parent, "tokens": 320, "blocks": 10, "holders": 1, **more}
    return wire.TreeCellView.model_validate(given)


def tree() -> list[wire.TreeCellView]:
    return [
        cell(ROOT, label="demo, 32-token blocks", tokens=0, blocks=0, holders=0),
        cell(A, ROOT, hits=1200.0, age_s=3.0, holders=5, tokens=640),
        cell(B, A, hits=2.0, age_s=900.0, holders=2),
        cell(C, A),
        cell(f"others:{A}", A, label="others (7)", tokens=0, holders=0),
        cell("f" * 16, "e" * 16),
    ]


def test_colours_say_hits_age_or_replicas_in_five_classes() -> None:
    _, a, b, c, *_ = tree()
    assert [cm.colour_class(x, "hits") for x in (a, b, c)] == [4, 1, 0]
    assert [cm.colour_class(x, "replicas") for x in (a, b, c)] == [4, 2, 1]
    assert [cm.colour_class(x, "reuse age") for x in (a, b, c)] == [4, 2, 0]
    ages = [0, 60, 600, 3600]
    assert [cm.colour_class(cell(A, age_s=s), "reuse age") for s in ages] == [4, 3, 2, 1]
    for p in (LIGHT, DARK):
        assert all(len(steps) == len(p.heat) for steps in cm.SCALES.values())


def test_the_icicle_is_closed_and_has_areas_for_what_was_left_out() -> None:
    for p in (LIGHT, DARK):
        figure = cache_figures.icicle(tree(), "hits", p)
        (trace,) = figure["data"]
        assert trace["ids"] == [ROOT, A, B, C, f"others:{A}"]
        assert trace["parents"] == ["", ROOT, A, A, A]
        assert trace["values"] == [0, 640, 320, 320, 320]
        assert "7 more that were left out" in trace["hovertext"][-1]
        assert "on 5 nodes" in trace["hovertext"][1]
        lengths = {len(trace[name]) for name in ("ids", "labels", "values", "hovertext")}
        assert lengths == {len(trace["marker"]["colors"])} == {5}
        assert figure["layout"]["meta"].startswith("3 runs of blocks, coloured by hits")


def test_several_trees_get_a_common_start() -> None:
    cells = [*tree()[:2], cell(B, label=B, tokens=0), cell(C, B)]
    (trace,) = cache_figures.icicle(cells, "replicas", LIGHT)["data"]
    assert trace["ids"][0] == "start"
    assert trace["parents"][:3] == ["", "start", ROOT]
    assert len(trace["marker"]["colors"]) == len(trace["ids"]) == 5


def test_text_on_a_fill_can_be_read() -> None:
    assert cache_figures.ink("#ffffff") == "#000000"
    assert cache_figures.ink("#0a2440") == "#ffffff"


def test_a_click_goes_down_up_or_to_the_parent_of_the_others() -> None:
    cells = tree()
    assert cm.went_to([], cells, B) == [ROOT, A, B]
    assert cm.went_to([], cells, f"others:{A}") == [ROOT, A]
    below = [cell(A, label=A, tokens=0), cell(B, A)]
    assert cm.went_to([ROOT, A], below, B) == [ROOT, A, B]
    assert cm.went_to([ROOT, A], below, A) == [ROOT]
    assert cm.went_to([A], cells, "unknown") == [A]


def test_the_breadcrumb_survives_the_address_and_nonsense_in_it() -> None:
    assert cm.trail_of(cm.trail_text([ROOT, A])) == [ROOT, A]
    assert cm.trail_of("x." + A.upper() + ".." + "1" * 17) == [A]
    assert len(cm.trail_of(cm.trail_text([A] * 99))) == cm.TRAIL_MAX
    names = cm.root_names(tree())
    assert cm.crumb(ROOT, names) == "demo, 32-token blocks"
    assert cm.crumb(A, names) == "000000…"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("hello", {"prompt": "hello"}),
        ("[1, 2, 3]", {"prompt": [1, 2, 3]}),
        ("[1, true]", {"prompt": "[1, true]"}),
        ('[{"role": "user", "content": "x"}]', {"messages": [{"role": "user", "content": "x"}]}),
        ('{"model": "m", "prompt": "x"}', {"prompt": "x"}),
        ('{"a": 1}', {"prompt": '{"a": 1}'}),
        ("12", {"prompt": "12"}),
        ("[]", {"prompt": "[]"}),
    ],
)
def test_what_was_pasted_is_told_apart(text: str, fields: dict[str, object]) -> None:
    assert cm.prompt_of(text) == fields


def test_a_key_is_recognised() -> None:
    assert cm.key_of(f" 0x{A.upper()} ") == A
    assert cm.key_of("hello") is None


def test_a_look_up_is_told_in_a_sentence() -> None:
    nothing = wire.LookupView(model="m", tokens=90, exact=False, source="text", chains=[], nodes=[])
    assert cm.lookup_notice(nothing).level == "none"
    assert "No tokenizer" in cm.lookup_notice(nothing).text
    matches = [
        wire.NodeMatchView(node=n, tokens=64, share=0.7, eligible=n == "a") for n in ("a", "b")
    ]
    found = nothing.model_copy(update={"nodes": matches, "exact": True})
    assert cm.lookup_notice(found).title == "The longest match: 64 tokens (70 %) on a"
    assert [r["Takes requests"] for r in cm.match_rows(found)] == ["✓ yes", "✕ no"]


def test_a_prefix_says_who_holds_it_and_what_its_reuse_saves() -> None:
    holder = wire.HolderView(node="a", medium=Medium.CPU, trust=Trust.EXACT, eligible=True)
    facts = wire.PrefixView(
        key=A, listed=True, holders=[holder], block_size=16, depth_tokens=100, rate_per_s=2.0
    )
    tiles = cm.prefix_tiles(facts)
    assert (tiles[0].level, tiles[0].word) == ("warn", "one copy")
    assert tiles[3].value == "200/s"
    assert cm.prefix_tiles(facts.model_copy(update={"holders": []}))[0].level == "bad"
    assert cm.holder_rows(facts)[0]["Cache signal"] == "✓ exact"
    fleet = [node("a"), node("b", role=Role.PREFILL), node("c", role=Role.DECODE), node("d")]
    assert cm.copy_targets(fleet, facts) == ["b", "d"]  # c would be refused: it decodes
    assert "Every node" in cm.no_copy(facts, [])
    assert cm.no_copy(facts, ["b"]) == ""  # only trying tells
    assert cm.no_copy(facts.model_copy(update={"copyable": True}), ["b"]) == ""
    assert "dry run suffices" in cm.no_copy(facts.model_copy(update={"copyable": False}), ["b"])


def test_migrations_are_told_with_state_author_and_reason() -> None:
    move = MigrationView(
        id="m1", prefix=A, tokens=640, source="a", target="b", state="failed", how="warm_up",
        planned_at=NOON, error="refused", manual=True,
    )  # fmt: skip
    (row,) = cm.migration_rows([move], UTC)
    assert (row["State"], row["How"], row["By"]) == ("✕ failed", "warm up", "an operator")
    assert (row["Why"], row["Planned"]) == ("refused", "2026-03-01 12:00:00")
    assert cm.held_back_words({"not_hot": 3, "odd_one": 1}) == "3 not hot enough; 1 odd one"


def test_replication_is_a_ratio_with_gaps() -> None:
    points = [
        wire.ReplicationPoint(at=NOON, blocks=0, copies=0),
        wire.ReplicationPoint(at=NOON, blocks=100, copies=150),
    ]
    found = wire.Replication(step_s=30.0, points=points)
    figure = cache_figures.replication(found, LIGHT, zone=UTC)
    assert figure["data"][0]["y"] == [None, 1.5]
    assert figure["layout"]["meta"] == "1.5 copies of a block on average now"
    assert cache_figures.replication_rows(found)[0]["Copies of a block"] == 1.5
    steps = (0, 30, 60, 3_600, 3_630)
    later = [
        wire.ReplicationPoint(at=NOON + timedelta(seconds=s), blocks=100, copies=150) for s in steps
    ]
    broken = cache_figures.replication(wire.Replication(step_s=30.0, points=later), LIGHT, zone=UTC)
    assert broken["data"][1]["y"] == [100, 100, 100, None, 100, 100]
    hot = wire.HotPrefixes(
        prefixes=[
            wire.HotPrefixView(key=k, blocks=1, tokens=16, rate_per_s=1.0, holders=h)
            for k, h in ((A, ["a", "b"]), (B, []))
        ]
    )
    bars = cache_figures.holders_chart(hot, LIGHT)
    assert bars["data"][0]["y"] == [1, 0, 1]
    assert bars["layout"]["meta"] == "1 of 2 hot prefixes are held by nobody"
