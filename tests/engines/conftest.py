"""Real engines for the tests of this folder: started once, stopped at the end.

They need an environment with vLLM (CPU build), NIXL and SGLang. CONDUCTOR_ENGINES names it; its
default is `.engines` beside pyproject.toml. Everything skips where it is absent.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines import launch
from tests.engines.tiny_model import make_tiny_model

ROOT = Path(__file__).parents[2]
FIGURES: list[tuple[str, str]] = []


@dataclass(frozen=True)
class Installed:
    """Where the engines are, their model, and a folder for logs."""

    python: Path
    model: Path
    logs: Path


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = Path(os.environ.get("CONDUCTOR_ENGINES", ROOT / ".engines"))
    python = home / "bin" / "python"
    packages = list(home.glob("lib/python*/site-packages"))
    missing = [n for n in ("vllm", "sglang", "nixl") if not any((p / n).is_dir() for p in packages)]
    if not python.exists() or missing:
        pytest.skip(f"no engines in {home} (CONDUCTOR_ENGINES): python or {missing} not found")
    folder = tmp_path_factory.mktemp("engines")
    return Installed(python, make_tiny_model(folder / "tiny-llama"), folder)


@dataclass(frozen=True)
class Fleet:
    """Three vLLM and two SGLang servers by node id."""

    engines: dict[str, launch.Engine]

    def nodes(self) -> list[dict[str, str]]:
        return [
            {"id": name, "url": engine.url, "engine": name.rstrip("0123456789")}
            for name, engine in self.engines.items()
        ]


@pytest.fixture(scope="session")
def fleet(installed: Installed) -> Iterator[Fleet]:
    place = (installed.python, installed.model, installed.logs)
    engines = {f"vllm{i}": launch.vllm(*place) for i in range(3)}
    engines |= {f"sglang{i}": launch.sglang(*place) for i in range(2)}
    with launch.running(engines.values()):
        yield Fleet(engines)


@pytest.fixture(scope="session")
def pair(installed: Installed) -> Iterator[tuple[launch.Engine, launch.Engine]]:
    engines = launch.nixl_pair(installed.python, installed.model, installed.logs)
    with launch.running(engines):
        yield engines


@pytest.fixture
def figure():
    """Note an observed figure; all of them are printed as a table at the end."""
    return lambda what, value: FIGURES.append((what, value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.write_sep("-", "observed")
        terminalreporter.write_line("| what | observed |\n| --- | --- |")
        for what, value in FIGURES:
            terminalreporter.write_line(f"| {what} | {value} |")
