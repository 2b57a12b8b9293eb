"""Many readers at once: how long a refresh takes, what it costs, and what decisions notice.

    python -m tests.bench console_sessions     (make bench-console)

Two arms in turns, on one service under one seeded load: without any console, and with a console
and its readers. Decisions' p99 is the service's own (of the last minute). Of refreshes, p50 and
p95 over all, page by page, with the console's CPU time for one, which a busy machine distorts
least. On a virtual machine a host that takes processor time away once all cores are in use delays
decisions whatever the console does: how much it took is printed with each arm.

CONDUCTOR_BENCH_SESSIONS (100), CONDUCTOR_BENCH_PAGES (paths, the overview is "/"; each is opened
by an equal share), CONDUCTOR_BENCH_TOKENS (20: so many viewers' tokens are shared out among the
readers; 0: nobody is signed in), CONDUCTOR_BENCH_ROUNDS (4), CONDUCTOR_BENCH_SECONDS of one arm
(75), CONDUCTOR_BENCH_RATE of requests a second (15), CONDUCTOR_BENCH_NODES (8).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import psutil

from tests.bench.console_world import World, machine, world
from tests.bench.elsewhere import be_elsewhere
from tests.bench.streamlit_client import Reader, Seen

SESSIONS = int(os.environ.get("CONDUCTOR_BENCH_SESSIONS", "100"))
TOKENS = int(os.environ.get("CONDUCTOR_BENCH_TOKENS", "20"))
PAGES = os.environ.get(
    "CONDUCTOR_BENCH_PAGES", "/ / / / /nodes /cache?view=Replication /slo /flow /breaker /alerts"
).split()
ROUNDS = int(os.environ.get("CONDUCTOR_BENCH_ROUNDS", "4"))
SECONDS = float(os.environ.get("CONDUCTOR_BENCH_SECONDS", "75"))
RATE = float(os.environ.get("CONDUCTOR_BENCH_RATE", "15"))
NODES = int(os.environ.get("CONDUCTOR_BENCH_NODES", "8"))
EVERY_S = 2.0
OPENING_S = 15.0
"""Readers arrive over this long; figures are of what comes after."""
LIMIT_S, DECISION_LIMIT = 0.3, 1.2


@dataclass
class Arm:
    """What one arm saw."""

    decision_p99_us: float
    stolen: float
    """Share of the machine's processor time that its host gave to others."""
    cpu_s: float = 0.0
    seen: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))


def main() -> None:
    """Print each round, then both judgements."""
    who = f"{SESSIONS} sessions of {TOKENS} tokens"
    print(f"{who}, a refresh every {EVERY_S:g} s; {machine()}", flush=True)
    with world(nodes=NODES) as running:
        running.start_traffic(per_s=RATE)
        time.sleep(20)
        alone, beside = [], []
        for _ in range(ROUNDS):
            alone.append(without(running))
            running.start_console()
            beside.append(with_readers(running))
            running.stop_console()
            print(machine(), flush=True)
    judge(alone, beside)


def without(running: World) -> Arm:
    """Nobody looks."""
    stolen = Stolen()
    time.sleep(max(SECONDS, 61.0))
    arm = Arm(p99_us(running), stolen.share())
    print(f"without a console: {_decisions(arm)}", flush=True)
    return arm


def with_readers(running: World) -> Arm:
    """All readers, in a process of their own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply_async(readers, (running.console_url, running.tokens(TOKENS)))
        time.sleep(OPENING_S + 3 * EVERY_S)
        began_s, began, stolen = cpu_s(running), time.monotonic(), Stolen()
        time.sleep(SECONDS - 3 * EVERY_S)
        spent, lasted = cpu_s(running) - began_s, time.monotonic() - began
        arm = Arm(p99_us(running), stolen.share(), spent / lasted)
        for page, seen in result.get(timeout=300):
            arm.seen[page].append(seen)
    report(arm)
    return arm


def readers(url: str, tokens: list[str]) -> list[tuple[str, Seen]]:
    """What each reader saw; the body of the load's process."""
    be_elsewhere()
    return asyncio.run(_read_all(url, tokens))


