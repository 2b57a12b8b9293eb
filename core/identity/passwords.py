"""Passwords: Argon2id, at least twelve characters, none of those that everybody tries first."""

from __future__ import annotations

from functools import lru_cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from core.errors import Invalid

CHARS_MIN, CHARS_MAX = 12, 256
TIME_COST, MEMORY_KIB, LANES = 3, 65_536, 4
"""RFC 9106, second recommended option: three passes over 64 MiB in four lanes."""
_COMMON = frozenset(
    (
        "password password1 password12 password123 passw0rd letmein welcome admin administrator "
        "qwerty qwertyuiop 1q2w3e4r 123456789 1234567890 12345678910 iloveyou monkey dragon "
        "football baseball sunshine princess superman trustno1 changeme secret default conductor"
    ).split()
)
_HASHER = PasswordHasher(time_cost=TIME_COST, memory_cost=MEMORY_KIB, parallelism=LANES)


def check(password: str, user: str = "") -> None:
    """Invalid, saying what is wrong, for a password that is too easy to guess."""
    if not CHARS_MIN <= len(password) <= CHARS_MAX:
        text = f"password: expected {CHARS_MIN} to {CHARS_MAX} characters"
        raise Invalid(text, field="password")
    try:
        password.encode()
    except UnicodeEncodeError:  # bytes of standard input that are no UTF-8
        raise Invalid("password: is not text in UTF-8", field="password") from None
    plain = password.casefold()
    core = plain.strip("0123456789!?.-_ ")
    if core in _COMMON or plain in _COMMON or len(set(plain)) < 5:
        raise Invalid("password: is one of those that are tried first", field="password")
    if user and user.casefold() in plain:
        raise Invalid("password: contains the user's name", field="password")


def hashed(password: str) -> str:
    """The text to keep. Takes a few hundredths of a second, on purpose."""
    return _HASHER.hash(password)


def verified(password: str, kept: str | None) -> bool:
    """Whether the password is the kept one; takes as long for an unknown user (None)."""
    try:
        return _HASHER.verify(kept or _nobody(), password) and kept is not None
    except (VerificationError, InvalidHashError):
        return False


@lru_cache(maxsize=1)
def _nobody() -> str:
    return _HASHER.hash("nobody has this password")
