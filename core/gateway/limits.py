"""Limits of the gateway, each with a default and a reason; wiring fills them from settings."""

from __future__ import annotations

from dataclasses import dataclass

from core.engines.addresses import Network, networks
from core.settings import RegistrationSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds, counts."""

    body_bytes_max: int = 8 * 1024 * 1024
    """Request body."""
    body_timeout_s: float = 30.0
    """From the request's head to its last body byte."""
    head_timeout_s: float = 10.0
    """From the connection, or the end of the last request on it, to a complete head begun."""
    answer_bytes_max: int = 32 * 1024 * 1024
    """Whole (not streamed) engine answers; longer ones pass on unread."""
    connect_timeout_s: float = 0.5
    first_byte_timeout_s: float = 120.0
    """From sending a request to an engine to the first byte of its answer's body."""
    whole_timeout_s: float = 600.0
    """The same for an answer that is not streamed, whose first byte is its last."""
    idle_timeout_s: float = 60.0
    """Between two reads from a streaming engine, and for a client that does not read."""
    retries_max: int = 2
    """Further attempts after the first, each on another node, before the first byte."""
    retry_share: float = 0.2
    """Retries over requests in the last ten seconds."""
    retry_min: int = 3
    """Retries always allowed in ten seconds."""
    retry_backoff_s: float = 0.05
    """Doubles each time, full jitter; none where the node is gone."""
    requests_max: int = 20_000
    """Requests in flight; beyond it 503."""
    reservations_max: int = 100_000
    """Open reservations of schedulers elsewhere (POST /v1/schedule)."""
    reservation_ttl_s: float = 600.0
    """Default and largest life of such a reservation."""
    export_rows_max: int = 1_000_000
    """Rows of one exported file."""
    exports_max: int = 2
    """Exports at once; beyond it 429."""
    prompt_days: float = 0.0
    """How long redacted prompts are kept beside decisions; 0: they are not."""
    drain_s: float = 120.0
    """Longest wait for streams when the service stops."""
    prompt_memory_bytes: int = 64 * 1024 * 1024
    """Recent prompts (ids and keys) kept while migration is on, to copy hot prefixes from."""
    queue_max: int = 4_096
    """Requests waiting for a node in queue mode."""
    queue_bytes_max: int = 256 * 1024 * 1024
    """Bodies of those."""
    ask_usage: bool = True
    """Ask streaming engines for usage where the client did not, and leave it out again."""
    thread_chars: int = 8_192
    """Prompts longer than this are tokenized in a thread."""
    tokenize_timeout_s: float = 5.0
    """An engine's /tokenize; after it the prompt is scheduled by its text."""
    allowed_networks: tuple[Network, ...] = networks(RegistrationSettings().allowed_networks)
    """Where nodes registered at run time may be."""
