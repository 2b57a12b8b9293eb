"""`conductor plan-cpp`."""

import json

import pytest
from typer.testing import CliRunner

from core.cli import app
from core.errors import BadRequest, Invalid


def run(*arguments):
    result = CliRunner().invoke(app, ["plan-cpp", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_long_prompt_gets_stages_chunks_and_the_alternatives():
    text = run("--tokens", "128000")
    assert "4 nodes for 128000 uncached tokens" in text
    assert "on the best single node" in text and "bubble" in text
    assert "sequence parallelism would need 160 all-reduces" in text
    assert text.count("node-") >= 4


def test_json_has_every_figure():
    found = json.loads(run("--tokens", "128000", "--prefix", "64000", "--json"))
    plan = found["plan"]
    assert sum(plan["chunks"]) == 64_000 and plan["prefix_tokens"] == 64_000
    assert sum(stage["layers"] for stage in plan["stages"]) == 80
    assert plan["ttft_s"] < found["single_ttft_s"] == plan["single_ttft_s"]
    assert 0 < plan["gain"] < 1 and 0 <= plan["bubble_share"] < 1
    assert plan["prefix_bytes"] > 0 and plan["sp_allreduces"] == 160


def test_a_short_prompt_needs_no_group():
    assert "no group: one node" in run("--tokens", "1000")
    assert json.loads(run("--tokens", "1000", "--json"))["plan"] is None


def test_busy_members_and_rules_count():
    free = json.loads(run("--tokens", "128000", "--json"))["plan"]
    small = json.loads(run("--tokens", "128000", "--set", "cpp.group_max=2", "--json"))["plan"]
    assert len(small["stages"]) == 2 and small["ttft_s"] > free["ttft_s"]
    busy = json.loads(run("--tokens", "128000", "--queue", "50,0", "--json"))["plan"]
    assert 0 not in {stage["slot"] for stage in busy["stages"]}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--tokens", "100", "--prefix", "100"], "prefix"),
        (["--tokens", "100", "--queue", "x"], "queue"),
        (["--tokens", "100", "--queue", "-1"], "queue"),
        (["--tokens", "100", "--set", "cpp.group_max"], "set"),
    ],
)
def test_bad_input_is_named(arguments, field):
    with pytest.raises(BadRequest) as caught:
        run(*arguments)
    assert caught.value.field == field


def test_a_tunable_out_of_bounds_is_named():
    with pytest.raises(Invalid, match=r"cpp.group_max"):
        run("--tokens", "100", "--set", "cpp.group_max=1")
