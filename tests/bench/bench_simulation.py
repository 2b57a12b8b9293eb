"""How many requests a second the simulator plays, beside Dynamo's offline replay.

    python -m tests.bench simulation

Prefill-only (8 nodes) and prefill with decode (8 + 8), each the best of three runs on one core,
with CPU time beside wall time: on a busy machine the CPU figure is the one to read. Dynamo's
replay runs where its package is installed in the environment that CONDUCTOR_DYNAMO_PYTHON names
(an interpreter); elsewhere the line says that it is absent.
"""

import json
import os
import subprocess
import sys
import time

from core.simulation.policy_report import find_trace
from core.simulation.runner import run_scenario
from core.simulation.scenario import Scenario
from core.simulation.traces import read_trace
from core.simulation.workload import prepare

ROUNDS = 3
DYNAMO = """
import json, sys, tempfile, time
from dynamo._core import KvRouterConfig, run_mocker_trace_replay
path, requests = sys.argv[1], int(sys.argv[2])
with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as part:
    part.writelines(open(path).readlines()[:requests])
    part.flush()
    started = time.perf_counter()
    run_mocker_trace_replay(
        [part.name], {"engine": {"backend": "vllm", "block_size": 16, "num_gpu_blocks": 96000}},
        num_workers=8, router_mode="kv_router", trace_block_size=512, trace_format="mooncake",
        router_config=KvRouterConfig(router_event_threads=1), arrival_speedup_ratio=1.0)
    print(json.dumps({"rate": requests / (time.perf_counter() - started)}))
"""


def main() -> None:
    path = find_trace()[0]
    workload = prepare(read_trace(path))
    print(f"{path.name}: {len(workload)} requests, one core")
    fleets = {
        "prefill only, 8 nodes": Scenario(prefill=8, mfu=0.5, fetch=False),
        "prefill only, fetching": Scenario(prefill=8, mfu=0.5),
        "prefill and decode, 8 + 8": Scenario(prefill=8, decode=8, mfu=0.5),
    }
    for name, fleet in fleets.items():
        wall, cpu = best_of(fleet, workload)
        print(f"{name:28} {wall:9,.0f} requests/s wall {cpu:9,.0f} requests/CPU-s")
    print(f"{'Dynamo offline replay':28} {dynamo(path)}")


def best_of(fleet, workload):
    """Requests a second by wall clock and by CPU time, the best round of each."""
    walls, cpus = [], []
    for _ in range(ROUNDS):
        started = time.process_time()
        result = run_scenario(fleet, workload)
        cpus.append(time.process_time() - started)
        walls.append(result.wall_s)
    return len(workload) / min(walls), len(workload) / min(cpus)


def dynamo(path, requests=3000):
    python = os.environ.get("CONDUCTOR_DYNAMO_PYTHON", sys.executable)
    probe = [python, "-c", "import dynamo._core"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "absent (ai-dynamo-runtime; CONDUCTOR_DYNAMO_PYTHON names its interpreter)"
    command = [python, "-c", DYNAMO, str(path), str(requests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1:]}"
    return f"{json.loads(done.stdout.splitlines()[-1])['rate']:9,.0f} requests/s wall"


if __name__ == "__main__":
    main()
