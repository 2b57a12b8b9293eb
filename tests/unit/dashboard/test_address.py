"""What of an address is not used is named, and only that."""

from __future__ import annotations

import pytest

from dashboard.addresses import PARAMETERS
from dashboard.navigation import present
from dashboard.parts.address import complaints
from dashboard.settings.saved_models import kept_params
from dashboard.sign_in import way_back


@pytest.mark.parametrize(
    ("page", "given", "words"),
    [
        ("slo", {"range": "custom", "from": "2026-03-01T12:00", "to": "2026-03-01T13:00"}, []),
        ("slo", {"range": "2h"}, ["range=2h", "`15m`"]),
        ("slo", {"range": "custom", "from": "yesterday"}, ["from=yesterday", "2026-03-01T12:00"]),
        ("slo", {"from": "2026-03-01T12:00"}, ["from, to", "`range=custom`"]),
        ("slo", {"range": "custom", "from": "2026-03-02", "to": "2026-03-01"}, ["lies after"]),
        ("slo", {"range": "custom", "from": "2026-01-02", "to": "2026-03-01"}, ["too long"]),
        ("slo", {"tz": "Mars", "live": "perhaps"}, ["tz=Mars", "live=perhaps"]),
        ("slo", {"node": "a"}, ["node=a", "takes none"]),
        ("nodes", {"node": "a", "only": "all", "tz": "local", "live": "false"}, []),
        ("decisions", {"outcome": "odd", "below_best": "true"}, ["outcome=odd", "`ok`"]),
        ("changes", {"envet": "x"}, ["envet=x", "event"]),
    ],
)
def test_what_is_not_used_is_named(page: str, given: dict[str, str], words: list[str]) -> None:
    found = list(complaints(given, PARAMETERS.get(page, {})))
    said = " ".join(f"{n.title} {n.text}" for n in found)
    assert bool(found) == bool(words), said
    assert all(word in said for word in words), said


def test_parameters_are_of_pages_that_are_there() -> None:
    assert PARAMETERS.keys() <= {e.name for entries in present().values() for e in entries}


def test_a_view_keeps_what_its_page_takes_and_nothing_else() -> None:
    given = {"machine": "panic", "range": "1h", "tz": "local", "live": "false", "a b": "1"}
    kept = kept_params(given, PARAMETERS["breaker"])
    assert kept == {"machine": "panic", "range": "1h", "tz": "local"}


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ("/slo?range=custom&from=2026-03-01T12%3A00", "/slo?range=custom&from=2026-03-01T12%3A00"),
        ("/?rows=by+rack", "/?rows=by+rack"),
        ("//evil.example/slo", "/"),
        ("https://evil.example/slo", "/"),
        ("/\\evil.example", "/"),
        ("/sign-out", "/"),
        ("", "/"),
    ],
)
def test_signing_in_leads_back_to_a_page_of_this_console_alone(asked: str, there: str) -> None:
    assert way_back(asked) == there
