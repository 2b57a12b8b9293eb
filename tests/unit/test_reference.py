"""Documents say what the code does: tables are generated, the embedding example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.reference import ROOT, documents

PAIRS = list(documents())


@pytest.mark.parametrize(("path", "wanted"), PAIRS, ids=[p.name for p, _ in PAIRS])
def test_generated_tables_are_up_to_date(path: Path, wanted: str) -> None:
    assert path.read_text() == wanted, "run `python -m core.reference`"


def test_the_embedding_example_of_the_readme_runs() -> None:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"<!-- embed -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found
    done = subprocess.run(
        [sys.executable, "-c", found.group(1)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "992 of 992 reachable" in done.stdout


def test_every_command_of_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text()
    table = text.split("### Commands")[1].split("## Embed")[0]
    named = set(re.findall(r"(?:`conductor |`, `)([\w-]+)", table))
    help_text = subprocess.run(
        [sys.executable, "-m", "core.cli", "--help"], capture_output=True, text=True, timeout=60
    ).stdout
    listed = set(re.findall(r"^\W*(\w[\w-]*)\s{2,}", help_text, re.MULTILINE))
    assert named - {"upgrade", "status"} <= listed
