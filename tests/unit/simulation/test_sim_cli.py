"""The commands as users call them, on the small trace that ships."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from core.simulation import cli
from core.simulation.compare import compare, parse_arms
from core.simulation.options import FleetOptions, load_workload, parse_seeds
from core.simulation.scenario import Scenario
from core.simulation.sweep import interval, pareto, parse_axis

TRACE = str(Path(cli.__file__).parent / "data" / "mixed.jsonl")
QUICK = ["--limit", "80", "--mfu", "0.5", "--prefill", "2"]


@pytest.fixture(scope="module")
def run():
    app = typer.Typer()
    cli.register(app)
    runner = CliRunner()
    return lambda *words: runner.invoke(app, list(words))


def test_trace_prints_its_statistics(run):
    stats = json.loads(run("trace", TRACE, "--json").stdout)
    assert stats["requests"] == 500
    assert 0 < stats["infinite_reuse_ratio"] < 1


def test_simulate_prints_what_the_checks_read(run):
    result = run("simulate", TRACE, *QUICK, "--decode", "1", "--policy", "min_ttft",
                 "--cache-tokens", "3000000", "--link-gb-s", "100", "--no-fetch", "--cpp",
                 "--load", "1.3", "--seed", "0", "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert row["requests"] == 80
    assert set(row["ttft_s"]) == set(row["tbt_ms"]) == {"mean", "p50", "p90", "p99", "max"}
    for name in ("hit_ratio", "reachable_hit_ratio", "goodput_rps", "rejected", "imbalance",
                 "cpp_plans", "wall_s", "simulated_requests_per_s"):  # fmt: skip
        assert name in row


def test_parameters_reach_the_policy(run):
    def mean(*words):
        out = run("simulate", TRACE, *QUICK, "--policy", "linear", "--json", *words).stdout
        return json.loads(out)["ttft_s"]["mean"]

    assert mean() != mean("--param", "alpha=1.0", "--param", "beta=0.0")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "best"], "unknown policy 'best'"),
        (["--param", "gamma=1"], "gamma: no tunable has that name"),
        (["--param", "linear.alpha=2"], "linear.alpha: 2.0 is outside 0..1"),
        (["--profile", "abacus"], "unknown profile 'abacus'"),
        (["--load", "0"], "load: expected above 0"),
        (["--prefill", "0"], "prefill: expected at least one node that prefills"),
        (["--fail", "soon"], "fail: expected NODE@SECONDS"),
        (["--fail", "0@nan"], "fail: expected NODE@SECONDS"),
        (["--fail", "0@1+inf"], "fail: expected NODE@SECONDS"),
        (["--reject", "always"], "rejecting: expected off"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(run, words, says):
    result = run("simulate", TRACE, *words)
    assert result.exit_code == 2
    assert says in result.output


def test_the_fleet_is_described_by_the_same_options_in_each_command():
    assert {"prefill", "fail", "ttft_slo_s"} <= {f.name for f in fields(FleetOptions)}
    for command in (cli.simulate_command, cli.compare_command, cli.sweep_command):
        options = signature(command).parameters
        assert "fleet" not in options
        for f in fields(FleetOptions):
            assert options[f.name].default == f.default


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["compare", TRACE, "--seeds", "4-0"], "seeds: expected"),
        (["compare", TRACE, "--seeds", "0-99999999999"], "seeds: expected"),
        (["sweep", TRACE, "--param", "linear.alpha=0:1:nan"], "linear.alpha: expected STEP > 0"),
        (["sweep", TRACE, "--param", "linear.alpha=0:1:1e-12"], "more than 10,000 values"),
        (["generate", "{file}/x.jsonl", "--requests", "1"], "out: cannot write"),
        (["generate", "{folder}", "--requests", "1"], "out: cannot write"),
        (["compare", TRACE, "--html", "{folder}"], "html: "),
        (["compare", TRACE, "--markdown", "{file}/t.md"], "markdown: "),
    ],
)
def test_what_cannot_be_is_said_before_the_work(run, tmp_path, monkeypatch, words, says):
    monkeypatch.setattr(cli, "compare", lambda *_, **__: pytest.fail("the runs have begun"))
    file = tmp_path / "file"
    file.write_text("kept")
    result = run(*(w.format(file=file, folder=tmp_path) for w in words))
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert file.read_text() == "kept"


def test_compare_prints_rows_and_writes_a_page_without_outside_links(run, tmp_path):
    page, table = tmp_path / "r" / "report.html", tmp_path / "t.md"
    result = run("compare", TRACE, *QUICK, "--policies", "random,linear:alpha=0.9:beta=0.1",
                 "--loads", "1,2", "--seeds", "0-1", "--workers", "1", "--json",
                 "--html", str(page), "--markdown", str(table))  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [(r["label"], r["load"], r["seeds"]) for r in rows] == [
        ("random", 1.0, 2), ("linear:alpha=0.9:beta=0.1", 1.0, 2),
        ("random", 2.0, 2), ("linear:alpha=0.9:beta=0.1", 2.0, 2),
    ]  # fmt: skip
    text = page.read_text()
    assert "<script src=" not in text
    assert "linear:alpha=0.9:beta=0.1" in text
    assert table.read_text().count("|") > 30


def test_the_page_is_the_same_bytes_again(run, tmp_path):
    pages = []
    for name in ("a.html", "b.html"):
        run("compare", TRACE, *QUICK, "--policies", "min_ttft", "--workers", "1",
            "--html", str(tmp_path / name))  # fmt: skip
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_sweep_finds_front_and_best_with_an_interval(run):
    result = run("sweep", TRACE, *QUICK, "--policy", "linear", "--param", "alpha=0:1:0.5",
                 "--param", "beta=0.5", "--seeds", "0,1", "--workers", "1", "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    assert [p["params"]["linear.alpha"] for p in out["points"]] == [0.0, 0.5, 1.0]
    assert out["runs"] == 6
    best = out["best"]
    assert best["params"] in [p["params"] for p in out["points"] if p["pareto"]]
    assert (
        best["slice_mean_s"]["low"] <= best["slice_mean_s"]["mean"] <= best["slice_mean_s"]["high"]
    )


def test_generate_is_seeded_and_reads_back(run, tmp_path):
    out = tmp_path / "g.jsonl"
    words = ["--mix", "agent", "--requests", "40", "--seed", "9"]
    run("generate", str(out), *words)
    first = out.read_bytes()
    run("generate", str(out), *words)
    assert out.read_bytes() == first
    assert json.loads(run("trace", str(out), "--json").stdout)["requests"] == 40


def test_skip_bad_is_counted(run, tmp_path):
    lines = Path(TRACE).read_text().splitlines()[:30]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([*lines, "{broken"]) + "\n")
    assert f"{bad}:31: line" in run("simulate", str(bad), "--prefill", "1").output
    out = run("simulate", str(bad), "--prefill", "1", "--skip-bad", "--json").stdout
    assert json.loads(out)["skipped_lines"] == 1


@pytest.mark.parametrize("hash_seed", ["0", "99"])
def test_bytes_do_not_depend_on_the_hash_seed(hash_seed):
    assert _simulated(hash_seed) == _simulated("1")


def _simulated(hash_seed):
    code = (
        "import typer; from core.simulation import cli; app = typer.Typer(); cli.register(app); "
        f"app(['compare', {TRACE!r}, '--limit', '60', '--prefill', '2', '--decode', '1', "
        "'--policies', 'random,llmd_weighted', '--workers', '2', '--json'])"
    )
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True, timeout=100
    )
    return done.stdout


def test_an_interrupt_finishes_what_runs_and_keeps_the_finished_part():
    before = signal.getsignal(signal.SIGINT)
    with cli._stoppable("compare") as progress:
        assert progress(1, 5)
        os.kill(os.getpid(), signal.SIGINT)
        assert not progress(2, 5)
    assert signal.getsignal(signal.SIGINT) is before
    workload, _ = load_workload(Path(TRACE), skip_bad=False, limit=20)
    out = compare(
        Scenario(prefill=1), workload, arms=parse_arms("random,min_ttft"), loads=[1.0],
        seeds=[0, 1], progress=lambda done, total: done < 3,
    )  # fmt: skip
    assert (out["runs"], out["wanted"]) == (3, 4)
    assert [row["label"] for row in out["rows"]] == ["random"]


def test_arms_and_axes_are_parsed_and_checked():
    (plain, tuned) = parse_arms("random, linear:alpha=0.7:beta=0.3")
    assert plain.params == {}
    assert tuned.params == {"linear.alpha": 0.7, "linear.beta": 0.3}
    assert parse_axis("alpha=0:1:0.25", "linear").values == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert parse_axis("log_tokens=true|false", "multiplicative").values == (True, False)
    assert parse_seeds("0-4") == [0, 1, 2, 3, 4]
    assert parse_seeds("3,5") == [3, 5]


def test_pareto_keeps_what_nothing_beats_everywhere():
    def point(p50, p99, hit):
        return {"ttft_s": {"p50": p50, "p99": p99}, "tbt_ms": {"p99": 0.0},
                "hit_ratio": hit, "imbalance": 1.0}  # fmt: skip

    points = [point(1, 9, 0.3), point(2, 5, 0.3), point(2, 9, 0.2), point(3, 9, 0.4)]
    assert pareto(points) == [0, 1, 3]


def test_interval_is_students():
    import numpy as np

    got = interval(np.array([1.0, 2.0, 3.0, 4.0]))
    half = 3.182 * np.std([1, 2, 3, 4], ddof=1) / 2
    assert got == {
        "mean": 2.5, "low": round(2.5 - half, 6), "high": round(2.5 + half, 6)
    }  # fmt: skip