async def _read_all(url: str, tokens: list[str]) -> list[tuple[str, Seen]]:
    until = time.monotonic() + OPENING_S + SECONDS
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        reading, pages = [], []
        for number in range(SESSIONS):
            page = PAGES[number % len(PAGES)]
            path, _, query = page.strip("/").partition("?")
            delay_s = OPENING_S * number / SESSIONS
            token = tokens[number * len(tokens) // SESSIONS] if tokens else ""
            reader = Reader(http, url, path, query, token=token)
            reading.append(reader.read(delay_s=delay_s, until=until, every_s=EVERY_S))
            pages.append(page)
        return list(zip(pages, await asyncio.gather(*reading), strict=True))


class Stolen:
    """Processor time that the machine's host took, from now on."""

    def __init__(self) -> None:
        self._stolen_s, self._began = self._now(), time.monotonic()

    def share(self) -> float:
        """Of all cores' time since then."""
        lasted_s = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return (self._now() - self._stolen_s) / lasted_s

    @staticmethod
    def _now() -> float:
        return float(getattr(psutil.cpu_times(), "steal", 0.0))


def cpu_s(running: World) -> float:
    """CPU time the console's process has used."""
    times = running.console_process.cpu_times()
    return times.user + times.system


def p99_us(running: World) -> float:
    """Of the service's decisions in the last minute."""
    found = running.state()["service"]["decision_p99_us"]
    return float(found or "nan")


def report(arm: Arm) -> None:
    """A line a page, and one of all."""
    print(f"{'page':28}{'readers':>8}{'p50 ms':>9}{'p95 ms':>9}{'late':>6}{'KB':>7}{'open s':>8}")
    for page, seen in [*arm.seen.items(), ("all", [s for e in arm.seen.values() for s in e])]:
        print(_line(page, seen))
        for error in sorted({e for s in seen for e in s.errors}):
            print(f"    error: {error}")
    wanted_per_s = SESSIONS / EVERY_S
    share = f"{arm.cpu_s:.2f} cores, {1e3 * arm.cpu_s / wanted_per_s:.1f} ms CPU a refresh"
    print(f"console: {share}; {_decisions(arm)}", flush=True)


def _decisions(arm: Arm) -> str:
    return f"decisions p99 {arm.decision_p99_us:,.0f} us, {arm.stolen:.1%} taken by the host"


def _line(page: str, seen: list[Seen]) -> str:
    took = _settled(seen)
    size = sum(s.payload_bytes for s in seen) / max(1, sum(len(s.refreshes_s) for s in seen))
    p50, p95 = np.percentile(took, [50, 95]) * 1e3 if took else (float("nan"), float("nan"))
    opened = float(np.median([s.opened_s for s in seen]))
    late = sum(s.late for s in seen)
    return (
        f"{page:28}{len(seen):8}{p50:9.0f}{p95:9.0f}{late:6}{size / 1024:7.1f}{opened:8.2f}"
    )  # fmt: skip


def _settled(seen: list[Seen]) -> list[float]:
    """Refreshes after all readers had opened, or nearly all."""
    first = int(OPENING_S / EVERY_S)
    return [took for s in seen for took in s.refreshes_s[first:] or s.refreshes_s]


def judge(alone: list[Arm], beside: list[Arm]) -> None:
    """Both figures against what is asked of them."""
    every = [s for arm in beside for seen in arm.seen.values() for s in seen]
    p95 = float(np.percentile(_settled(every), 95))
    ratio = _median_p99_us(beside) / _median_p99_us(alone)
    print(f"refresh p95 {p95 * 1e3:.0f} ms, asked for: below {LIMIT_S * 1e3:.0f} ms")
    print(f"decisions p99 with / without: {ratio:.2f}, asked for: at most {DECISION_LIMIT:g}")


def _median_p99_us(arms: list[Arm]) -> float:
    """A minute holds only nine decisions beyond its p99: one arm says little."""
    return float(np.median([arm.decision_p99_us for arm in arms]))


if __name__ == "__main__":
    main()
