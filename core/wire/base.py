"""Bases of all schemas, and the error body."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

API_PREFIX = "/admin/v1"


class Answer(BaseModel):
    """Base of everything the API sends; unknown fields are ignored when read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Ask(BaseModel):
    """Base of everything the API takes; unknown fields are an error that names them."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(Answer):
    """What went wrong, in the shape OpenAI clients read."""

    message: str
    type: str = ""
    param: str | None = None
    """The field or header at fault."""
    code: str | int | None = None
    retry_after_s: float | None = None
    prediction: dict[str, float] | None = None
    """Seconds the cost model expected (queue_s, transfer_s, prefill_s, ttft_s, tbt_s)."""
    decision_id: str | None = None
    request_id: str | None = None


class ErrorBody(Answer):
    """Every error answer of ours."""

    error: ErrorDetail


class Done(Answer):
    """An act that has nothing else to report."""

    ok: bool = True
    message: str = ""
