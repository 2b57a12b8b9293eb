import pytest

from core.errors import BadRequest
from core.simulation.generator import MIXES, Workload, generate
from core.simulation.trace_stats import trace_statistics
from core.simulation.traces import read_trace, trace_lines, write_trace


def lines(**options):
    return b"".join(trace_lines(generate(Workload(requests=300, **options))))


def test_same_seed_same_bytes_other_seed_others():
    assert lines(seed=3) == lines(seed=3)
    assert lines(seed=3) != lines(seed=4)


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_every_mix_reads_back_and_has_the_wanted_rate(tmp_path, mix):
    made = generate(Workload(mix=mix, requests=400, rate_per_s=5.0))
    write_trace(made, tmp_path / "g.jsonl")
    assert read_trace(tmp_path / "g.jsonl").requests == made.requests
    stats = trace_statistics(made)
    assert stats["requests_per_s"] == pytest.approx(5.0, rel=0.01)
    assert 0 < stats["infinite_reuse_ratio"] < 1
    assert stats["kinds"].keys() <= {"conversation", "agent", "api", "coding"}


def test_later_turns_continue_their_parents_prompt():
    made = generate(Workload(mix="conversation", requests=300))
    linked = [r for r in made.requests if r.parent >= 0]
    assert linked
    for r in linked:
        parent = made.requests[r.parent]
        whole = parent.prompt_tokens // 512
        assert r.hash_ids[:whole] == parent.hash_ids[:whole]
        assert r.session == parent.session
        assert r.think_s > 0


def test_bursts_raise_dispersion_and_hot_share_the_top_prefix():
    calm = trace_statistics(generate(Workload(mix="api", requests=2000)))
    wild = trace_statistics(generate(Workload(mix="api", requests=2000, burst=20.0)))
    assert wild["burstiness"] > 2 * calm["burstiness"]
    hot = trace_statistics(generate(Workload(mix="api", requests=2000, hot_share=0.7)))
    assert hot["top_prefix_share"] == pytest.approx(0.7, abs=0.05)


def test_skew_concentrates_tenants():
    even = trace_statistics(generate(Workload(mix="api", requests=2000, skew=0.0, tenants=10)))
    steep = trace_statistics(generate(Workload(mix="api", requests=2000, skew=2.0, tenants=10)))
    assert even["largest_tenant_share"] < 0.15 < 0.5 < steep["largest_tenant_share"]


@pytest.mark.parametrize(
    ("field", "value"), [("mix", "chat"), ("requests", 0), ("burst", 0.5), ("hot_share", 2.0)]
)
def test_a_bad_value_is_named(field, value):
    with pytest.raises(BadRequest) as error:
        Workload(**{field: value})
    assert error.value.field == field
