"""Two whole schedulers on one Postgres: one is paused, cut off or killed, and nothing is done
twice or left out.

The ordinary run pauses the busy one for as long as the other needs to take over, and then kills
it; `-m soak` does each for a minute and holds the promise of fifteen seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cable import Cable
from record_cases import rows, wait_for

TOKEN = "a-token-for-the-tests-of-two-schedulers"
ADMIN = {"authorization": f"Bearer {TOKEN}"}
WHY = {"reason": "a test of it"}
SLOT_S = 10
TAKE_OVER_S = 15.0
START_S = 120.0


class Replica:
    """A `conductor serve` process."""

    def __init__(self, folder, url: str) -> None:
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = {
            "server": {"port": port},
            "state_dir": str(folder / "state"),
            "database_url": url,
            "log_level": "error",
            "auth": {"admin_token": TOKEN},
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "core.cli", "serve", "--config"]
        self.process = subprocess.Popen([*command, str(folder / "settings.json")])
        self.name = folder.name
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0)

    def ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self._client.get("/health/live").status_code == 200
        return False

    def ask(self, method, path, body=None, *, token=TOKEN):
        headers = {"authorization": f"Bearer {token}"}
        answer = self._client.request(method, f"/admin/v1{path}", json=body, headers=headers)
        return answer.status_code, answer.json()

    def revision(self) -> int:
        return self.ask("GET", "/revisions")[1]["live"]

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10.0)
        self._client.close()


@pytest.fixture
def world(postgres_server, tmp_path):
    """(database URL, cable of the first, both replicas)."""
    url = postgres_server.new_database()
    cable = Cable(postgres_server.port)
    behind = postgres_server.url(url.rpartition("/")[2], port=cable.port)
    both = [Replica(tmp_path / "one", behind), Replica(tmp_path / "two", url)]
    try:
        for replica in both:
            wait_for(replica.ready, START_S)
        wait_for(lambda: all(r.ask("GET", "/revisions")[0] == 200 for r in both), START_S)
        yield url, cable, both
    finally:
        for replica in both:
            replica.end()
        cable.close()


def taken(url: str) -> list[tuple[int, str, float]]:
    """(slot, process, seconds after its beginning) of every slot of the ten-second job."""
    found = rows(
        url,
        "SELECT s.slot, r.pid, s.at_us FROM slots s JOIN replicas r ON r.id = s.replica"
        " WHERE s.job = 'rollups.10' ORDER BY s.slot",
    )
    return [(int(slot), int(pid), at_us / 1e6 - slot * SLOT_S) for slot, pid, at_us in found]


def takes_over(url: str, other: Replica) -> None:
    """Until the other has done a slot that began after now."""
    now = max(slot for slot, _, _ in taken(url))
    wait_for(lambda: any(s > now and p == other.process.pid for s, p, _ in taken(url)), 60.0)


def each_once(url: str) -> float:
    """No slot was left out; the latest one's delay in seconds. (Twice is against the key.)"""
    found = taken(url)
    first = found[0][0]
    assert [slot for slot, _, _ in found] == list(range(first, first + len(found))), found
    return max(late_s for _, _, late_s in found[1:])


def busy_and_other(url: str, both: list[Replica]) -> tuple[Replica, Replica]:
    """Who did the last slot, and who did not."""
    wait_for(lambda: bool(taken(url)), 60.0)
    pid = taken(url)[-1][1]
    one, two = both
    return (one, two) if one.process.pid == pid else (two, one)


def test_what_one_does_holds_in_both_and_the_other_takes_over(world):
    url, _, (one, two) = world
    # A revision, a cordon and the end of a token, made through one.
    base = one.revision()
    change = {"base": base, "changes": {"linear.alpha": 0.25}, **WHY}
    assert one.ask("PUT", "/tunables", change)[0] == 200
    began_s = time.monotonic()
    wait_for(lambda: two.revision() == base + 1)
    print(f"\na revision was live in the other after {time.monotonic() - began_s:.2f} s")
    _, made = one.ask("POST", "/tokens", {"name": "ci", "role": "operator"})
    ci = made["token"]
    node = {"id": "n", "url": "http://127.0.0.1:9"}
    assert one.ask("POST", "/nodes", node, token=ci)[0] == 201
    wait_for(lambda: two.ask("GET", "/nodes/n", token=ci)[0] == 200)
    assert one.ask("POST", "/nodes/n/cordon", WHY, token=ci)[0] == 200
    assert two.ask("PATCH", "/nodes/n", {"weight": 2.5, **WHY}, token=ci)[0] == 200
    for replica in (one, two):
        wait_for(lambda r=replica: r.ask("GET", "/nodes/n")[1]["weight"] == 2.5)
        assert replica.ask("GET", "/nodes/n")[1]["drain"]["state"] == "cordoned"
    assert one.ask("DELETE", f"/tokens/{made['id']}")[0] == 200
    began_s = time.monotonic()
    for replica in (one, two):
        wait_for(lambda r=replica: r.ask("GET", "/state", token=ci)[0] == 401)
    print(f"a revoked token was refused by both after {time.monotonic() - began_s:.2f} s")
    # The busy one is paused while a change is due, then killed.
    busy, other = busy_and_other(url, [one, two])
    due = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    change = {"changes": {"linear.alpha": 0.4}, "at": due, **WHY}
    assert busy.ask("POST", "/scheduled", change)[0] == 201
    busy.signal(signal.SIGSTOP)
    wait_for(lambda: other.revision() == base + 2, 60.0)
    takes_over(url, other)
    busy.signal(signal.SIGCONT)
    wait_for(lambda: busy.revision() == base + 2, 60.0)
    busy.signal(signal.SIGKILL)
    takes_over(url, other)
    assert other.revision() == base + 2  # once, not by each
    print(f"each of {len(taken(url))} slots ran once, the latest {each_once(url):.1f} s late")


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["kill", "pause", "cut"])
def test_take_over_is_within_fifteen_seconds(world, fault):
    url, cable, both = world
    wait_for(lambda: len(taken(url)) >= 2, 60.0)
    busy, other = busy_and_other(url, both) if fault != "cut" else both
    if fault == "cut":
        cable.cut.set()
    else:
        busy.signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    ended_s = time.monotonic() + 60.0
    takes_over(url, other)
    time.sleep(max(ended_s - time.monotonic(), 0.0))
    if fault == "cut":
        cable.cut.clear()
    if fault == "pause":
        busy.signal(signal.SIGCONT)
    if fault != "kill":
        wait_for(lambda: busy.ask("GET", "/revisions")[0] == 200, 60.0)
    for _ in range(2):
        takes_over(url, other)
    late_s = each_once(url)
    print(f"\n{fault}: each of {len(taken(url))} slots ran once, the latest {late_s:.1f} s late")
    assert late_s <= TAKE_OVER_S
