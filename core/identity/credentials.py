"""The text of credentials: made here, shown once, kept as digests.

``cdr_t_3f9a…_8c1b…`` is a kind (t token, s session, k key of the data plane), a public id of 48
bits, and a secret of 256 random bits. A plain digest is right for secrets of that size: there is
nothing to guess. Digests are compared in constant time.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_TEXT = re.compile(r"cdr_([tsk])_([0-9a-f]{12})_([0-9a-f]{64})")


class CredentialKind(enum.StrEnum):
    """What a credential opens."""

    TOKEN = "t"
    SESSION = "s"
    KEY = "k"


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential in the clear; its secret stays out of every representation."""

    kind: CredentialKind
    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """What its owner keeps."""
        return f"cdr_{self.kind.value}_{self.id}_{self.secret}"

    @property
    def digest(self) -> str:
        """What we keep."""
        return digest(self.text)


def mint(kind: CredentialKind) -> Credential:
    """A new one, from the system's own randomness."""
    return Credential(kind, secrets.token_hex(6), secrets.token_hex(32))


def parse(text: str) -> Credential | None:
    """The parts of a credential; None for anything else."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    return Credential(CredentialKind(found[1]), found[2], found[3])


def digest(text: str) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def matches(text: str, kept: str) -> bool:
    """Whether `text` is what `kept` is the digest of; takes the same time either way."""
    return hmac.compare_digest(digest(text), kept)
