"""Reading Prometheus pages: wanted names only, labels, damage, escapes."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from core.engines.metrics import MetricsReader, whole
from tests.unit.engines.fixtures import text


def test_reads_only_wanted_names_whatever_shares_their_beginning():
    page = MetricsReader(["a:x"]).read('a:x 1\na:x_total 5\nb_a:x 7\n# a:x 9\na:x{l="1"} 2\n')
    assert page.values("a:x") == [1.0, 2.0]
    assert page.total("a:x") == 3.0


def test_labels_filter_and_a_missing_label_does_not_exclude():
    page = MetricsReader(["g"]).read('g{engine="0"} 1\ng{engine="1"} 2\ng{other="x"} 4\n')
    assert page.total("g", {"engine": "1"}) == 6.0
    assert page.values("g", {"engine": "0"}) == [1.0, 4.0]


def test_first_present_name_wins_and_absence_is_none():
    page = MetricsReader(["new", "old"]).read("old 3\n")
    assert page.total(("new", "old")) == 3.0
    assert page.mean(("new", "old")) == 3.0
    assert page.total("new") is None and page.label("new", "x") is None
    assert not MetricsReader(["new"]).read("old 3\n")


def test_damaged_and_non_finite_lines_are_left_out():
    page = MetricsReader(["g"]).read('g NaN\ng +Inf\ng what\ng\ng{a="1 2\ng{a="ok"} 5\n')
    assert page.values("g") == [5.0]


def test_recorded_vllm_page_gives_what_the_engine_had():
    reader = MetricsReader(["vllm:num_requests_waiting", "vllm:cache_config_info"])
    page = reader.read(text("vllm-metrics-load.txt"))
    assert page.values("vllm:num_requests_waiting") == [30.0]
    assert page.label("vllm:cache_config_info", "kv_cache_size_tokens") == "65536"


def test_whole_is_never_negative():
    assert whole(None) is None
    assert whole(-1.0) == 0
    assert whole(2.9) == 2


label_values = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)


@given(label_values, st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_the_client_library_writes_is_read_back(value: str, number: float):
    registry = CollectorRegistry()
    gauge = Gauge("x:g", "help", ["name"], registry=registry)
    gauge.labels(name=value).set(number)
    page = MetricsReader(["x:g"]).read(generate_latest(registry).decode())
    assert page.label("x:g", "name") == value
    found = page.total("x:g")
    assert found is not None and math.isclose(found, number, rel_tol=1e-12)
