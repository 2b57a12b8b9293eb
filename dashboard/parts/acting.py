"""What pages with acts share: in whose name, how a refusal is told, reasons, the typed word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import Refused, ServiceError
from dashboard.api.control import ControlClient
from dashboard.overview.models import Notice
from dashboard.parts import format as fmt
from dashboard.parts.components import notice
from dashboard.parts.kept import forget
from dashboard.parts.theme import Level

REASON_MIN, REASON_MAX = 3, 500
_TOLD = "acting_told"


def control() -> ControlClient:
    """Calls of control, Lab and history in the reader's name."""
    return ControlClient(session.client())


def records() -> ControlClient:
    """Calls that read records: of the service, or while that is down of its read-only twin."""
    return ControlClient(session.reader())


def looking_only(least: str = "operator") -> None:
    """Say why the acts of this page are disabled, where the reader may only look."""
    if session.known() and not session.may(least):
        role = session.user().role
        text = f"Acts need the role {least}; you are {role}. Everything can be read."
        notice(Notice("none", "You can look, not act", text))


def attempt(act: Callable[[], object], done: str, text: str = "") -> bool:
    """Do an act; its result in words stays for the next run. False where it was refused."""
    try:
        act()
    except Refused as e:
        tell("bad", refusal_title(e), str(e))
        return False
    except ServiceError as e:
        tell("bad", "No answer", f"{e}. Look whether it was done before you try again.")
        return False
    forget()
    tell("ok", done, text)
    return True


def refusal_title(e: Refused) -> str:
    """What a refusal means, by its status."""
    if e.status in (401, 403):
        return "You may not do that"
    if e.status == 409:
        return "Not possible now" if e.stale is None else "Somebody was faster"
    if e.status == 422 and e.detail.param:
        return f"Refused: {e.detail.param}"
    return "Refused"


def tell(level: Level, title: str, text: str = "") -> None:
    """Leave a message for the next run."""
    st.session_state[_TOLD] = Notice(level, title, text)


def told() -> None:
    """Show the message that the last act left, once."""
    found: Notice | None = st.session_state.pop(_TOLD, None)
    if found is not None:
        notice(found)


class Form:
    """What is asked for before an act, and what of it is still missing.

    Its button can always be pressed: a field's text arrives when the field is left, so that a
    button which waits for it would swallow the click that leaves it, and Tab would pass it by.
    """

    def __init__(self) -> None:
        self._missing: list[str] = []

    def need(self, given: object, why: str) -> None:
        """Without `given` the act is not done; `why` begins with the field's name."""
        if not given:
            self._missing.append(why)

    def reason(self, key: str) -> str:
        """The reason every act needs."""
        text = st.text_input(
            "Reason (required)", key=key, max_chars=REASON_MAX,
            placeholder="why, for whoever reads the history",
        ).strip()  # fmt: skip
        self.need(len(text) >= REASON_MIN, f"Reason: say why, in {REASON_MIN} characters or more.")
        return text

    def number(
        self, label: str, value: float, low: float, high: float, *, key: str, **more: Any
    ) -> float:
        """A number, whole where `value` is. The bounds are looked at here: a widget that knows
        them goes on giving the last value that it could take, whatever stands in it."""
        st.session_state.setdefault(key, value)  # beside it no default, which an empty field takes
        whole = isinstance(value, int)
        found = st.number_input(
            label, value=None, key=key, **({"step": 1 if whole else 0.1} | more)
        )
        fits = found is not None and low <= found <= high
        self.need(fits, f"{label}: a number from {fmt.digits(low)} to {fmt.digits(high)}.")
        return value if found is None else found

    def typed(self, word: str, key: str) -> None:
        """A word to type, so that nobody does it by accident."""
        text = st.text_input(f"Type {word} to confirm", key=key).strip()
        self.need(text == word, f"Confirmation: type `{word}`.")

    def go(self, label: str, *, key: str, inside: bool = False) -> bool:
        """The button that does it; False where something is missing, which is said. `inside`: of
        a form of Streamlit's."""
        button = st.form_submit_button if inside else st.button
        return bool(button(label, key=key, type="primary")) and self.complete()

    def complete(self) -> bool:
        """Whether nothing is missing; says what is."""
        if self._missing:
            notice(Notice("bad", "Not done yet", " ".join(self._missing)))
        return not self._missing


def carry_out(act: Callable[[], object], done: str, text: str = "") -> None:
    """In a dialog: do the act and close it. Refused, it says why and stays as it was filled in."""
    if attempt(act, done, text):
        session.feed().poll()  # the page is drawn anew, from a state that knows of the act
        st.rerun()
    told()


def author() -> str:
    """Who acts, as far as the console knows; a service with sign-in knows it better."""
    return session.user().name or "console"


def why(reason: str) -> wire.Why:
    """Reason and author of an act."""
    return wire.Why(reason=reason, author=author())
