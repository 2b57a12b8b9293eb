"""Documents say what the code does: tables are generated, the embedding example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.core
import typer.main

from core.cli import app
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


def test_the_readme_names_every_command_and_no_other() -> None:
    text = (ROOT / "README.md").read_text()
    table = text.split("### Commands")[1].split("## Embed")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = {command for row in rows for command in _commands(row)}
    program = typer.main.get_command(app)
    assert isinstance(program, typer.core.TyperGroup)
    wanted = {name for name, c in program.commands.items() if not c.hidden and name != "db"}
    wanted |= {f"db {name}" for name in _group(program, "db").commands}
    assert named == wanted


def _commands(row: str) -> set[str]:
    """Those of one row; a name alone belongs to the group before it, where there is one."""
    quoted = [re.sub(r"^conductor ", "", part) for part in re.findall(r"`([^`]+)`", row)]
    group = "db " if quoted[0].startswith("db ") else ""
    return {group + q.removeprefix("db ").split()[0] for q in quoted if not q.startswith("-")}


def _group(program: typer.core.TyperGroup, name: str) -> typer.core.TyperGroup:
    found = program.commands[name]
    assert isinstance(found, typer.core.TyperGroup)
    return found
