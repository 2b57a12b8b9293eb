"""Figures and tables are made once for all sessions that look at the same answers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dashboard.parts.live_plot import prepared
from dashboard.parts.shared import EACH_MAX, NAMES_MAX, Shared
from dashboard.parts.tables import arrow


def test_the_same_objects_give_the_same_result_and_others_a_new_one() -> None:
    store, made = Shared(), []
    one, other = [1], [1]
    for given in (one, other, one, other):
        store.get("sum", (given,), lambda given=given: made.append(given))  # type: ignore[misc]
    assert [id(m) for m in made] == [id(one), id(other)]
    store.get("another", (one,), lambda: made.append(one))
    assert len(made) == 3


def test_many_at_once_make_it_once() -> None:
    store, made, start = Shared(), [], threading.Barrier(8)
    given = object()

    def ask(_: int) -> str:
        start.wait()
        return store.get("x", (given,), lambda: made.append(1) or "result")  # type: ignore[func-returns-value]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {"result"}
    assert made == [1]


def test_it_is_bounded_and_an_error_is_not_kept() -> None:
    store, inputs = Shared(), [object() for _ in range(EACH_MAX + 1)]
    calls: list[int] = []
    for i, each in enumerate(inputs):
        store.get("x", (each,), lambda i=i: calls.append(i))  # type: ignore[misc]
    store.get("x", (inputs[0],), lambda: calls.append(-1))
    assert calls[-1] == -1
    for number in range(NAMES_MAX):
        store.get(number, (), lambda: None)
    store.get("x", (inputs[0],), lambda: calls.append(-2))
    assert calls[-1] == -2

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.get("y", (), fail)
    assert store.get("y", (), lambda: 1) == 1


def test_a_prepared_figure_says_what_its_chart_needs() -> None:
    figure = prepared({"data": [], "layout": {"height": 120, "meta": "Nothing."}})
    assert (figure.height, figure.meta, figure.spec) == (
        120, "Nothing.", '{"data":[],"layout":{"height":120,"meta":"Nothing."}}',
    )  # fmt: skip


def test_a_table_of_mixed_values_is_left_to_the_widget() -> None:
    assert arrow([{"a": 1, "b": None}, {"a": 2, "b": "x"}]).num_rows == 2
    mixed = arrow([{"a": 1}, {"a": "x"}])
    assert list(mixed["a"]) == [1, "x"]
