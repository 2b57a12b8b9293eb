"""The admin API's OpenAPI document: what the framework writes, with our errors in it."""

from __future__ import annotations

from typing import Any

from core import wire

_REF = "#/components/schemas/{model}"
_FRAMEWORK = ("HTTPValidationError", "ValidationError")
"""Shapes of errors that this API does not use."""


def with_errors(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the one shape of every error answer, in place."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    body = wire.ErrorBody.model_json_schema(ref_template=_REF)
    schemas.update(body.pop("$defs", {}))
    schemas["ErrorBody"] = body
    for name in _FRAMEWORK:
        schemas.pop(name, None)
    answer = {
        "description": "Refused or failed; the body says why",
        "content": {"application/json": {"schema": {"$ref": _REF.format(model="ErrorBody")}}},
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            if _is_frameworks(operation["responses"].get("422", {})):
                del operation["responses"]["422"]
            operation["responses"]["default"] = answer
    return document


def _is_frameworks(answer: dict[str, Any]) -> bool:
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).rpartition("/")[2] in _FRAMEWORK
