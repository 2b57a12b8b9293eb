"""The admin API against its own OpenAPI document: generated requests to a running service.

Every operation but the endless event stream is called with generated valid input, with valid
input about things that exist, and with invalid input. No answer may be a failure of the service,
and each has to be what the document says. The long variant makes twelve times the requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import schemathesis
from control_world import controlled, flushed
from gateway_world import Engine, engines
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from core.ports import DecisionQuery

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ENDLESS = "/admin/v1/events"
WAIT_S = 60.0


class Caller:
    """Calls one operation after another; what was answered, by status."""

    def __init__(self, url: str, document: dict, known: dict) -> None:
        self._url, self._known = url, known
        self._schema = schemathesis.openapi.from_dict(document)
        self.statuses: Counter[int] = Counter()
        self.called: Counter[str] = Counter()

    def all(self, valid: int, invalid: int) -> None:
        for found in self._schema.get_all_operations():
            operation = found.ok()
            if operation.path == ENDLESS:
                continue
            self._call(operation, operation.as_strategy(), valid)
            names = {p.name for p in operation.path_parameters}
            if names and names <= self._known.keys() and operation.method != "delete":
                real = {name: self._known[name] for name in names}
                self._call(operation, operation.as_strategy(path_parameters=real), valid)
            if operation.method != "get":
                wrong = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
                self._call(operation, wrong, invalid)

    def _call(self, operation, strategy, examples: int) -> None:
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def one(case):
            answer = case.call(base_url=self._url, timeout=WAIT_S)
            self.statuses[answer.status_code] += 1
            self.called[f"{operation.method} {operation.path}"] += 1
            case.validate_response(answer, checks=CHECKS)

        try:
            one()
        except Unsatisfiable:
            pass  # nothing that could be wrong in it


async def run(folder, *, valid: int, invalid: int) -> Caller:
    with engines(Engine("a"), Engine("b")) as made:
        async with controlled(made, folder) as w:
            for n in range(6):
                await w.complete([n] * 128, max_tokens=2)
            await flushed(w)
            page = await asyncio.to_thread(w.service.store.decisions, DecisionQuery())
            known = {"node": "a", "name": page.rows[0].decision.id, "number": 1}
            async with w.client.get(f"{w.url}/admin/v1/openapi.json") as answer:
                document = await answer.json()
            caller = Caller(w.url, document, known)
            await asyncio.to_thread(caller.all, valid, invalid)
            paths = {
                f"{method} {path}"
                for path, operations in document["paths"].items()
                for method in operations
            }
            assert paths - {f"get {ENDLESS}"} == set(caller.called)
            # The service is what it was: it still answers.
            assert (await w.client.get(f"{w.url}/admin/v1/state")).status == 200
    return caller


@pytest.mark.timeout(400)
async def test_every_answer_is_what_the_document_says(tmp_path):
    caller = await run(tmp_path, valid=3, invalid=2)
    assert caller.statuses[200] > 50 and caller.statuses[422] > 20


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_every_answer_is_what_the_document_says_at_length(tmp_path):
    caller = await run(tmp_path, valid=40, invalid=25)
    assert caller.statuses[200] > 500
