"""The console's pages and their sections: the one list that navigation and tests read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Not called "pages": a folder of that name beside the main script is run without the frame.
VIEWS = Path(__file__).parent / "views"


@dataclass(frozen=True, slots=True)
class Entry:
    """One page: its script in `views/` (also its address) and its title."""

    name: str
    title: str

    @property
    def path(self) -> Path:
        """The page's script."""
        return VIEWS / f"{self.name}.py"


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "": (
        Entry("overview", "Overview"),
        Entry("nodes", "Nodes"),
        Entry("cache", "Cache"),
        Entry("slo", "SLO"),
        Entry("flow", "Flow"),
    ),
    "Control": (
        Entry("tuning", "Tuning"),
        Entry("breaker", "Breaker"),
        Entry("lab", "Lab"),
    ),
    "History": (
        Entry("decisions", "Decisions"),
        Entry("changes", "Changes"),
        Entry("alerts", "Alerts"),
    ),
    "System": (
        Entry("storage", "Storage & health"),
        Entry("settings", "Settings"),
    ),
}
"""Section -> its pages; those of the nameless one stand in the bar itself."""
DEFAULT = "overview"


def present() -> dict[str, list[Entry]]:
    """The sections with the pages whose script is there; empty sections are left out."""
    found = {name: [e for e in entries if e.path.exists()] for name, entries in SECTIONS.items()}
    return {name: entries for name, entries in found.items() if entries}


def address(name: str) -> str:
    """Path of a page below the console's root; the default page answers at the root only."""
    return "/" if name == DEFAULT else f"/{name}"


def view(name: str) -> str | None:
    """Path of a page's script as links take it; None where the page is not there."""
    path = VIEWS / f"{name}.py"
    return f"views/{name}.py" if path.exists() else None
