"""What is done once or at once is the same as what Streamlit does each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from streamlit import config
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.NewSession_pb2 import NewSession
from streamlit.runtime import app_session
from streamlit.runtime.scriptrunner import RunDescriptor, ScriptRunnerEvent

from dashboard import lighter
from dashboard.lighter import remember_theme

SECTIONS = {"theme": "", "theme.light": "light", "theme.dark": "dark", "theme.sidebar": "sidebar"}


def filled() -> NewSession:
    message = NewSession()
    for section, part in SECTIONS.items():
        theme = message.custom_theme
        app_session._populate_theme_msg(getattr(theme, part) if part else theme, section)
    return message


def test_the_theme_is_the_same_and_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = app_session._populate_theme_msg
    monkeypatch.setattr(app_session, "_populate_theme_msg", original)
    before = {s: config.get_option(f"{s}.primaryColor") for s in ("theme.light", "theme.dark")}
    try:
        config.set_option("theme.light.primaryColor", "#0b62a8")
        config.set_option("theme.dark.primaryColor", "#6cb8f2")
        expected = filled()
        assert expected.custom_theme.light.primary_color == "#0b62a8"
        remember_theme()
        remember_theme()
        assert app_session._populate_theme_msg is not original
        assert filled() == expected
        asked: list[str] = []
        monkeypatch.setattr(config, "get_options_for_section", asked.append)
        assert filled() == expected
        assert asked == []
    finally:
        for section, colour in before.items():
            config.set_option(f"{section}.primaryColor", colour)


DRAWN = ScriptRunnerEvent.ENQUEUE_FORWARD_MSG
ENDED = ScriptRunnerEvent.FRAGMENT_STOPPED_WITH_SUCCESS


@dataclass
class Heard:
    """As much of a session as is needed to hand events over to it."""

    taken: list[object] = field(default_factory=list)
    turns: list[Callable[[], None]] = field(default_factory=list)
    _scriptrunner: object = None

    def __post_init__(self) -> None:
        self._browser_queue = SimpleNamespace(enqueue=self.taken.append)
        self._handle_scriptrunner_event_on_event_loop = lambda _sender, event, **_: (
            self.taken.append(event)
        )
        self._call_soon_on_event_loop = self.turns.append

    def hear(self, sender: object, event: ScriptRunnerEvent, **more: object) -> None:
        """What happens without a change."""
        self.turns.append(lambda: self.taken.append(more.get("forward_msg", event)))


@pytest.mark.parametrize("timed", [True, False])
def test_what_a_timed_run_draws_comes_at_once_and_in_its_order(timed: bool) -> None:
    session = Heard()

    def script(runner: object, _: object) -> None:
        hear(session, runner, ScriptRunnerEvent.SCRIPT_STARTED)
        for message in ("one", "two"):
            hear(session, runner, DRAWN, forward_msg=message)
        hear(session, runner, ENDED)
        hear(session, runner, ScriptRunnerEvent.SHUTDOWN)

    hear, run = lighter._hearing(Heard.hear), lighter._running(script)
    runner = session._scriptrunner = SimpleNamespace()
    run(runner, SimpleNamespace(is_auto_rerun=timed, fragment_id_queue=["f"]))
    assert len(session.turns) == (2 if timed else 5)
    for turn in session.turns:
        turn()
    started, ended = ScriptRunnerEvent.SCRIPT_STARTED, ScriptRunnerEvent.SHUTDOWN
    assert session.taken == [started, "one", "two", ENDED, ended]


@pytest.mark.parametrize("heard", [True, False])
def test_a_run_that_had_ended_when_the_next_was_asked_for_is_not_lost(heard: bool) -> None:
    session = Heard()
    senders: list[object] = []
    session._handle_scriptrunner_event_on_event_loop = lambda sender, *_, **__: senders.append(
        sender
    )
    hear, first, second = lighter._hearing(Heard.hear), SimpleNamespace(), SimpleNamespace()

    def script(runner: object, _: object) -> None:
        hear(session, runner, DRAWN, forward_msg="drawn")
        hear(session, runner, ENDED)

    session._scriptrunner = first
    lighter._running(script)(first, SimpleNamespace(is_auto_rerun=True, fragment_id_queue=["f"]))
    session._scriptrunner = second
    if heard:  # the next has begun: what came before it is of no use
        hear(session, second, ScriptRunnerEvent.SCRIPT_STARTED)
    session.turns[0]()
    assert session.taken == ([] if heard else ["drawn"])
    assert senders == ([first, first] if heard else [second])


def test_a_fragments_run_is_announced_as_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def original(_self: object, page: str, run: Any, pages: object = None) -> ForwardMsg:
        made.append(pages)
        message = ForwardMsg()
        message.new_session.page_script_hash = page
        message.new_session.name = str(pages)
        app_session._set_run_identity(message, run)
        return message

    announce = lighter._announcing(original)
    session = SimpleNamespace(_run_on_save=False, _state="running")
    asked = [("a", {"p": 1}), ("a", {"p": 1}), ("b", {"p": 1}), ("b", {"p": 2}), ("b", {"p": 2})]
    for page, pages in asked:
        run = RunDescriptor.create(["fragment"])
        assert announce(session, page, run, pages) == original(session, page, run, pages)
    assert len(made) == 2 * len(asked) - 2
    announce(session, "b", RunDescriptor.create(None), {"p": 2})
    assert len(made) == 2 * len(asked) - 1
