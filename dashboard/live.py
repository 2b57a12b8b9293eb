"""What follows the service by itself: one timer a page, on which the frame's strip rides.

Two timed fragments would ask for their reruns at the same moment. Streamlit drops all that the
first of them drew where the second request comes just as the first run has ended, and under load
that is nearly always: such a page would hardly ever be refreshed.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from dashboard import session
from dashboard.frame import redraw_strip

_FOLLOWED = "followed"


def live(draw: Callable[[], None], *, key: str) -> None:
    """Draw now and at each refresh; once a page. Paused, it is drawn when the page is."""
    st.session_state[_FOLLOWED] = True

    def run() -> None:
        with session.one_run():
            if session.must_sign_in() or session.answers_again():
                st.rerun()
            redraw_strip()
            draw()

    st.fragment(run, run_every=session.refresh_every(), key=key)()


def follow_strip() -> None:
    """At the end of a page without anything live: let the strip follow the service alone."""
    if not st.session_state.pop(_FOLLOWED, False):

        def run() -> None:
            with session.one_run():
                if session.must_sign_in() or session.answers_again():
                    st.rerun()
                redraw_strip()

        st.fragment(run, run_every=session.refresh_every(), key="frame")()
