"""Recorded answers of real engines, trimmed to what the tests read."""

import json
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[2] / "fixtures" / "engines"


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


def responses(engine: str) -> dict[str, Any]:
    return json.loads(text(f"{engine}-responses.json"))


def body(engine: str, case: str) -> bytes:
    found = responses(engine)[case]["body"]
    return found.encode() if isinstance(found, str) else json.dumps(found).encode()
