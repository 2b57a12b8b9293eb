"""Keys of the data plane: whose request it is, and how much of what that one may have.

Limits are counted by each replica for itself, in token buckets: `requests_per_s` with a burst of
one second, `tokens_per_min` with a burst of one minute. Tokens are charged when they are known
(the prompt's when it was read, the answer's when it has ended), so a bucket may go below zero,
and the next request waits until it is filled again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from core.clock import Clock, SystemClock
from core.errors import Overloaded, Unauthorized
from core.identity.authority import AuthRules, RawHeaders, bearer
from core.identity.credentials import CredentialKind, matches, parse
from core.identity.memory import ENTRIES_MAX, Memory
from core.identity.peers import origin
from core.identity.throttle import Throttle
from core.ports import IdentityStore, KeyRecord

_BAD_PER_PEER, _BAD_WINDOW_S = 100, 60.0
_NEEDED = "an API key is needed: `Authorization: Bearer KEY`"
_NOT_GOOD = "the API key is not known here, has expired or was revoked"


class InvalidKey(Unauthorized):
    """A key that is not good; the code is the one OpenAI clients know."""

    code = "invalid_api_key"


class RateLimited(Overloaded):
    """A limit of the caller's own key."""

    code = "rate_limit_exceeded"


@dataclass(slots=True)
class _Bucket:
    """Fills at `rate_s` up to `size`; may be overdrawn by a charge."""

    rate_s: float
    size: float
    level: float
    at_s: float

    def refill(self, now: float) -> None:
        self.level = min(self.size, self.level + (now - self.at_s) * self.rate_s)
        self.at_s = now

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` is there; 0 where it is."""
        return max(amount - self.level, 0.0) / self.rate_s


@dataclass(slots=True)
class _Use:
    """What one key uses now."""

    running: int = 0
    requests: _Bucket | None = None
    tokens: _Bucket | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key that is good."""

    key: KeyRecord
    _use: _Use = field(repr=False)
    _clock: Clock = field(repr=False)

    @property
    def tenant(self) -> str:
        """Whose requests these are, whatever their headers say."""
        return self.key.tenant

    @property
    def cache_salt(self) -> str:
        """What separates this tenant's cached prefixes from everybody else's."""
        return self.key.cache_salt

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request under the key's limits; RateLimited says when to come back."""
        key, use, now = self.key, self._use, self._clock.now()
        if key.concurrent_max and use.running >= key.concurrent_max:
            text = f"this key may have {key.concurrent_max} requests at once"
            raise RateLimited(text, retry_after_s=1.0)
        for bucket, need, text in (
            (use.tokens, 1.0, f"this key may use {key.tokens_per_min} tokens a minute"),
            (use.requests, 1.0, f"this key may send {key.requests_per_s:g} requests a second"),
        ):
            if bucket is None:
                continue
            bucket.refill(now)
            if bucket.level < need:
                raise RateLimited(text, retry_after_s=bucket.wait_s(need))
        if use.requests is not None:
            use.requests.level -= 1.0
        use.running += 1
        try:
            yield
        finally:
            use.running -= 1

    def charge(self, tokens: int) -> None:
        """Count tokens of the request."""
        bucket = self._use.tokens
        if bucket is not None:
            bucket.refill(self._clock.now())
            bucket.level -= tokens


class KeyRing:
    """Knows the keys of the data plane. store: where they are kept; None knows none."""

    def __init__(
        self,
        rules: AuthRules | None = None,
        *,
        store: IdentityStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._rules = rules or AuthRules()
        self._clock = clock or SystemClock()
        self._memory: Memory[KeyRecord] | None = None
        if store is not None:
            self._memory = Memory(store.key, self._clock.now)
        self._uses: OrderedDict[str, _Use] = OrderedDict()
        self._bad = Throttle(failures_max=_BAD_PER_PEER, window_s=_BAD_WINDOW_S)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return self._rules.require_api_key

    def forget(self) -> None:
        """Identities changed: keys are asked about again."""
        if self._memory is not None:
            self._memory.forget()

    async def caller(self, headers: RawHeaders, peer: str) -> Caller | None:
        """Whose request it is; None for nobody's, where no key is needed.

        InvalidKey for a key that is not good. Other bearer tokens are ignored where no key is
        needed: clients send something by habit.
        """
        found = dict(headers)
        shown = bearer(found)
        credential = parse(shown) if shown is not None else None
        if shown is None or credential is None or credential.kind is not CredentialKind.KEY:
            if not self.required:
                return None
            raise InvalidKey(_NOT_GOOD if shown else _NEEDED)
        forwarded = found.get(b"x-forwarded-for", b"").decode("latin-1")
        where = origin(peer, forwarded, self._rules.trusted_proxies)
        record = await self._known(credential.id, where)
        if record is None or not matches(shown, record.digest):
            self._bad.failed(where, self._clock.now())
            raise InvalidKey(_NOT_GOOD)
        return Caller(record, self._use_of(record), self._clock)

    async def _known(self, id: str, where: str) -> KeyRecord | None:
        if self._memory is None:
            return None
        record = self._memory.fresh(id)
        if record is None:
            self._bad.check(where, self._clock.now())
            record = await self._memory.get(id)
        return record if record is not None and record.good_at(self._clock.wall()) else None

    def _use_of(self, key: KeyRecord) -> _Use:
        use = self._uses.get(key.id)
        if use is None:
            use = self._uses[key.id] = _Use(
                requests=self._bucket(key.requests_per_s, max(key.requests_per_s, 1.0)),
                tokens=self._bucket(key.tokens_per_min / 60.0, float(key.tokens_per_min)),
            )
        self._uses.move_to_end(key.id)
        while len(self._uses) > ENTRIES_MAX:
            self._uses.popitem(last=False)
        return use

    def _bucket(self, rate_s: float, size: float) -> _Bucket | None:
        if rate_s <= 0:
            return None
        return _Bucket(rate_s, size, size, self._clock.now())
