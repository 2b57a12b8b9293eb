"""What Streamlit does anew at each refresh although it need not. Beside `parts/drawn.py` the only
place that touches its insides; where a later version has them no more, nothing is changed.

- Every run is announced to the browser by a message that carries the whole theme, all pages and
  all settings, worked out each time. Here the theme is worked out once, and the announcement of a
  fragment's run made once a session, to be marked with each run.
- Everything that a run draws is handed from the run's thread to the server's as it is drawn: two
  wake-ups an element, for which both threads fight over the interpreter. Here what a timed run
  draws is handed over at its end, at once. Nobody waits for such a run, and it is short.
- Messages are sent one a turn of the server's loop, each with a write to the socket of its own.
  Here all that waits for a browser is sent in one turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlit import runtime
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.NewSession_pb2 import CustomThemeConfig
from streamlit.runtime import app_session
from streamlit.runtime.scriptrunner import ScriptRunner, ScriptRunnerEvent
from streamlit.runtime.session_manager import SessionClientDisconnectedError

_THEME = "_populate_theme_msg"
_RUN, _HEAR, _HANDLE = (
    "_run_script", "_on_scriptrunner_event", "_handle_scriptrunner_event_on_event_loop",
)  # fmt: skip
_ANNOUNCE, _IDENTITY, _FLUSH = (
    "_create_new_session_message", "_set_run_identity", "flush_browser_queue",
)  # fmt: skip
_HELD = "_conductor_held"
"""Attribute of a runner in a timed run: the events that wait for its end."""
_HEARD = "_conductor_heard"
"""Attribute of a session: the runner whose run it was told of last."""
_ANNOUNCED = "_conductor_announced"
"""Attribute of a session: what its last announcement was made of, and the message."""


def lighten() -> None:
    """Change all of it; may be called again without effect."""
    session = app_session.AppSession
    remember_theme()
    if hasattr(ScriptRunner, _RUN) and hasattr(session, _HEAR) and hasattr(session, _HANDLE):
        _replace(ScriptRunner, _RUN, _running)
        _replace(session, _HEAR, _hearing)
    if hasattr(session, _ANNOUNCE) and hasattr(app_session, _IDENTITY):
        _replace(session, _ANNOUNCE, _announcing)
    if hasattr(session, _FLUSH) and hasattr(runtime.Runtime, "_send_message"):
        _replace(session, _FLUSH, _flushing)


def remember_theme() -> None:
    """Work each section of the theme out once; may be called again without effect."""
    original = getattr(app_session, _THEME, None)
    if original is None or hasattr(original, "sections"):
        return
    sections: dict[str, CustomThemeConfig] = {}

    def remembered(message: CustomThemeConfig, section: str = "theme") -> None:
        if section not in sections:
            made = CustomThemeConfig()
            original(made, section)
            sections[section] = made
        if sections[section].ByteSize():
            message.MergeFrom(sections[section])

    filled: Any = remembered
    filled.sections = sections
    setattr(app_session, _THEME, filled)


def _replace(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    if not hasattr(original, "original"):
        made = make(original)
        made.original = original
        setattr(owner, name, made)


def _announcing(original: Any) -> Any:
    def announce(self: Any, page_hash: str, run: Any, pages: Any = None) -> ForwardMsg:
        if not run.fragment_ids:
            made: ForwardMsg = original(self, page_hash, run, pages)
            return made
        of = (page_hash, pages, self._run_on_save, self._state)
        known = self.__dict__.get(_ANNOUNCED)
        if known is None or known[0] != of:
            known = (of, original(self, page_hash, run, pages))
            setattr(self, _ANNOUNCED, known)
        message = ForwardMsg()
        message.CopyFrom(known[1])
        message.metadata.run.Clear()
        getattr(app_session, _IDENTITY)(message, run)
        return message

    return announce


def _running(original: Any) -> Any:
    def run(self: Any, rerun_data: Any) -> None:
        if rerun_data.is_auto_rerun and rerun_data.fragment_id_queue:
            setattr(self, _HELD, [])
        original(self, rerun_data)

    return run


def _hearing(original: Any) -> Any:
    def hear(self: Any, sender: Any, event: ScriptRunnerEvent, **more: Any) -> None:
        held: list[tuple[ScriptRunnerEvent, dict[str, Any]]] | None
        held = getattr(sender, _HELD, None)
        if held is None:
            if event == ScriptRunnerEvent.SCRIPT_STARTED:
                setattr(self, _HEARD, sender)
            original(self, sender, event, **more)
            return
        held.append((event, more))
        if event not in (ScriptRunnerEvent.SCRIPT_STARTED, ScriptRunnerEvent.ENQUEUE_FORWARD_MSG):
            setattr(sender, _HELD, None)
            whole = self._scriptrunner is sender
            self._call_soon_on_event_loop(lambda: _deliver(self, sender, held, whole))

    return hear


def _deliver(
    session: Any, sender: Any, held: list[tuple[ScriptRunnerEvent, Any]], whole: bool
) -> None:
    """Take all events of a run, on the server's thread.

    Streamlit drops what comes from a runner that is not the session's any more. One that had drawn
    its whole run before the next was asked for is heard all the same: it comes before the next.
    """
    current = session._scriptrunner
    overtaken = whole and sender is not current is not None
    if overtaken and getattr(session, _HEARD, None) is not current:
        sender = current
    for event, more in held:
        if event == ScriptRunnerEvent.ENQUEUE_FORWARD_MSG and sender is current:
            session._browser_queue.enqueue(more["forward_msg"])
        else:
            getattr(session, _HANDLE)(sender, event, **more)


def _flushing(original: Any) -> Any:
    def flush(self: Any) -> list[ForwardMsg]:
        waiting: list[ForwardMsg] = original(self)
        server: Any = runtime.get_instance() if waiting and runtime.exists() else None
        info = server._session_mgr.get_active_session_info(self.id) if server else None
        if info is None:
            return waiting
        try:
            for message in waiting:
                server._send_message(info, message)
        except SessionClientDisconnectedError:
            server.disconnect_session(self.id, client=info.client)
        return []

    return flush
