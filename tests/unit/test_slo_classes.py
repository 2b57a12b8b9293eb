"""Limits by model and tenant: who they are for, and what a bad text is told."""

import pytest

from core.errors import Invalid
from core.slo_classes import ENTRIES_MAX, class_limits, parse_classes, tenant_class
from core.tunables import Tunables

TEXT = (
    "model=llama ttft_s=5 tbt_s=0.3; tenant=gold* ttft_s=2;"
    " tenant=gold-1 tbt_s=0.05; model=llama tenant=gold* ttft_s=1.5"
)


@pytest.mark.parametrize(
    ("model", "tenant", "limits"),
    [
        ("qwen", "free", (None, None)),
        ("llama", "free", (5.0, 0.3)),
        ("qwen", "gold-7", (2.0, None)),
        ("llama", "gold-7", (1.5, 0.3)),
        ("qwen", "gold-1", (2.0, 0.05)),
        ("llama", "gold-1", (1.5, 0.05)),
        ("llama", "", (5.0, 0.3)),
    ],
)
def test_each_limit_comes_from_the_entry_that_says_most(model, tenant, limits):
    assert class_limits(TEXT, model, tenant) == limits
    turned = "; ".join(reversed(TEXT.split(";")))
    assert class_limits(turned, model, tenant) == limits


@pytest.mark.parametrize(
    ("model", "tenant", "name"),
    [("llama", "gold-1", "gold-1"), ("qwen", "gold-7", "gold*"), ("llama", "free", "default")],
)
def test_tenants_are_counted_with_the_entry_that_names_them_best(model, tenant, name):
    assert tenant_class(TEXT, model, tenant) == name
    assert tenant_class("", model, tenant) == "default"


def test_no_text_is_no_class():
    assert parse_classes("") == parse_classes(" ; ") == ()
    assert class_limits("", "m", "t") == (None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenant=a", "sets neither"),
        ("ttft_s=1", "names neither"),
        ("tenant=a ttft=1", "'ttft=1' is none of"),
        ("tenant= ttft_s=1", "'tenant=' is none of"),
        ("tenant=a ttft_s=fast", "is not a number"),
        ("tenant=a ttft_s=nan", "outside"),
        ("tenant=a tbt_s=90", "outside 0.001..60 s"),
        ("tenant=a tenant=b ttft_s=1", "tenant stands twice"),
        ("tenant=a ttft_s=1; tenant=a tbt_s=1", "stands twice"),
        (";".join(f"tenant=t{n} ttft_s=1" for n in range(ENTRIES_MAX + 1)), "at most"),
    ],
)
def test_a_bad_text_is_refused_with_the_field_and_the_entry(text, words):
    with pytest.raises(Invalid) as caught:
        Tunables().changed({"slo.classes": text})
    assert caught.value.field == "slo.classes" and words in str(caught.value)
