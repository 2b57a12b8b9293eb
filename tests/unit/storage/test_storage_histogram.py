"""Histograms: the stated error, merging, packing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import histogram
from storage.histogram import RELATIVE_ERROR, Spread

seconds = st.one_of(st.floats(0, 1e5), st.sampled_from([0.0, 1e-6, 6.3e-5, 6.4e-5, 0.001, 2.0**16]))


def spread(values: list[float]) -> Spread:
    found = histogram.grouped(np.zeros(len(values), dtype=np.int64), np.array(values))
    return found.get(0, Spread(np.array([], dtype=np.int64), np.array([], dtype=np.int64)))


@given(st.lists(seconds, min_size=1, max_size=200))
def test_percentiles_are_within_the_stated_error(values):
    points = [0.0, 0.5, 0.9, 0.99, 1.0]
    found = histogram.quantiles(spread(values), points)
    exact = np.quantile(values, points)
    assert found == pytest.approx(exact.tolist(), rel=RELATIVE_ERROR, abs=1e-6)


@given(seconds)
def test_a_bucket_stands_for_the_values_in_it(value):
    middle = histogram.middles()[histogram.buckets(np.array([value]))[0]]
    assert middle == pytest.approx(value, rel=RELATIVE_ERROR, abs=5e-7)


def test_buckets_are_in_order_without_gaps():
    edges = np.arange(0, 200_000) * 1e-6
    found = histogram.buckets(edges)
    assert set(np.diff(found)) <= {0, 1} and found[0] == 0
    assert np.all(np.diff(histogram.middles()) > 0)
    assert histogram.buckets(np.array([1e9, -1.0])).tolist() == [histogram.SIZE - 1, 0]


@given(st.lists(st.lists(seconds, max_size=30), min_size=1, max_size=6))
def test_merging_is_as_good_as_counting_together(parts):
    whole = spread([value for part in parts for value in part])
    merged = histogram.merged([spread(part) for part in parts])
    assert merged.buckets.tolist() == whole.buckets.tolist()
    assert merged.counts.tolist() == whole.counts.tolist()


@given(st.lists(seconds, max_size=60))
def test_packing_keeps_everything(values):
    whole = spread(values)
    back = histogram.unpacked(histogram.packed(whole))
    assert back.buckets.tolist() == whole.buckets.tolist()
    assert back.counts.tolist() == whole.counts.tolist()


def test_an_empty_histogram_has_no_percentiles():
    assert histogram.packed(spread([])) == b""
    assert histogram.quantiles(spread([float("nan")]), [0.5]) is None


def test_groups_are_counted_apart_and_missing_values_not_at_all():
    groups = np.array([2, 0, 2, 1, 2])
    values = np.array([1.0, 2.0, np.nan, np.nan, 1.0])
    found = histogram.grouped(groups, values)
    assert sorted(found) == [0, 2]
    assert found[2].counts.tolist() == [2]
    assert histogram.quantiles(found[0], [0.5]) == pytest.approx([2.0], rel=RELATIVE_ERROR)
