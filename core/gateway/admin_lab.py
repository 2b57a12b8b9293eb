"""Admin routes of the Lab: what can be tried, and the jobs that try it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from core import wire
from core.control.lab import Job
from core.control.lab_run import Task, Tried
from core.control.plane import newest_first
from core.control.replay import LEAST, FleetShape, fleet_shape
from core.control.revisions import with_changes
from core.errors import BadRequest, Invalid, NotFound, StoreError
from core.gateway.audited import audited
from core.gateway.lab_kept import job_view
from core.identity.principal import author
from core.plan.cost_model import prefill_coefficients, profile, tbt_coefficients
from core.tunables import Tunables, diff, resolve

if TYPE_CHECKING:
    from core.gateway.service import Service

SHIPPED = Path(str(resources.files("core.simulation"))) / "data" / "mixed.jsonl"
SHIPPED_REQUESTS = 500
DECISIONS_MAX = 5_000
TRACES_MAX = 200
_ENDINGS = (".jsonl", ".jsonl.gz")


def lab_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router, lab = APIRouter(prefix="/lab", tags=["lab"]), service.lab

    @router.get("/sources")
    async def sources() -> wire.LabSources:
        files = await asyncio.to_thread(_traces, service.lab.rules.trace_dir)
        return wire.LabSources(
            sources=[*_recorded(service), *files],
            runs_max=lab.rules.runs_max,
            requests_max=lab.rules.requests_max,
            time_max_s=lab.rules.time_max_s,
            trace_dir=service.lab.rules.trace_dir is not None,
        )

    @router.get("/jobs")
    async def jobs() -> wire.LabJobList:
        """Those of this process, then ended ones that were kept."""
        mine = [job_view(job, points=False) for job in lab.jobs()]
        kept = await asyncio.to_thread(service.kept_lab.jobs, {job.id for job in mine})
        return wire.LabJobList(jobs=[*mine, *kept])

    @router.post("/jobs", status_code=201)
    async def submit(asked: wire.LabAsk) -> wire.LabJob:
        """Put a job at the end of the line: 400 or 422 names what does not fit."""
        task = await _task(service, asked)
        made = Job(
            id=f"lab-{service.new_request_id()}",
            task=task,
            method=asked.method,
            source=asked.source,
            author=author(asked.author),
            reason=asked.reason,
            base=service.control.book.live.number,
            created_at=service.clock.wall(),
            total=task.runs,
        )
        facts = {"method": asked.method, "source": asked.source, "runs": task.runs}
        async with audited(service, "lab.submit", target=made.id, reason=asked.reason, after=facts):
            job = lab.submit(made)
        facts = {"author": job.author, "reason": asked.reason, "id": job.id, "runs": task.runs}
        service.record_event("lab.submitted", "", facts)
        service.counters["lab.submitted"] += 1
        return job_view(job, points=False)

    _job_routes(router, service)
    return router


def _job_routes(router: APIRouter, service: Service) -> None:
    """One job: of this process, or kept in the store."""
    lab = service.lab

    @router.get("/jobs/{id}")
    async def one(id: str) -> wire.LabJob:
        try:
            return job_view(lab.job(id), points=True)
        except NotFound:
            return await asyncio.to_thread(service.kept_lab.job, id)

    @router.delete("/jobs/{id}")
    async def cancel(id: str) -> wire.LabJob:
        """Cancel a job; one that is over already is forgotten."""
        found = await asyncio.to_thread(service.kept_lab.forgotten, id)
        if found is None:
            async with audited(service, "lab.cancel", target=id):
                found = job_view(lab.cancel(id), points=False)
        else:
            with contextlib.suppress(NotFound):
                lab.cancel(id)
        service.counters["lab.cancelled"] += 1
        return found


# -- sources ---------------------------------------------------------------------------------


def _recorded(service: Service) -> list[wire.LabSource]:
    decisions = wire.LabSource(
        name="recorded",
        title="The newest recorded decisions and requests of this service",
        requests=len(service.control.window),
        methods=["rescore", "simulate"],
    )
    shipped = wire.LabSource(
        name="shipped",
        title="The trace that comes with the product: mixed chat, API and agent requests",
        requests=SHIPPED_REQUESTS,
        methods=["simulate"],
    )
    return [decisions, shipped]


def _traces(folder: Path | None) -> list[wire.LabSource]:
    """Trace files of the directory; links out of it are left out. Blocks."""
    return [
        wire.LabSource(
            name=path.name,
            title=f"{path.name} of the trace directory",
            bytes=path.stat().st_size,
            methods=["simulate"],
        )
        for path in _files(folder)
    ]


def _files(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    root = folder.resolve()
    inside = (p for p in sorted(root.iterdir()) if p.name.endswith(_ENDINGS) and p.is_file())
    return [p for p in inside if p.resolve().parent == root][:TRACES_MAX]


def _trace(folder: Path | None, name: str) -> Path:
    """The file of a source; only names that are listed can be used."""
    if name == "shipped":
        return SHIPPED
    found = next((p for p in _files(folder) if p.name == name), None)
    if found is None:
        raise BadRequest(f"source: no source {name!r}; GET /lab/sources lists them", field="source")
    return found


# -- from what is asked to a task -------------------------------------------------------------


async def _task(service: Service, asked: wire.LabAsk) -> Task:
    live, rules = service.control.book.live.tunables, service.lab.rules
    grid = math.prod(map(len, asked.axes.values())) if asked.axes else 0
    _check_runs((grid + len(asked.arms) + 1) * asked.seeds, rules.runs_max)
    points = _points(live, asked)
    if asked.requests > rules.requests_max:
        text = f"requests: {asked.requests} is above {rules.requests_max} (lab.requests_max)"
        raise Invalid(text, field="requests")
    task = Task(
        method=asked.method,
        points=points,
        live=live,
        requests=asked.requests,
        load=asked.load,
        seeds=asked.seeds,
    )
    if asked.method == "rescore":
        return await _rescoring(service, asked, task)
    return await _simulation(service, asked, task)


def _check_runs(runs: int, most: int) -> None:
    if runs > most:
        text = f"axes: {runs} runs are more than {most} (lab.runs_max); take fewer values"
        raise Invalid(text, field="axes")


async def _rescoring(service: Service, asked: wire.LabAsk, task: Task) -> Task:
    store = service.store
    if asked.source != "recorded":
        text = "source: only recorded decisions can be made again; simulate a trace instead"
        raise BadRequest(text, field="source")
    if store is None:
        raise StoreError("this service keeps no records")
    if asked.requests > DECISIONS_MAX:
        text = f"requests: at most {DECISIONS_MAX} decisions are made again"
        raise Invalid(text, field="requests")
    found = await asyncio.to_thread(newest_first, store, asked.requests)
    return dataclasses.replace(task, decisions=tuple(found[::-1]))


async def _simulation(service: Service, asked: wire.LabAsk, task: Task) -> Task:
    shape = _shape(service, asked.fleet)
    if asked.source == "recorded":
        seen = service.control.window.requests(asked.requests)
        if len(seen) < LEAST:
            text = f"source: {len(seen)} recorded requests with keys, needs {LEAST}"
            raise BadRequest(text, field="source")
        return dataclasses.replace(task, shape=shape, seen=tuple(seen))
    path = await asyncio.to_thread(_trace, service.lab.rules.trace_dir, asked.source)
    return dataclasses.replace(task, shape=shape, trace=path)


def _shape(service: Service, asked: wire.LabFleet | None) -> FleetShape:
    if asked is None:
        return fleet_shape(service.conductor.fleet)
    if not asked.prefill and not asked.both:
        raise Invalid("fleet: no node takes prompts (prefill and both are 0)", field="fleet")
    cost = profile(asked.profile)
    return FleetShape(
        prefill=asked.prefill,
        decode=asked.decode,
        both=asked.both,
        profile=asked.profile,
        cache_tokens=asked.cache_tokens,
        batch_max=256,
        can_fetch=True,
        prefill_cost=prefill_coefficients(cost),
        tbt_cost=tbt_coefficients(cost),
    )


def _points(live: Tunables, asked: wire.LabAsk) -> tuple[Tried, ...]:
    """The live configuration first, then arms, then the grid; what equals another is left out."""
    if not asked.arms and not asked.axes:
        raise Invalid("arms: nothing to compare the live configuration with", field="arms")
    found = [_tried(live, arm.policy, arm.params, arm.label) for arm in asked.arms]
    policy = asked.policy or live.policy
    axes = {resolve(name, policy): values for name, values in asked.axes.items()}
    if any(not values for values in axes.values()):
        raise Invalid("axes: a parameter has no values", field="axes")
    if axes:
        for values in itertools.product(*axes.values()):
            found.append(_tried(live, policy, dict(zip(axes, values, strict=True)), ""))
    seen = [Tried(label="live", tunables=live, params={}, live=True)]
    for tried in found:
        if all(tried.tunables != other.tunables for other in seen):
            taken = sum(other.label == tried.label for other in seen)
            label = f"{tried.label} ({taken + 1})" if taken else tried.label
            seen.append(dataclasses.replace(tried, label=label))
    return tuple(seen)


def _tried(live: Tunables, policy: str, params: dict[str, Any], label: str) -> Tried:
    tunables = with_changes(live, {"policy": policy, **params})
    changes = {path: new for path, (_, new) in diff(live, tunables).items()}
    named = ", ".join(f"{n.rpartition('.')[2]} {_short(v)}" for n, v in params.items())
    return Tried(
        label=label or (f"{policy}: {named}" if named else policy),
        tunables=tunables,
        params=changes,
    )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
