"""Users, tokens, keys and the audit as rows."""

from __future__ import annotations

from datetime import UTC, timedelta

from dashboard_samples import NOON

from core import wire
from dashboard.settings import models as sm


def token(name: str, **more: object) -> wire.TokenView:
    given: dict[str, object] = {
        "id": f"t-{name}", "kind": "token", "name": name, "role": "operator", "created_at": NOON,
        "created_by": "ada", **more,
    }  # fmt: skip
    return wire.TokenView.model_validate(given)


def test_good_tokens_come_first_and_others_say_why_not() -> None:
    day = timedelta(days=1)
    tokens = [token("gone", revoked_at=NOON), token("old", expires_at=NOON - day), token("good")]
    rows = sm.token_rows(tokens, now=NOON, zone=UTC)
    assert [(r["Name"], r["State"]) for r in rows] == [
        ("good", "✓ good"), ("gone", "✕ revoked"), ("old", "○ expired"),
    ]  # fmt: skip
    assert rows[0]["Ends"] == "never"


def test_a_limit_of_zero_is_none() -> None:
    key = wire.KeyView(
        id="k", name="n", tenant="t", requests_per_s=0.0, concurrent_max=8, tokens_per_min=0,
        created_at=NOON, created_by="ada",
    )  # fmt: skip
    row = sm.key_rows([key], now=NOON, zone=UTC)[0]
    assert (row["Requests/s"], row["At once"], row["Tokens/min"]) == ("none", "8", "none")


def test_users_and_the_audit_read_in_words() -> None:
    user = wire.UserView(
        name="bo", role="viewer", disabled=True, created_at=NOON, created_by="ada", changed_at=NOON
    )
    assert sm.user_rows([user], UTC)[0]["State"] == "✕ shut out"
    assert sm.check_words(wire.AuditCheck(checked=12_345, ok=True)) == (
        True, "All 12.3 k entries are as they were written.",
    )  # fmt: skip
    well, words = sm.check_words(wire.AuditCheck(checked=5, ok=False, fault=3, what="its digest"))
    assert not well
    assert words == "Entry 3 is not as it was written: its digest"
