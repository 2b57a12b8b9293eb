import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dashboard_samples import NOON, node, point, series, serving, state

from core import wire
from dashboard.api import feed as feed_module
from dashboard.api.client import AdminClient, Refused, Unreachable, Unreadable
from dashboard.api.feed import Feed
from dashboard.launch import streamlit_command
from dashboard.parts.window import fixed, relative

GOOD = {
    "/admin/v1/state": (200, state(node("a")).model_dump_json()),
    "/admin/v1/series": (200, series(point(0)).model_dump_json()),
}


def until(done: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def unused_url() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}"


def test_client_reads_state_and_sends_only_the_filters_that_are_set() -> None:
    page = wire.DecisionPage(rows=[]).model_dump_json()
    answers = {**GOOD, "/admin/v1/decisions": (200, page)}
    with serving(answers) as url:
        client = AdminClient(url + "/")
        assert client.state().nodes[0].id == "a"
        client.decisions(wire.DecisionQuery(node="x/y", slo_missed=True, since=NOON))
        client.close()
    asked = answers["asked"][-1]
    assert "node=x%2Fy" in asked
    assert "slo_missed=true" in asked
    assert "tenant" not in asked


def test_client_names_what_went_wrong() -> None:
    error = wire.ErrorBody(error=wire.ErrorDetail(message="no such decision")).model_dump_json()
    answers = {"/admin/v1/state": (200, '{"at": 1}'), "/admin/v1/decisions/x%2Fy": (404, error)}
    with serving(answers) as url:
        client = AdminClient(url)
        with pytest.raises(Unreadable, match=r"GET /state: field policy"):
            client.state()
        with pytest.raises(Refused, match="no such decision") as refused:
            client.decision("x/y")
        assert refused.value.status == 404
        with pytest.raises(Refused, match="status 404 without an explanation"):
            client.live_series()
        client.close()
    client = AdminClient(unused_url())
    with pytest.raises(Unreachable, match="nothing answers"):
        client.state()
    client.close()


def test_feed_keeps_the_last_good_answer_and_says_since_when_it_fails() -> None:
    answers = dict(GOOD)
    with serving(answers) as url:
        client = AdminClient(url)
        feed = Feed(client, wall=lambda: NOON)
        feed.poll()
        good = feed._look
        answers["/admin/v1/state"] = (500, "{}")
        feed.poll()
        feed.poll()
        client.close()
    bad = feed._look
    assert good.error == ""
    assert bad.state == good.state
    assert bad.failing_since == NOON
    assert bad.error
    assert bad.tick == 3


def test_feed_recovers() -> None:
    answers: dict[str, tuple[int, str]] = {}
    with serving(answers) as url:
        client = AdminClient(url)
        feed = Feed(client)
        feed.poll()
        assert feed._look.error
        answers.update(GOOD)
        feed.poll()
        client.close()
    assert feed._look.error == ""
    assert feed._look.failing_since is None


def test_feed_polls_while_somebody_looks_then_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "TICK_S", 0.02)
    monkeypatch.setattr(feed_module, "INTEREST_S", 0.2)
    with serving(dict(GOOD)) as url:
        client = AdminClient(url)
        feed = Feed(client)
        assert feed.look().state is not None
        first = feed.look().tick
        until(lambda: feed.look().tick > first + 2)
        until(lambda: feed._thread is None)
        rested = feed._look.tick
        assert feed.look().tick >= rested
        until(lambda: feed._thread is None)
        client.close()


def test_feed_fetches_history_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "TICK_S", 0.02)
    monkeypatch.setattr(feed_module, "INTEREST_S", 0.3)
    answers = dict(GOOD)
    now = datetime(2026, 3, 1, tzinfo=UTC)
    hour = relative("1h", now)
    with serving(answers) as url:
        client = AdminClient(url)
        feed = Feed(client, wall=lambda: now)
        feed.look()
        until(lambda: feed.past(hour) is not None)
        until(lambda: feed._thread is None)
        client.close()
    asked = [a for a in answers["asked"] if "minutes" in a]
    assert len(asked) == 1
    assert "since=2026-02-28T23" in asked[0]


def test_a_fixed_window_is_read_once_and_with_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "TICK_S", 0.02)
    monkeypatch.setattr(feed_module, "INTEREST_S", 0.3)
    monkeypatch.setattr(feed_module, "HISTORY_EVERY_S", 0.01)
    answers = dict(GOOD)
    now = datetime(2026, 3, 1, tzinfo=UTC)
    stretch = fixed(now - timedelta(hours=3), now - timedelta(hours=2), now)
    with serving(answers) as url:
        client = AdminClient(url)
        feed = Feed(client, wall=lambda: now)
        feed.look()
        until(lambda: feed.past(stretch) is not None)
        first = feed.look().tick
        until(lambda: feed.look().tick > first + 3)
        until(lambda: feed._thread is None)
        client.close()
    asked = [a for a in answers["asked"] if "minutes" in a]
    assert len(asked) == 1
    assert "since=2026-02-28T21" in asked[0]
    assert "until=2026-02-28T22" in asked[0]


def test_command_is_absolute_and_carries_the_service() -> None:
    argv, env = streamlit_command(host="127.0.0.1", port=1234, api_url="http://s:1")
    assert Path(argv[0]).is_absolute()
    assert Path(argv[4]).is_absolute()
    assert argv[argv.index("--server.port") + 1] == "1234"
    assert env["CONDUCTOR_URL"] == "http://s:1"


def test_settings_hold_from_any_working_directory(tmp_path: Path) -> None:
    argv, _ = streamlit_command(host="127.0.0.1", port=1, api_url="http://s")
    names = ("runner.postScriptGC", "browser.gatherUsageStats", "server.fileWatcherType")
    code = (
        "import json, sys; from streamlit import config\n"
        f"config._main_script_path = {argv[4]!r}\n"
        "config.get_config_options(force_reparse=True)\n"
        f"print(json.dumps([config.get_option(n) for n in {names!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [False, False, "none"]


def test_a_series_ends_with_the_last_whole_step_and_is_kept_until_the_next() -> None:
    def at(seconds: float) -> tuple[int, str]:
        shown = state(node("a")).model_copy(update={"at": NOON + timedelta(seconds=seconds)})
        return 200, shown.model_dump_json()

    answers = {
        "/admin/v1/state": at(12),
        "/admin/v1/series": (200, series(point(0), point(1), point(2)).model_dump_json()),
    }
    with serving(answers) as url:
        client = AdminClient(url)
        feed = Feed(client)
        feed.poll()
        first = feed._look.live
        answers["/admin/v1/state"] = at(14.9)
        feed.poll()
        same = feed._look.live
        answers["/admin/v1/state"] = at(15)
        feed.poll()
        client.close()
    assert first is not None
    assert [p.at for p in first.points] == [point(0).at, point(1).at]
    assert same is first
    assert feed._look.live is not None
    assert len(feed._look.live.points) == 3


def test_a_series_without_a_whole_step_yet_is_shown_as_it_is() -> None:
    with serving(dict(GOOD)) as url:
        client = AdminClient(url)
        feed = Feed(client)
        feed.poll()
        client.close()
    assert feed._look.live is not None
    assert len(feed._look.live.points) == 1
