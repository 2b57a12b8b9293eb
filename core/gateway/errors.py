"""Error answers of our own, in the shape OpenAI clients read. Pure.

An answer never carries a stack, a path, SQL or a version: an unexpected exception becomes a
generic text with the request id, and its details go to the log.
"""

from __future__ import annotations

from typing import Any

import orjson

from core.domain import Prediction, Rejection
from core.errors import CapacityError, ConductorError, EngineFault

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
INTERNAL_TEXT = "The scheduler failed on this request. The log has the details under its id."


def error_type(status: int) -> str:
    """OpenAI's error type for a status."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_body(
    status: int, message: str, *, code: str, param: str | None = None, **more: Any
) -> bytes:
    """`{"error": {...}}` as JSON bytes; `more` are further fields, None ones left out."""
    error: dict[str, Any] = {
        "message": message,
        "type": error_type(status),
        "param": param,
        "code": code,
    }
    error.update({name: value for name, value in more.items() if value is not None})
    return orjson.dumps({"error": error})


def from_exception(error: BaseException, *, request_id: str) -> tuple[int, bytes, float | None]:
    """(status, body, Retry-After seconds) for an exception that reached the edge."""
    if not isinstance(error, ConductorError):
        body = error_body(500, INTERNAL_TEXT, code="internal_error", request_id=request_id)
        return 500, body, None
    retry = error.retry_after_s if isinstance(error, CapacityError) else None
    body = error_body(
        error.status,
        error.message,
        code=error.code,
        param=error.field,
        request_id=request_id,
        retry_after_s=retry,
    )
    return error.status, body, retry


def from_rejection(rejection: Rejection) -> tuple[int, bytes, float | None]:
    """(status, body, Retry-After seconds) for a request that was not placed."""
    retry = rejection.retry_after_s or (1.0 if rejection.status in (429, 503) else None)
    body = error_body(
        rejection.status,
        rejection.message,
        code=rejection.code,
        param="model" if rejection.code == "unknown_model" else None,
        decision_id=rejection.id,
        request_id=rejection.request.id,
        retry_after_s=retry,
        prediction=prediction(rejection.predicted),
    )
    return rejection.status, body, retry


def from_fault(fault: EngineFault, *, request_id: str, decision_id: str) -> bytes:
    """Body for an engine that could not be reached or broke, as answer or as last event."""
    return error_body(
        fault.status,
        fault.message,
        code=fault.code,
        request_id=request_id,
        decision_id=decision_id,
    )


def prediction(predicted: Prediction | None) -> dict[str, float] | None:
    """The cost model's expectation in seconds, rounded to microseconds."""
    if predicted is None:
        return None
    names = ("queue_s", "transfer_s", "prefill_s", "ttft_s", "tbt_s")
    return {name: round(float(getattr(predicted, name)), 6) for name in names}


def retry_after(seconds: float | None) -> bytes:
    """Retry-After in whole seconds, at least 1."""
    return str(max(1, -int(-(seconds or 0.0) // 1))).encode()
