"""Joining registered and discovered figures."""

from dataclasses import replace

from core.domain import EventEndpoints, NodeId, NodeSpec, Role
from core.engines.base import Discovery, connectable
from core.engines.discovery import join, ranks

NODE = NodeSpec(id=NodeId("n"), url="http://h:1")
FOUND = Discovery(
    models=("m",),
    adapters={"a": "m"},
    context_tokens_max=4096,
    kv_capacity_tokens=1000,
    block_size=32,
    batch_max=64,
    events={0: EventEndpoints(live="tcp://h:2", replay="tcp://h:3")},
)


def test_a_bare_registration_takes_everything():
    spec = join(NODE, FOUND).spec
    assert (spec.models, dict(spec.adapters), spec.block_size) == (("m",), {"a": "m"}, 32)
    assert (spec.kv_capacity_tokens, spec.context_tokens_max, spec.batch_max) == (1000, 4096, 64)
    assert spec.events == FOUND.events[0]


def test_smaller_limits_hold_and_registered_models_win_with_a_note():
    mine = NodeSpec(
        id=NodeId("n"),
        url="http://h:1",
        models=("other",),
        kv_capacity_tokens=500,
        context_tokens_max=9999,
        block_size=16,
    )
    joined = join(mine, FOUND)
    assert joined.spec.models == ("other",)
    assert (joined.spec.kv_capacity_tokens, joined.spec.context_tokens_max) == (500, 4096)
    assert joined.spec.block_size == 32, "only the engine knows its block size"
    assert "'other'" in joined.notes[0]


def test_an_engine_that_tells_nothing_changes_nothing():
    assert join(NODE, Discovery()).spec == NODE


def test_registered_event_addresses_win_and_are_completed():
    mine = NodeSpec(id=NodeId("n"), url="http://h:1", events=EventEndpoints(live="tcp://h:2"))
    assert join(mine, FOUND).spec.events == EventEndpoints(live="tcp://h:2", replay="tcp://h:3")
    mine = NodeSpec(id=NodeId("n"), url="http://h:1", events=EventEndpoints(live="ipc:///x"))
    assert join(mine, FOUND).spec.events == mine.events


def test_the_kv_dtype_is_the_registered_one_or_what_the_engine_tells():
    half = replace(FOUND, kv_dtype="fp8_e4m3")
    joined = join(NODE, half)
    assert (joined.spec.kv_dtype, joined.notes) == ("fp8_e4m3", ())
    mine = join(replace(NODE, kv_dtype="bfloat16"), half)
    assert mine.spec.kv_dtype == "bfloat16" and "the engine has fp8_e4m3" in mine.notes[0]
    odd = join(NODE, replace(FOUND, kv_dtype="nvfp4"))
    assert odd.spec.kv_dtype == "auto" and "nvfp4 is counted as 16 bits" in odd.notes[0]
    assert join(NODE, replace(FOUND, kv_dtype="auto")).spec.kv_dtype == "auto"


def test_a_server_started_for_one_role_keeps_it():
    assert join(NODE, Discovery(role=Role.PREFILL)).spec.role is Role.PREFILL


def test_data_parallel_ranks_become_nodes():
    events = {r: EventEndpoints(live=f"tcp://h:{r + 2}") for r in range(2)}
    found = Discovery(models=("m",), dp_size=2, events=events)
    nodes = [join(spec, found).spec for spec in ranks(NODE, found)]
    assert [(n.id, n.dp_rank, n.engine_group) for n in nodes] == [("n#0", 0, "n"), ("n#1", 1, "n")]
    assert [n.events.live for n in nodes] == ["tcp://h:2", "tcp://h:3"]
    assert ranks(nodes[1], found) == [nodes[1]], "a chosen rank stays one node"
    assert ranks(NODE, FOUND) == [NODE]


def test_bind_addresses_become_connectable():
    assert connectable("tcp://*:5", host="10.0.0.1") == "tcp://10.0.0.1:5"
    assert connectable("tcp://0.0.0.0:5", host="h") == "tcp://h:5"
    assert connectable("tcp://[::]:5", host="fe::1") == "tcp://[fe::1]:5"
    assert connectable("tcp://127.0.0.1:5", host="127.0.0.1") == "tcp://127.0.0.1:5"
    assert connectable("tcp://127.0.0.1:5", host="localhost") == "tcp://127.0.0.1:5"
    assert connectable("tcp://10.0.0.7:5", host="h") == "tcp://10.0.0.7:5"


def test_addresses_that_cannot_work_or_reach_inside_are_refused():
    for endpoint in ("tcp://127.0.0.1:5", "ipc:///tmp/x", "inproc://x", "tcp://*", "tcp://*:p", ""):
        assert connectable(endpoint, host="10.0.0.1") is None


def test_an_engine_cannot_send_us_to_a_metadata_address():
    for live, replay in (
        ("tcp://169.254.169.254:80", None),
        ("tcp://h:2", "tcp://[fe80::1]:3"),
        ("tcp://2852039166:80", None),
        ("tcp://user@h:2", None),
    ):
        found = replace(FOUND, events={0: EventEndpoints(live=live, replay=replay)})
        joined = join(NODE, found)
        assert joined.spec.events is None
        assert any("not followed" in note for note in joined.notes)
    assert join(NODE, FOUND).notes == ()
