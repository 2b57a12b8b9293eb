"""The exception tree: one branch per way a caller reacts, each leaf with its HTTP status.

ConductorError
├── UsageError               the caller's fault: fix the request, do not retry
│   ├── BadRequest           400  a field is missing, malformed or out of bounds
│   ├── Unauthorized         401  no or unknown key
│   ├── Forbidden            403  key lacks the role, or an address is not allowed
│   ├── NotFound             404  unknown model, node, decision, route
│   ├── Conflict             409  stale base revision, duplicate id
│   ├── TooLarge             413  body or prompt over its limit
│   └── Invalid              422  a configuration value out of bounds
├── CapacityError            nobody can serve now: retry later (Retry-After)
│   └── Overloaded           429  predicted SLO miss, queue full, rate limit
├── EngineFault              a node failed: try another before the first byte
│   ├── EngineUnreachable    502  refused, reset, DNS, probe dead
│   ├── EngineTimeout        504  no first byte or no next byte in time
│   └── EngineBroken         502  malformed answer, stream ended early
├── SignalError              an input of ours is damaged: degrade, count, go on
│   ├── MalformedFrame            an event frame that does not parse
│   └── IntegrityError            an invariant of index or ledger does not hold
└── StoreError               503  the record store failed
"""

from __future__ import annotations


class ConductorError(Exception):
    """Root of all errors raised on purpose. `field` names the offending input, if one is."""

    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class UsageError(ConductorError):
    """The caller's fault."""

    status, code = 400, "invalid_request_error"


class BadRequest(UsageError):
    """A field is missing, malformed or out of bounds."""


class Unauthorized(UsageError):
    """No key, or an unknown one."""

    status, code = 401, "unauthorized"


class Forbidden(UsageError):
    """The key lacks the role, or the address is not allowed."""

    status, code = 403, "forbidden"


class NotFound(UsageError):
    """Unknown model, node, decision or route."""

    status, code = 404, "not_found"


class Conflict(UsageError):
    """Stale base revision or duplicate id."""

    status, code = 409, "conflict"


class TooLarge(UsageError):
    """Body or prompt over its limit."""

    status, code = 413, "too_large"


class Invalid(UsageError):
    """A configuration value out of bounds."""

    status, code = 422, "invalid_value"


class CapacityError(ConductorError):
    """Nobody can serve now; `retry_after_s` says when to come back."""

    status, code = 503, "no_capacity"

    def __init__(
        self, message: str, *, retry_after_s: float = 1.0, field: str | None = None
    ) -> None:
        super().__init__(message, field=field)
        self.retry_after_s = retry_after_s


class Overloaded(CapacityError):
    """Predicted SLO miss, full queue or rate limit."""

    status, code = 429, "overloaded"


class EngineFault(ConductorError):
    """A node failed; another may serve before the first byte."""

    status, code = 502, "engine_fault"


class EngineUnreachable(EngineFault):
    """Refused, reset, DNS failure, probe dead."""

    code = "engine_unreachable"


class EngineTimeout(EngineFault):
    """No first byte or no next byte in time."""

    status, code = 504, "engine_timeout"


class EngineBroken(EngineFault):
    """Malformed answer, or a stream that ended early."""

    code = "engine_broken"


class SignalError(ConductorError):
    """An input of ours is damaged: degrade, count, go on."""

    code = "signal_error"


class MalformedFrame(SignalError):
    """An event frame that does not parse."""


class IntegrityError(SignalError):
    """An invariant of index or ledger does not hold."""


class StoreError(ConductorError):
    """The record store failed."""

    status, code = 503, "store_unavailable"
