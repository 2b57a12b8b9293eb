"""The stack and the browser, started once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from oidc_provider import OidcProvider
from playwright.sync_api import Browser, sync_playwright
from stack import Stack
from watching import ARGS, Watched, watch


@pytest.fixture(scope="session")
def provider() -> Iterator[OidcProvider]:
    """An identity provider that the stack believes."""
    with OidcProvider() as running:
        yield running


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, provider: OidcProvider) -> Iterator[Stack]:
    """Three engines under a little traffic, and a console."""
    folder = tmp_path_factory.mktemp("stack")
    with Stack(folder, roles=("prefill", "decode", "both"), provider=provider) as running:
        running.send(12)
        yield running


@pytest.fixture(scope="session")
def empty_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A service without a single node or request, and a console."""
    with Stack(tmp_path_factory.mktemp("empty")) as running:
        yield running


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser's executable; tests that need it are skipped where there is none."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
    if not found:
        pytest.skip("no Chromium found: install one, or name it in CHROMIUM")
    return Path(found)


@pytest.fixture(scope="session")
def browser(chromium: Path) -> Iterator[Browser]:
    """One browser for all tests; each has a context of its own."""
    with sync_playwright() as p:
        launched = p.chromium.launch(executable_path=str(chromium), args=ARGS)
        yield launched
        launched.close()


@pytest.fixture
def plain(browser: Browser) -> Iterator[Watched]:
    """A page in the light scheme."""
    yield from watch(browser, "light")
