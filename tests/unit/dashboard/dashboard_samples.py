"""Answers of the admin API for the console's unit tests, and a server that gives them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from core import wire
from core.domain import EngineKind, Health, OutcomeKind, Role, Trust

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def quantiles(p99: float, p50: float | None = None) -> wire.Quantiles:
    p50 = p99 / 2 if p50 is None else p50
    return wire.Quantiles(count=100, mean=p50, p50=p50, p90=p99, p99=p99)


def node(name: str, **more: object) -> wire.NodeView:
    given: dict[str, object] = {
        "id": name,
        "url": "http://10.0.0.1:8000",
        "engine": EngineKind.VLLM,
        "role": Role.BOTH,
        "health": Health.HEALTHY,
        "trust": Trust.EXACT,
        "eligible": True,
        "load": wire.NodeLoad(load=0.5, kv_usage=0.25, running=3, waiting=0),
        **more,
    }
    return wire.NodeView.model_validate(given)


def state(
    *nodes: wire.NodeView, problems: tuple[str, ...] = (), **totals: object
) -> wire.FleetState:
    counted = {
        "nodes": len(nodes),
        "eligible": sum(n.eligible for n in nodes),
        "decisions": 10,
        "ttft_slo_s": 2.0,
        "tbt_slo_s": 0.1,
        **totals,
    }
    return wire.FleetState(
        at=NOON,
        policy="min_ttft",
        revision=3,
        totals=wire.Totals.model_validate(counted),
        service=wire.ServiceView(started_at=NOON, uptime_s=1.0),
        nodes=list(nodes),
        problems=list(problems),
    )


def series(*points: wire.SeriesPoint) -> wire.Series:
    return wire.Series(
        window="live", step_s=5.0, points=list(points), ttft_slo_s=2.0, tbt_slo_s=0.1
    )


def point(step: int, **more: object) -> wire.SeriesPoint:
    return wire.SeriesPoint.model_validate({"at": NOON + timedelta(seconds=5 * step), **more})


def outcome(**more: object) -> wire.OutcomeView:
    given = {
        "kind": OutcomeKind.OK, "status": 200, "ttft_s": 0.3, "tbt_s": 0.02, "e2e_s": 1.5,
        "prompt_tokens": 1000, "cached_tokens": 640, "output_tokens": 60, **more,
    }  # fmt: skip
    return wire.OutcomeView.model_validate(given)


def row(**more: object) -> wire.DecisionRow:
    given = {
        "id": "0" * 24, "at": NOON, "request_id": "r1", "model": "m", "policy": "min_ttft",
        "revision": 3, "routed": True, "prompt_tokens": 1000, "prefill_node": "a",
        "decode_node": "b", "match_tokens": 640, "reachable_tokens": 800,
        "predicted_queue_s": 0.1, "predicted_prefill_s": 0.1, "predicted_ttft_s": 0.2,
        "predicted_tbt_s": 0.02, "ttft_slo_s": 2.0, "tbt_slo_s": 0.1, "outcome": outcome(),
        **more,
    }  # fmt: skip
    return wire.DecisionRow.model_validate(given)


def selection(
    *candidates: tuple[str, dict[str, float], float], sense: str = "min"
) -> wire.SelectionView:
    views = [
        wire.CandidateView(
            rank=i + 1, node=name, total=total, chosen=i == 0, inputs={"load": 0.5}, terms=terms,
            why_not="" if i == 0 else "worse",
        )
        for i, (name, terms, total) in enumerate(candidates)
    ]  # fmt: skip
    return wire.SelectionView(sense=sense, candidates=views, size=len(views))


@contextmanager
def serving(answers: dict[str, tuple[int, str]]) -> Iterator[str]:
    """An HTTP server with fixed answers by path (without the query); yields its address."""
    asked: list[str] = answers.setdefault("asked", [])  # type: ignore[assignment, arg-type]

    def answer(_token: str, address: str) -> tuple[int, str]:
        asked.append(address)
        return answers.get(address.partition("?")[0], (404, "{}"))

    with answering(answer) as url:
        yield url


@contextmanager
def answering(answer: Callable[[str, str], tuple[int, str]]) -> Iterator[str]:
    """An HTTP server that answers what `answer` gives for a token and an address, query included;
    yields its own address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("authorization", "").removeprefix("Bearer ")
            status, body = answer(token, self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
