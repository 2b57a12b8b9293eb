"""What the scheduler asks of an engine family: one adapter class each, pure translation.

An adapter turns our intent into the engine's fields and its answers into our values. It opens
no socket: `core.engines.probe` and the gateway do the talking. The shapes were observed on vLLM
0.32 and SGLang 0.5.23; README.md beside this file lists what was seen.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from core.domain import Decision, EngineKind, EventEndpoints, NodeSpec, OutcomeKind, Role, Telemetry
from core.errors import EngineBroken

_INTERNAL_FIELDS = frozenset(
    {
        "kv_transfer_params",
        "pipeline",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "routed_dp_rank",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
    }
)
"""Engine-to-engine fields a client must not set: they reach into other requests' KV blocks."""


RANKS_MAX = 1024
"""Data-parallel ranks of one server that are believed."""


class Flow(enum.StrEnum):
    """How an engine family hands a prompt from a prefill node to a decode node."""

    NONE = "none"
    TWO_STEP = "two_step"
    """Prefill first; its answer carries what the decode request needs (vLLM NIXL)."""
    PAIRED = "paired"
    """Both nodes get the request at the same time and meet by a room number (SGLang)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The engine's own token counts of one request; None where it did not report."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    """Prompt tokens the engine reused from its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What an engine says about itself at registration; 0 and empty where it does not tell."""

    version: str = ""
    models: tuple[str, ...] = ()
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Served adapter name -> base model."""
    context_tokens_max: int = 0
    kv_capacity_tokens: int = 0
    """Of one data-parallel rank."""
    block_size: int = 0
    batch_max: int = 0
    dp_size: int = 1
    events: Mapping[int, EventEndpoints] = field(default_factory=dict)
    """Data-parallel rank -> addresses to connect to."""
    role: Role | None = None
    bootstrap_port: int | None = None
    """SGLang's meeting point for prefill/decode pairs."""
    kv_dtype: str = ""
    """Dtype of the KV cache in the engine's own words."""
    epoch: str = ""
    """Identity of the process that answered; see EngineAdapter.epoch."""
    notes: tuple[str, ...] = ()
    """What an operator should know: settings that make scheduling blind or impossible."""


