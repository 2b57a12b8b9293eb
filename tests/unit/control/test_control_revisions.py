"""Revisions: proposed, then adopted; stale bases with both diffs; schedules; old values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from core.control import schedule
from core.control.revisions import Book, Kind, Revision, StaleBase, from_record, values
from core.errors import Conflict, Invalid
from core.tunables import Tunables

AT = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
WHO = {"at": AT, "author": "ada", "reason": "try it"}


def start(**changes) -> Revision:
    return Revision(
        number=1,
        base=0,
        at=AT,
        author="conductor",
        reason="start",
        kind=Kind.START,
        tunables=Tunables().changed(changes),
        changes={},
    )


def changed(book: Book, changes, **more) -> Revision:
    made = book.change(changes, base=book.live.number, **WHO, **more)
    book.adopt(made)
    return made


def test_a_proposal_changes_nothing_until_it_is_adopted():
    book = Book(start())
    made = book.change({"policy": "linear", "alpha": 0.9}, base=1, **WHO)
    assert (made.number, made.base) == (2, 1) and book.live.number == 1
    assert made.changes == {"policy": ("min_ttft", "linear"), "linear.alpha": (0.5, 0.9)}
    book.adopt(made)
    assert book.live is made and book.live.tunables.linear.alpha == 0.9


def test_two_from_one_base_the_second_sees_both_diffs():
    book = Book(start())
    changed(book, {"linear.alpha": 0.9, "linear.beta": 0.2})
    with pytest.raises(StaleBase) as caught:
        book.change({"linear.alpha": 0.3, "slo.ttft_s": 5}, base=1, **WHO)
    error = caught.value
    assert isinstance(error, Conflict) and error.field == "base"
    assert error.yours == {"linear.alpha": (0.5, 0.3), "slo.ttft_s": (30.0, 5.0)}
    assert error.theirs == {"linear.alpha": (0.5, 0.9), "linear.beta": (0.5, 0.2)}
    assert "linear.alpha" in error.message


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"linear.alpha": 7}, "linear.alpha", "0..1"),
        ({"nope": 1}, "nope", "no tunable"),
        ({"policy": "nope"}, "policy", "unknown policy"),
        ({"linear.alpha": 0.5}, "changes", "already"),
        ({"weighted.load": 0.9}, "weighted", "sum to"),
    ],
)
def test_invalid_changes_name_field_and_bound(changes, field, text):
    book = Book(start())
    with pytest.raises(Invalid, match=text) as caught:
        book.change(changes, base=1, **WHO)
    assert caught.value.field == field
    assert book.live.number == 1


def test_rollback_is_a_new_revision_with_the_old_values():
    book = Book(start())
    first = book.live
    changed(book, {"linear.alpha": 0.9})
    back = book.restore(first, **WHO)
    assert (back.number, back.base, back.kind) == (3, 2, Kind.ROLLBACK)
    assert back.tunables == first.tunables and back.detail["restores"] == 1
    book.adopt(back)
    with pytest.raises(Invalid, match="already"):
        book.restore(first, **WHO)


def test_candidates_take_a_number_but_never_become_live():
    book = Book(start())
    candidate = changed(book, {"linear.alpha": 0.9}, kind=Kind.CANARY)
    assert candidate.number == 2 and book.live.number == 1
    made = changed(book, {"linear.beta": 0.1})
    assert (made.number, made.base) == (3, 1)
    assert made.tunables.linear.alpha == 0.5


def test_a_record_comes_back_as_it_was():
    book = Book(start())
    made = changed(book, {"policy": "linear", "alpha": 0.25}, detail={"until": "later"})
    assert from_record(made.record()) == made


def test_a_record_of_another_release_is_read_as_far_as_it_goes():
    record = start(**{"linear.alpha": 0.9}).record()
    kept = {p: v for p, v in record.values.items() if p != "linear.beta"}
    other = type(record)(**{**_fields(record), "values": {**kept, "gone.leaf": 3}})
    read = from_record(other)
    assert read.tunables.linear.alpha == 0.9 and read.tunables.linear.beta == 0.5


def _fields(record):
    return {name: getattr(record, name) for name in record.__struct_fields__}


# -- schedule ----------------------------------------------------------------------------------


def planned(live: Tunables, changes, *, due_s=60, until_s=None):
    return schedule.planned(
        live,
        changes,
        id="s1",
        now=AT,
        due=AT + timedelta(seconds=due_s),
        until=None if until_s is None else AT + timedelta(seconds=until_s),
        author="ada",
        reason="tonight",
    )


def test_what_is_due_comes_in_the_order_of_its_time():
    live = Tunables()
    late, soon = planned(live, {"linear.beta": 0.8}), planned(live, {"linear.alpha": 0.8}, due_s=5)
    assert schedule.due([late, soon], AT) == []
    assert schedule.due([late, soon], AT + timedelta(seconds=60)) == [soon, late]


def test_a_change_overtaken_by_another_is_not_made():
    change = planned(Tunables(), {"linear.beta": 0.8})
    assert schedule.still_meant(change, Tunables()) == ({"linear.beta": 0.8}, "")
    nothing, note = schedule.still_meant(change, Tunables().changed({"linear.beta": 0.7}))
    assert nothing == {} and "linear.beta" in note


def test_an_expiry_takes_back_only_what_is_still_its_own():
    book = Book(start())
    made = changed(book, {"linear.alpha": 0.9, "linear.beta": 0.8})
    end = schedule.expiry_of(made, AT + timedelta(hours=1), id="e1")
    all_of_it, note = schedule.still_meant(end, book.live.tunables)
    assert all_of_it == {"linear.alpha": 0.5, "linear.beta": 0.5} and not note
    changed(book, {"linear.beta": 0.1})
    rest, note = schedule.still_meant(end, book.live.tunables)
    assert rest == {"linear.alpha": 0.5} and "linear.beta" in note


@pytest.mark.parametrize(
    ("more", "field"),
    [({"due_s": -1}, "at"), ({"due_s": 60, "until_s": 60}, "until")],
)
def test_times_that_make_no_sense_are_named(more, field):
    with pytest.raises(Invalid) as caught:
        planned(Tunables(), {"linear.beta": 0.8}, **more)
    assert caught.value.field == field


def test_a_scheduled_change_ends_once():
    change = planned(Tunables(), {"linear.beta": 0.8})
    done = schedule.ended(change, "done", revision=4)
    assert (done.state, done.revision) == ("done", 4)
    with pytest.raises(Conflict, match="done already"):
        schedule.ended(done, "cancelled")


def test_values_name_every_tunable():
    assert Tunables().changed(values(Tunables())) == Tunables()
