"""How the console is started: arguments and environment of its server process."""

from __future__ import annotations

import sys
from pathlib import Path

URL_VARIABLE = "CONDUCTOR_URL"
"""Environment variable with the address of the service."""
HISTORY_VARIABLE = "CONDUCTOR_HISTORY_URL"
"""The same for the read-only instance that answers for stored records when the service is down."""
DEFAULT_URL = "http://127.0.0.1:8080"


def streamlit_command(
    *, host: str, port: int, api_url: str, history_url: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Arguments (absolute interpreter first) and additional environment of the console.

    Works from any working directory: settings are found beside the script.
    """
    script = Path(__file__).with_name("server.py").resolve()
    argv = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        str(script),
        "--server.address",
        host,
        "--server.port",
        str(port),
    ]
    # Read on the command line only, and by option parsing that comes before the file's.
    env = {URL_VARIABLE: api_url, "STREAMLIT_RUNNER_POST_SCRIPT_GC": "false"}
    return argv, env | ({HISTORY_VARIABLE: history_url} if history_url else {})
