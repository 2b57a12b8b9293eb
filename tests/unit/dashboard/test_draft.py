"""Drafts of live parameters: kept in the address, checked, compared, put on a new revision."""

from __future__ import annotations

from core import wire
from dashboard.tuning import draft as dr
from dashboard.tuning.draft import Draft


def item(path: str, value: object, **more: object) -> wire.TunableView:
    return wire.TunableView.model_validate({"path": path, "value": value, "default": value, **more})


ALPHA = item("linear.alpha", 0.5, low=0.0, high=1.0, doc="weight of the matched share")
POLICY = item("policy", "linear")
GUARD = item("guard.enabled", True, choices=[False, True])
SLACK = item("admission.ttft_slack", 1.0, low=0.1, high=10.0, unit="ratio")
ITEMS = [POLICY, ALPHA, SLACK, GUARD]


def test_a_draft_survives_the_address() -> None:
    draft = Draft(7).put(ALPHA, 0.75).put(POLICY, "min_ttft").put(GUARD, False)
    text = dr.draft_text(draft)
    again, wrong = dr.parse_draft(text, 7, ITEMS)
    assert again == draft
    assert wrong == []


def test_what_an_address_gets_wrong_is_named_and_the_rest_kept() -> None:
    text = "linear.alpha:7;nope:1;guard.enabled:3;policy:min_ttft;linear.alpha:0.25"
    draft, wrong = dr.parse_draft(text, 1, ITEMS)
    assert draft.changes == {"policy": "min_ttft", "linear.alpha": 0.25}
    assert [w.split(":")[0] for w in wrong] == ["linear.alpha", "nope", "guard.enabled"]
    assert "0 to 1" in wrong[0]
    assert dr.complaint(ALPHA, True)  # true is no number
    for odd in ("NaN", "Infinity"):
        draft, wrong = dr.parse_draft(f"linear.alpha:{odd}", 1, ITEMS)
        assert not draft and "is not a number" in wrong[0]


def test_what_a_trial_changed_becomes_a_draft_on_the_live_revision() -> None:
    draft = dr.adopted({"linear.alpha": [0.5, 0.7], "guard.enabled": [True, False]}, 9)
    assert (draft.base, draft.changes) == (9, {"linear.alpha": 0.7, "guard.enabled": False})


def test_a_base_that_never_was_is_the_live_one() -> None:
    assert dr.parse_base("3", 7) == 3
    for odd in ("8", "", "-1", "x", "9" * 5000):
        assert dr.parse_base(odd, 7) == 7


def test_the_live_value_leaves_the_draft() -> None:
    draft = Draft(1).put(ALPHA, 0.7)
    assert draft
    assert not draft.put(ALPHA, 0.5)
    assert not Draft(1, {"guard.enabled": False}).put(GUARD, True)
    assert Draft(1).put(GUARD, False)


def test_dangerous_changes_are_named_and_those_no_trial_can_make() -> None:
    draft = Draft(1, {"policy": "x", "linear.alpha": 0.1, "guard.enabled": False})
    assert [d.split("`")[1] for d in dr.dangers(draft)] == ["policy", "guard.enabled"]
    assert dr.not_tried(draft) == ["guard.enabled"]
    rows = dr.diff_rows(draft, ITEMS)
    assert [r["Careful"] for r in rows] == ["▲ dangerous", "", "▲ dangerous"]
    assert (rows[2]["Live"], rows[2]["Draft"]) == ("on", "off")


def test_groups_begin_with_what_an_operator_needs() -> None:
    assert dr.groups(ITEMS, "linear") == ["policy", "linear", "admission", "guard"]
    draft = Draft(1, {"linear.alpha": 0.1})
    assert dr.group_title("linear", "linear", draft) == "Linear (live policy) · 1 drafted"
    assert dr.shown_items(ITEMS, "policy", "matched") == [ALPHA]
    assert dr.shown_items(ITEMS, "guard", "") == [GUARD]


def test_a_conflict_shows_both_diffs_and_the_draft_can_be_rebased() -> None:
    stale = wire.StaleDetail(
        message="x", base=3, live=4,
        yours={"linear.alpha": [0.5, 0.7], "policy": ["linear", "random"]},
        theirs={"linear.alpha": [0.5, 0.9], "admission.ttft_slack": [1.0, 2.0]},
    )  # fmt: skip
    rows = {r["Parameter"]: r for r in dr.conflict_rows(stale)}
    assert rows["linear.alpha"]["Conflict"] == "✕ both changed it"
    assert rows["linear.alpha"]["Theirs (revision 4)"] == "0.9"
    assert rows["policy"]["Theirs (revision 4)"] == "unchanged"
    assert rows["admission.ttft_slack"]["Yours (draft)"] == "unchanged"
    live = [item("linear.alpha", 0.7, low=0.0, high=1.0), POLICY]
    draft = dr.rebased(Draft(3, {"linear.alpha": 0.7, "policy": "random"}), 4, live)
    assert draft == Draft(4, {"policy": "random"})
