"""Comparing our tokens with the engine's."""

from core.engines.parity import PROBES, Parity, compare


def test_equal_ids_agree():
    assert compare("x", [1, 2], (1, 2)) is None


def test_a_difference_names_the_place_and_both_ids():
    assert compare("x", [1, 2, 3], [1, 9, 3]) == (
        "text prompt 'x': token 1 is 2 for us and 9 for the engine (3 against 3 tokens)"
    )
    chat = [{"role": "user", "content": "hello"}]
    assert compare(chat, [1], [1, 2]) == (
        "chat prompt 'hello': token 1 is absent for us and 2 for the engine (1 against 2 tokens)"
    )


def test_nothing_compared_is_no_agreement():
    assert not Parity(model="m", compared=0, mismatches=()).agrees
    assert Parity(model="m", compared=1, mismatches=()).agrees
    assert not Parity(model="m", compared=2, mismatches=("no",)).agrees


def test_probes_hold_both_kinds():
    assert {type(p) for p in PROBES} == {str, list}
