"""What Streamlit does anew at each refresh although it cannot change while the server runs.

Every run of a fragment is announced to the browser by a message that carries the whole theme,
worked out from the settings each time: a seventh of the console's CPU time with many readers.
Here it is worked out once. The only place that touches Streamlit's insides; where a later version
has them no more, nothing is changed.
"""

from __future__ import annotations

from typing import Any

from streamlit.proto.NewSession_pb2 import CustomThemeConfig
from streamlit.runtime import app_session

_THEME = "_populate_theme_msg"


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
