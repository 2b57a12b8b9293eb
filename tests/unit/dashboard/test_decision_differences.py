"""What is different about a set of decisions, and one decision weighed again."""

from __future__ import annotations

from dashboard_samples import NOON

from core import wire
from dashboard.decisions import differences as dd
from dashboard.decisions import what_if_models as wi
from dashboard.decisions.reading import full_page
from dashboard.parts.theme import LIGHT


def row(i: int, **more: object) -> wire.DecisionRow:
    given: dict[str, object] = {
        "id": f"{i:024x}", "at": NOON, "request_id": f"r{i}", "model": "m", "tenant": "a",
        "policy": "linear", "revision": 1, "routed": True, "prompt_tokens": 1000,
        "prefill_node": "n1", "decode_node": "n1", "match_tokens": 900, **more,
    }  # fmt: skip
    return wire.DecisionRow.model_validate(given)


def test_the_most_divergent_values_come_first() -> None:
    selected = [row(i, prefill_node="n2", match_tokens=0) for i in range(20)]
    rest = [row(100 + i, prefill_node="n2" if i < 5 else "n1") for i in range(50)]
    found = dd.differences(selected, rest)
    assert {(d.dimension, d.value) for d in found[:2]} == {
        ("Cache hit", "none"), ("Cache hit", "75 % or more"),
    }  # fmt: skip
    node = next(d for d in found if d.value == "n2" and d.dimension == "Prefill node")
    assert (node.selected, node.rest) == (1.0, 0.1)
    assert "Tenant" not in {d.dimension for d in found}  # the same on both sides
    rows = dd.difference_rows(found)
    assert rows[0]["In words"] in ("▲ more often here", "▼ more seldom here")
    figure = dd.difference_figure(found, LIGHT)
    assert "Prefill node: n2: 100 % here, 10 % elsewhere" in figure["layout"]["meta"]
    medians = {r["Median of"]: r for r in dd.figure_rows(selected, rest)}
    hit = medians["Cache hit"]
    assert (hit["Selected"], hit["The rest"]) == ("0.0 %", "90.0 %")


def test_too_few_decisions_are_no_comparison() -> None:
    assert dd.differences([row(1)] * 4, [row(2)] * 50) == []
    assert dd.rest_of([row(1), row(2)], [row(2)]) == [row(1)]


def test_short_pages_are_filled_until_there_are_no_more() -> None:
    class Pages:
        asked: list[tuple[int, str | None]] = []

        def decisions(self, q: wire.DecisionQuery) -> wire.DecisionPage:
            self.asked.append((q.limit, q.cursor))
            step = len(self.asked)
            return wire.DecisionPage(rows=[row(step)], next=None if step == 3 else f"c{step}")

    pages = Pages()
    found = full_page(pages, wire.DecisionQuery(limit=10))  # type: ignore[arg-type]
    assert [r.id for r in found.rows] == [row(i).id for i in (1, 2, 3)]
    assert found.next is None
    assert pages.asked == [(10, None), (9, "c1"), (8, "c2")]


def test_a_decision_weighed_again_marks_what_was_and_what_would_be() -> None:
    def candidate(node: str, **more: object) -> wire.WhatIfCandidate:
        given: dict[str, object] = {
            "rank": 1, "node": node, "total": 0.123456, "ttft_s": 0.5, "match_tokens": 10,
            "terms": {"match": 0.1}, **more,
        }  # fmt: skip
        return wire.WhatIfCandidate.model_validate(given)

    told = wire.WhatIfView(
        id="x", base=3, policy="linear", changes={"linear.alpha": [0.5, 0.9]}, sense="max",
        moved=True, source="a", target="b", text="t",
        candidates=[candidate("b", chosen=True), candidate("a", recorded=True, rank=2)],
    )  # fmt: skip
    rows = wi.what_if_rows(told)
    assert [r["Mark"] for r in rows] == ["✓ would be chosen", "○ was chosen"]
    assert rows[0]["Total"] == 0.1235
    assert rows[0]["term: match"] == 0.1
    assert wi.tried_words(told) == ", with `linear.alpha` 0.5 → 0.9"
    assert wi.as_selection(told).candidates[0].chosen
