"""Rules of the code base that no linter knows: what deciding modules may touch, sizes, names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "storage", "dashboard", "migrations")
DECIDING = (
    "core/domain.py", "core/errors.py", "core/hashing.py", "core/tunables.py", "core/conductor.py",
    "core/roster.py", "core/index", "core/fleet", "core/policy", "core/plan",
)  # fmt: skip
FORBIDDEN = {
    "asyncio", "time", "socket", "logging", "http", "urllib", "aiohttp", "httpx", "zmq",
    "sqlalchemy", "fastapi", "starlette", "uvicorn", "structlog", "os", "subprocess", "threading",
}  # fmt: skip
MODULE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60
WORKPLACE = re.compile(r"/work/|\.\./shared|farm|helper-\d|pypi\.org|this session", re.IGNORECASE)


def sources(*names: str) -> Iterator[Path]:
    for name in names or PACKAGES:
        path = ROOT / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@pytest.mark.parametrize("path", list(sources(*DECIDING)), ids=lambda p: str(p.relative_to(ROOT)))
def test_deciding_modules_do_no_io_and_read_no_clock(path: Path) -> None:
    found = {name.split(".")[0] for name in imported(ast.parse(path.read_text()))}
    assert not found & FORBIDDEN


@pytest.mark.parametrize("path", list(sources(*DECIDING)), ids=lambda p: str(p.relative_to(ROOT)))
def test_deciding_modules_draw_from_a_given_generator_only(path: Path) -> None:
    calls = [
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "random"
    ]
    assert set(calls) <= {"Random"}


def test_modules_can_be_read_in_one_sitting() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in sources()
        if (n := len(p.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert not long


def test_functions_are_short() -> None:
    long = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX and path.parts[-2] != "versions":
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert not long


def test_nothing_speaks_of_a_workplace() -> None:
    texts = [*sources(), *ROOT.glob("*.md"), *ROOT.glob("*/README.md"), ROOT / "Makefile"]
    found = {
        str(p.relative_to(ROOT)): m.group() for p in texts if (m := WORKPLACE.search(p.read_text()))
    }
    assert not found


def test_every_error_has_its_place_in_the_drawn_tree() -> None:
    import core.errors as errors

    drawn = errors.__doc__ or ""
    named = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ConductorError)
    ]
    assert [name for name in named if name not in drawn] == []


def test_public_names_are_sorted_and_there() -> None:
    import core

    assert list(core.__all__) == sorted(core.__all__)
    assert all(hasattr(core, name) for name in core.__all__)
