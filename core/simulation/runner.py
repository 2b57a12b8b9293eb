"""Runs scenarios: one, or many over processes (or a Ray cluster), with the same results.

A run depends on its scenario and workload alone, so results do not depend on who computed them;
they come back in the order asked for.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from core.errors import BadRequest
from core.simulation.results import RunResult
from core.simulation.scenario import Scenario
from core.simulation.workload import Workload
from core.simulation.world import World

Progress = Callable[[int, int], bool]
"""(done, total) -> whether to go on."""


def run_scenario(
    scenario: Scenario, workload: Workload, *, progress: Progress | None = None
) -> RunResult:
    """Simulate one scenario; `wall_s` of the result is the time of the run itself."""
    world = World(scenario, workload, progress=progress)
    # The fleet's state holds no cycles worth collecting; scanning it again and again would cost.
    collecting = gc.isenabled()
    gc.disable()
    try:
        started = time.perf_counter()
        result = world.run()
        result.wall_s = time.perf_counter() - started
    finally:
        if collecting:
            gc.enable()
    return result


def run_all(
    scenarios: Sequence[Scenario],
    workload: Workload,
    *,
    workers: int = 1,
    ray: str | None = None,
    progress: Progress | None = None,
    reduce: Callable[[RunResult], Any] | None = None,
) -> list[Any]:
    """Results (or what `reduce` makes of them) of all scenarios, in their order.

    workers: processes; 0 takes one a core. ray: address of a Ray cluster instead ("auto" finds
    the running one). `progress` is called after every run and may stop the rest; the finished
    part is returned. `reduce` runs where the scenario ran, so that little travels back.
    """
    kept = reduce or _whole
    done: list[Any] = []
    for result in _results(scenarios, workload, workers, ray, kept):
        done.append(result)
        if progress is not None and not progress(len(done), len(scenarios)):
            break
    return done


def _whole(result: RunResult) -> RunResult:
    return result


def _results(
    scenarios: Sequence[Scenario],
    workload: Workload,
    workers: int,
    ray: str | None,
    reduce: Callable[[RunResult], Any],
) -> Iterator[Any]:
    if ray is not None:
        yield from _on_ray(scenarios, workload, ray, reduce)
        return
    count = min(workers or os.cpu_count() or 1, len(scenarios))
    if count <= 1:
        for scenario in scenarios:
            yield reduce(run_scenario(scenario, workload))
        return
    # Spawned, not forked: a fork copies the locks of whatever threads the caller has.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=_adopt, initargs=(workload, reduce)
    ) as pool:
        try:
            yield from pool.map(_run_adopted, scenarios)
        finally:
            pool.shutdown(cancel_futures=True)


_adopted: list[Any] = []


def _adopt(workload: Workload, reduce: Callable[[RunResult], Any]) -> None:
    """In a worker process: keep the workload, which is sent once and not with every run."""
    _adopted[:] = [workload, reduce]


def _run_adopted(scenario: Scenario) -> Any:
    workload, reduce = _adopted
    return reduce(run_scenario(scenario, workload))


def _on_ray(
    scenarios: Sequence[Scenario],
    workload: Workload,
    address: str,
    reduce: Callable[[RunResult], Any],
) -> Iterator[Any]:
    try:
        import ray
    except ImportError:
        text = "ray: the optional dependency is not installed (pip install 'kv-conductor[ray]')"
        raise BadRequest(text, field="ray") from None
    ray.init(address=None if address == "local" else address, ignore_reinit_error=True)
    try:
        shared = ray.put(workload)
        remote = ray.remote(_run_remote)
        pending = [remote.remote(scenario, shared, reduce) for scenario in scenarios]
        for reference in pending:
            yield ray.get(reference)
    finally:
        ray.shutdown()


def _run_remote(scenario: Scenario, workload: Workload, reduce: Callable[[RunResult], Any]) -> Any:
    return reduce(run_scenario(scenario, workload))