class EngineAdapter(abc.ABC):
    """Translation for one engine family. Stateless: one instance serves every node."""

    kind: EngineKind
    flow: Flow = Flow.NONE
    health_path = "/health"
    metrics_path = "/metrics"
    load_path: str | None = None
    """A cheaper page of live gauges, read beside the metrics."""
    discovery_paths: Sequence[str] = ()
    """Pages `discover` reads; the first one must answer, the others may be missing."""
    tokenize_path = "/tokenize"

    # ---- requests -------------------------------------------------------------------------

    def forward_body(
        self,
        body: dict[str, Any],
        node: NodeSpec,
        decision: Decision | None = None,
        *,
        cache_salt: str | None = None,
    ) -> dict[str, Any]:
        """The client's body as the node should get it; the same object where nothing changes.

        cache_salt: the tenant's salt, which replaces whatever the client sent; None leaves it.
        """
        del node, decision
        strip = _INTERNAL_FIELDS.intersection(body)
        if not strip and cache_salt is None:
            return body
        forwarded = {k: v for k, v in body.items() if k not in strip}
        if cache_salt is not None:
            forwarded["cache_salt"] = cache_salt
        return forwarded

    def forward_headers(
        self, node: NodeSpec, decision: Decision | None = None, *, request_id: str = ""
    ) -> dict[str, str]:
        """Headers of ours for the upstream request: request name and data-parallel rank."""
        name = request_id or (str(decision.request.id) if decision is not None else "")
        headers = {"x-request-id": name} if name else {}
        if node.dp_rank is not None:
            headers["x-data-parallel-rank"] = str(node.dp_rank)
        return headers

    def can_disaggregate(self, body: Mapping[str, Any]) -> bool:
        """Whether prefill and decode of this request may run on different nodes."""
        del body
        return False

    def prefill_leg(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Body of the prefill request of a two-step flow."""
        raise NotImplementedError(f"{self.kind} has no two-step prefill")

    def decode_leg(
        self, body: Mapping[str, Any], prefill_response: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Body of the decode request; the prefill answer it uses is good for this one use.

        Raises EngineBroken where the prefill answer lacks what decoding needs.
        """
        raise NotImplementedError(f"{self.kind} has no two-step decode")

    def paired_body(
        self, body: Mapping[str, Any], *, host: str, port: int, room: int
    ) -> dict[str, Any]:
        """The one body that both nodes of a paired flow get; host and port are the prefill's."""
        raise NotImplementedError(f"{self.kind} has no paired flow")

    def tokenize_body(
        self, model: str, prompt: str | Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Body for `tokenize_path`: plain text, or chat messages with the generation prompt."""
        if isinstance(prompt, str):
            return {"model": model, "prompt": prompt}
        return {"model": model, "messages": list(prompt), "add_generation_prompt": True}

    # ---- answers --------------------------------------------------------------------------

    def usage(self, answer: Mapping[str, Any]) -> Usage:
        """Token counts of a whole response or of a stream's usage chunk."""
        found = answer.get("usage")
        if not isinstance(found, Mapping):
            return Usage()
        details = found.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
        return Usage(
            prompt=as_count(found.get("prompt_tokens")),
            completion=as_count(found.get("completion_tokens")),
            cached=as_count(cached),
        )

    def classify(self, status: int, body: bytes = b"") -> OutcomeKind:
        """How a finished answer counts: 4xx and a full queue are never the node's fault."""
        if status < 400:
            return OutcomeKind.OK
        if status < 500 or self.is_busy(status, body):
            return OutcomeKind.REFUSED
        return OutcomeKind.TIMEOUT if status == 504 else OutcomeKind.ENGINE_ERROR

    @abc.abstractmethod
    def is_busy(self, status: int, body: bytes) -> bool:
        """Whether the engine refused because its queue is full: another node may take it."""

    def is_retryable(self, status: int, body: bytes = b"") -> bool:
        """Whether another node may succeed where this answer came before any byte was passed."""
        return status >= 500 or self.is_busy(status, body)

    def error_message(self, body: bytes) -> str:
        """The human part of an error answer, nested or flat, cut to 256 characters."""
        return error_text(parse_object(body))[:256]

    def stream_error(self, data: bytes) -> str | None:
        """The message where a stream's event data is an error object, else None.

        Both engines end a dying stream with such an object and then `[DONE]`.
        """
        if b'"error"' not in data:
            return None
        found = parse_object(data)
        if "choices" in found or not (found.get("error") or found.get("object") == "error"):
            return None
        return error_text(found)[:256] or "engine error"

    def parse_tokens(self, answer: bytes) -> tuple[int, ...] | None:
        """Token ids out of a `tokenize_path` answer; None where it holds none."""
        tokens = parse_object(answer).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            return None
        return tuple(tokens)

    # ---- telemetry and discovery ----------------------------------------------------------

    @abc.abstractmethod
    def parse_metrics(self, text: str, *, dp_rank: int | None = None) -> Telemetry:
        """One reading from the metrics page; of one data-parallel rank, or of all together."""

    def parse_load(self, body: bytes, *, dp_rank: int | None = None) -> Telemetry | None:
        """One reading from `load_path`; None where the page is not understood."""
        del body, dp_rank
        return None

    @abc.abstractmethod
    def epoch(self, metrics_text: str) -> str:
        """Identity of the engine process: differs after a restart, "" where the page has none."""

    @abc.abstractmethod
    def discover(self, pages: Mapping[str, str], *, host: str) -> Discovery:
        """What the engine says of itself; `pages` maps path -> body of those that answered.

        host: the node's host as we reach it, put in place of wildcard bind addresses.
        Raises EngineBroken where the models cannot be read.
        """


def as_count(value: Any) -> int | None:
    """A non-negative integer out of JSON, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse_object(body: bytes | str) -> dict[str, Any]:
    """A JSON object, or an empty one where the text is anything else."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def models_of(page: str) -> list[dict[str, Any]]:
    """Entries of a /v1/models page; raises EngineBroken where it lists none."""
    data = parse_object(page).get("data")
    entries = data if isinstance(data, list) else []
    listed = [m for m in entries if isinstance(m, dict) and isinstance(m.get("id"), str)]
    if not listed:
        raise EngineBroken("/v1/models lists no model", field="models")
    return listed


def error_text(found: Mapping[str, Any]) -> str:
    """Message of an error object: `{"error": {"message"}}`, flat `{"message"}` or `{"detail"}`."""
    nested = found.get("error")
    if isinstance(nested, Mapping):
        found = nested
    elif isinstance(nested, str):
        return nested
    message = found.get("message") or found.get("detail") or ""
    return message if isinstance(message, str) else str(message)


def is_openai_error(body: bytes) -> bool:
    """Whether an error answer has OpenAI's shape, nested under `error`."""
    return isinstance(parse_object(body).get("error"), Mapping)


def error_details(body: bytes) -> tuple[str, str | None]:
    """(code, param) of a flat error object, for an answer in OpenAI's shape."""
    found = parse_object(body)
    code, param = found.get("type"), found.get("param")
    shown = code[:64] if isinstance(code, str) and code else "engine_error"
    return shown, param[:256] if isinstance(param, str) else None


def connectable(endpoint: str, *, host: str) -> str | None:
    """A ZMQ bind address as an address to connect to; None where that cannot work.

    Wildcards take the node's host. A loopback bind is reachable only on this machine. Anything
    but tcp is refused here: local transports come from configuration, never from an engine.
    """
    scheme, _, rest = endpoint.partition("://")
    bound, _, port = rest.rpartition(":")
    if scheme != "tcp" or not _is_port(port):
        return None
    bare = bound.strip("[]")
    if bare in {"*", "0.0.0.0", "::", ""}:
        return f"tcp://{bracketed(host)}:{port}"
    if is_loopback(bare) and not is_loopback(host):
        return None
    return f"tcp://{bound}:{port}"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    bare = host.strip("[]")
    return bare == "localhost" or bare == "::1" or bare.startswith("127.")


def bracketed(host: str) -> str:
    """A host as it stands before a port: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def shifted(endpoint: str, ports: int) -> str:
    """The same address some ports further: rank r of a server listens on base + r."""
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + ports}"
