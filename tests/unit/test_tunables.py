"""Live parameters: bounds, types, paths, and changes that apply together or not at all."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Invalid
from core.policy import policy_names
from core.tunables import Tunables, diff, leaves, parse, resolve

LEAVES = list(leaves(Tunables()))
NUMBERS = [leaf for leaf in LEAVES if leaf.low is not None]
IDS = [leaf.path for leaf in NUMBERS]


def invalid(changes):
    with pytest.raises(Invalid) as caught:
        Tunables().changed(changes)
    assert caught.value.field
    assert caught.value.field in caught.value.message
    return caught.value


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.path)
def test_every_leaf_is_documented_and_its_default_is_valid(leaf):
    assert leaf.doc
    assert leaf.source
    assert leaf.value == leaf.default
    assert Tunables().changed({leaf.path: leaf.default}) == Tunables()
    if leaf.low is not None:
        assert leaf.low <= leaf.default <= leaf.high
    elif leaf.choices:
        assert leaf.default in leaf.choices
    else:
        assert isinstance(leaf.default, str)


def test_paths_are_unique_and_the_default_policy_exists():
    assert len({leaf.path for leaf in LEAVES}) == len(LEAVES)
    assert Tunables().policy in policy_names()


@pytest.mark.parametrize("leaf", NUMBERS, ids=IDS)
def test_bounds_are_inclusive_and_nothing_beyond_them_passes(leaf):
    for value in (leaf.low, leaf.high):
        try:
            made = Tunables().changed({leaf.path: value})
        except Invalid as e:  # a rule over several leaves, which names one of them
            assert not e.message.startswith(f"{leaf.path}: {value} is outside")
            continue
        assert type(dict(paths(made))[leaf.path]) is type(leaf.default)
    for value in (leaf.low - 1, leaf.high * 2 + 1, math.nan, math.inf, -math.inf):
        e = invalid({leaf.path: value})
        assert e.field == leaf.path
        assert e.status == 422


@pytest.mark.parametrize("leaf", NUMBERS, ids=IDS)
def test_a_number_must_be_one(leaf):
    for value in ("1", None, True, [1], {}):
        assert invalid({leaf.path: value}).field == leaf.path


def paths(tree):
    return [(leaf.path, leaf.value) for leaf in leaves(tree)]


def test_whole_numbers_stay_whole():
    t = Tunables().changed({"cpp.group_max": 3.0})
    assert t.cpp.group_max == 3
    assert isinstance(t.cpp.group_max, int)
    assert "whole number" in invalid({"cpp.group_max": 2.5}).message
    assert Tunables().changed({"slo.ttft_s": 3}).slo.ttft_s == 3.0
    assert isinstance(Tunables().changed({"slo.ttft_s": 3}).slo.ttft_s, float)


def test_choices_flags_and_texts():
    assert Tunables().changed({"admission.mode": "off"}).admission.mode == "off"
    assert "off, reject, queue" in invalid({"admission.mode": "drop"}).message
    assert Tunables().changed({"fetch.enabled": False}).fetch.enabled is False
    for wrong in (0, 1, "true", None):
        assert invalid({"fetch.enabled": wrong}).field == "fetch.enabled"
    assert invalid({"policy": 3}).field == "policy"


@pytest.mark.parametrize(
    "path", ["nope", "linear.nope", "nope.alpha", "linear.alpha.more", "policy.x"]
)
def test_unknown_paths_are_named(path):
    assert invalid({path: 1.0}).message == f"{path}: no such tunable"


def test_a_group_is_no_value():
    assert "group" in invalid({"linear": 1.0}).message


def test_changes_apply_together():
    weights = {"weighted.load": 0.5, "weighted.queue": 0.0}
    assert Tunables().changed(weights).weighted.load == 0.5
    assert "sum to" in invalid({"weighted.load": 0.5}).message
    assert invalid({"breaker.open_s": 400.0}).field == "breaker.open_max_s"
    both = {"breaker.open_s": 400.0, "breaker.open_max_s": 500.0}
    assert Tunables().changed(both).breaker.open_s == 400.0


def test_a_tree_never_changes_in_place():
    before = Tunables()
    after = before.changed({"linear.alpha": 0.9})
    assert before.linear.alpha == 0.5
    assert after.linear.alpha == 0.9
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.policy = "random"
    assert diff(before, after) == {"linear.alpha": (0.5, 0.9)}
    assert diff(before, before) == {}


def test_short_names_resolve_in_their_policy_first():
    assert resolve("alpha", "linear") == "linear.alpha"
    assert resolve("linear.alpha", "random") == "linear.alpha"
    assert resolve("balancing_threshold", "min_ttft") == "fetch.balancing_threshold"
    assert resolve("policy", "min_ttft") == "policy"
    with pytest.raises(Invalid, match=r"write one of .*weighted\.queue"):
        resolve("queue", "min_ttft")
    assert resolve("queue", "weighted") == "weighted.queue"
    with pytest.raises(Invalid, match="no tunable has that name"):
        resolve("nope", "min_ttft")


def test_texts_are_read_as_the_leafs_type():
    assert parse("slo.ttft_s", "2.5") == 2.5
    assert parse("cpp.group_max", "8") == 8
    assert parse("fetch.enabled", "off") is False
    assert parse("fetch.enabled", "True") is True
    assert parse("policy", "linear") == "linear"
    for path, text in (("slo.ttft_s", "fast"), ("cpp.group_max", "2.5"), ("fetch.enabled", "2")):
        with pytest.raises(Invalid, match=path):
            parse(path, text)
    with pytest.raises(Invalid, match="no such tunable"):
        parse("nope", "1")


@given(leaf=st.sampled_from(NUMBERS), share=st.floats(0.0, 1.0))
def test_what_a_form_shows_can_be_typed_in_again(leaf, share):
    value = type(leaf.default)(leaf.low + (leaf.high - leaf.low) * share)
    try:
        made = Tunables().changed({leaf.path: parse(leaf.path, repr(value))})
    except Invalid as e:
        assert e.field.split(".")[0] in ("weighted", "breaker")
    else:
        assert dict(paths(made))[leaf.path] == value
