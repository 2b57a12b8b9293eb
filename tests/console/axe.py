"""axe-core, the accessibility checker, for the browser tests: fetched once, never part of ours."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Page

VERSION = "4.10.3"
SHA512 = "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg=="
"""Of the package as npm gives it."""
FETCH_S = 90.0
CONTRAST = ("color-contrast", "link-in-text-block")
"""Rules whose verdict a colour scheme can change."""
_RUN = """async (rules) => {
  // Inside a drawing axe judges nothing but texts, whose contrast it cannot tell.
  const where = {include: [document], exclude: [['.main-svg']]};
  const only = rules.length ? {runOnly: {type: 'rule', values: rules}} : {};
  const found = await axe.run(where, {resultTypes: ['violations'], ...only});
  return found.violations.map(v => `${v.impact} ${v.id}: ${v.help}: `
    + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(' | '));
}"""


def script() -> str:
    """The checker's source, from a cache beside no repository; skips where it cannot be had."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    kept = folder / "conductor-tests" / f"axe-core-{VERSION}.min.js"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        _fetch(kept)
    return kept.read_text()


def violations(page: Page, source: str, rules: Sequence[str] = ()) -> list[str]:
    """What axe reports of the page as it is, one line each; `rules`: these alone."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(source)
    found: list[str] = page.evaluate(_RUN, list(rules))
    return found


def _fetch(kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm to fetch axe-core with: accessibility is not checked")
    argv = [npm, "pack", f"axe-core@{VERSION}", "--silent"]
    try:
        subprocess.run(argv, cwd=kept.parent, check=True, capture_output=True, timeout=FETCH_S)
    except (subprocess.SubprocessError, OSError) as e:
        pytest.skip(f"axe-core could not be fetched: {e}")
    package = kept.parent / f"axe-core-{VERSION}.tgz"
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    assert digest == SHA512, "axe-core is not the package that was expected"
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        kept.write_bytes(member.read())
    package.unlink()
