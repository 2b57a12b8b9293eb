"""Process settings from a TOML file and the environment, read once and validated.

The environment (``CONDUCTOR_SERVER__PORT=9000``) beats the file, the file beats the defaults.
Nothing else in the project reads the environment for configuration. What may change while
traffic runs is not here but in `core.tunables`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from core.domain import NODE_ID, EngineKind, EventEndpoints, LinkKind, NodeId, NodeSpec, Place, Role
from core.errors import Invalid
from core.oidc_settings import OidcSettings

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[float, Field(gt=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Address(_Part):
    """Where a process listens."""

    host: str = Field(default="127.0.0.1", description="address to bind")
    port: Port = Field(default=0, description="TCP port; 0 picks a free one")


class ServerAddress(Address):
    """The service: data plane and admin API."""

    port: Port = Field(default=8080, description="TCP port; 0 picks a free one")


class ConsoleAddress(Address):
    """The console."""

    port: Port = Field(default=8501, description="TCP port")


class ModelSettings(_Part):
    """How prompts of one model are turned into tokens here."""

    name: str = Field(description="served model name")
    tokenizer_dir: Path | None = Field(
        default=None, description="directory with tokenizer.json and tokenizer_config.json"
    )

    @field_validator("tokenizer_dir")
    @classmethod
    def _is_directory(cls, value: Path | None) -> Path | None:
        if value is not None and not (value / "tokenizer.json").is_file():
            raise ValueError(f"{value} holds no tokenizer.json")
        return value


class EventSettings(_Part):
    """ZMQ addresses of a node's KV events; left out, they are asked of the engine."""

    live: str = Field(description="publisher, tcp://host:port")
    replay: str | None = Field(default=None, description="replay socket, tcp://host:port")
    topic: str = Field(default="", description="subscription prefix")

    @field_validator("live", "replay")
    @classmethod
    def _tcp_only(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith("tcp://") or "*" in value):
            raise ValueError(f"{value!r} is not a tcp://host:port to connect to")
        return value


class NodeTemplate(_Part):
    """What is said of an engine server, its name and address apart."""

    engine: EngineKind = Field(default=EngineKind.VLLM, description="vllm, sglang or emulated")
    role: Role = Field(default=Role.BOTH, description="prefill, decode or both")
    models: tuple[str, ...] = Field(
        default=(), description="served names; asked of the engine if empty"
    )
    block_size: int = Field(
        default=16, ge=1, description="tokens a KV block, until the engine tells"
    )
    kv_capacity_tokens: int = Field(default=0, ge=0, description="KV cache size; 0: learned")
    context_tokens_max: int = Field(default=0, ge=0, description="longest prompt; 0: learned")
    batch_max: int = Field(default=256, ge=1, description="requests decoded at once")
    queue_max: int = Field(default=1024, ge=1, description="requests waiting at most")
    profile: str = Field(default="generic-7b-1gpu", description="cost profile")
    mfu: float | None = Field(default=None, gt=0, le=1, description="prefill FLOPs utilisation")
    speed: Positive = Field(default=1.0, description="relative to the profile")
    host: str = Field(default="", description="topology: host")
    rack: str = Field(default="", description="topology: rack")
    zone: str = Field(default="", description="topology: zone")
    links: tuple[LinkKind, ...] = Field(default=(LinkKind.TCP,), description="kinds of link it has")
    events: EventSettings | Literal["auto", "off"] = Field(
        default="auto", description="KV events: auto asks the engine, off uses routing history"
    )
    dp_rank: int | None = Field(
        default=None, ge=0, description="data-parallel rank behind the address"
    )
    tenants: frozenset[str] = Field(default=frozenset(), description="tenants allowed; empty: all")
    weight: Positive = Field(default=1.0, description="relative share of traffic")
    can_fetch: bool = Field(
        default=False, description="pulls prefix blocks from other nodes when told"
    )
    kv_transfer: str = Field(
        default="", description="P/D connector (nixl, bootstrap); equal names can work together"
    )
    kv_dtype: str = Field(
        default="auto",
        description="KV cache's dtype: auto (engine's), bfloat16, fp8, int8",
    )
    pipeline_group: str = Field(
        default="", description="nodes of equal names can share one long prefill (emulated only)"
    )
    kv_store: Literal["", "mooncake", "lmcache"] = Field(
        default="", description="shared KV store behind the engine"
    )
    kv_store_url: str = Field(default="", description="LMCache's controller, http://host:port")
    kv_store_instance: str = Field(default="", description="its LMCache instance there")

    def stated(self, id: str, url: str) -> NodeSpec:
        """The node of that name and address as the core registers it."""
        events = None
        if isinstance(self.events, EventSettings):
            events = EventEndpoints(**self.events.model_dump())
        apart = {"host", "rack", "zone", "events"}
        plain = {n: getattr(self, n) for n in NodeTemplate.model_fields if n not in apart}
        place = Place(host=self.host, rack=self.rack, zone=self.zone)
        return NodeSpec(id=NodeId(id), url=url, place=place, events=events, **plain)


class NodeSettings(NodeTemplate):
    """One engine server. Capacities left out are learned from the engine."""

    id: str = Field(description="unique name", min_length=1, max_length=128, pattern=NODE_ID)
    url: str = Field(description="base URL, http://host:port")

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} does not start with http:// or https://")
        return value.rstrip("/")

    def spec(self) -> NodeSpec:
        """The node as the core registers it."""
        return self.stated(self.id, self.url)


class DiscoverySettings(_Part):
    """Nodes behind a DNS name: several addresses, or a Kubernetes headless service."""

    name: str = Field(
        description="pool; its nodes are called name-address",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
    )
    dns: str = Field(description="host name to look up", min_length=1, max_length=253)
    port: Annotated[int, Field(ge=1, le=65535)] = Field(description="HTTP port of each node")
    refresh_s: float = Field(default=10.0, ge=1.0, le=3600.0, description="s; between look-ups")
    node: NodeTemplate = Field(default=NodeTemplate(), description="what each node is like")


class LimitSettings(_Part):
    """Bounds of the gateway."""

    body_bytes_max: int = Field(default=8 << 20, ge=1024, description="bytes; largest request body")
    requests_max: int = Field(default=20_000, ge=1, description="requests in flight; beyond it 503")
    connect_timeout_s: Positive = Field(default=2.0, description="s; to an engine")
    first_byte_timeout_s: Positive = Field(default=120.0, description="s; engine's first byte")
    idle_timeout_s: Positive = Field(default=60.0, description="s; between bytes of a stream")
    retries_max: int = Field(
        default=2, ge=0, le=10, description="further attempts before the first byte"
    )
    retry_share: float = Field(default=0.2, ge=0, le=1, description="retries over requests")
    retry_min: int = Field(default=3, ge=0, description="retries always allowed in ten seconds")
    drain_s: float = Field(default=120.0, ge=0, description="s; wait for streams when stopping")
    prompt_memory_bytes: int = Field(
        default=64 << 20, ge=0, description="bytes; recent prompts kept to copy hot prefixes from"
    )
    queue_max: int = Field(
        default=4096, ge=1, description="requests waiting for a node (admission.mode = queue)"
    )
    queue_bytes_max: int = Field(
        default=256 << 20, ge=1024, description="bytes; bodies of waiting requests"
    )


class ProbeSettings(_Part):
    """How nodes are watched."""

    interval_s: Positive = Field(default=2.0, description="s; between health checks")
    timeout_s: Positive = Field(default=1.5, description="s; of one health check")
    down_after: int = Field(default=3, ge=1, description="failed checks until dead")
    up_after: int = Field(default=2, ge=1, description="good checks until healthy again")
    scrape_interval_s: Positive = Field(
        default=1.0, description="s; between readings of the metrics"
    )


class AlertSettings(_Part):
    """Where alerts are told. When they fire is tunable: `[tunables]`, paths under ``alerts``."""

    webhook_url: str = Field(
        default="", description="gets a POST of JSON for each change of an alert; empty: nobody"
    )


class RegistrationSettings(_Part):
    """Which nodes may be registered while the service runs; those of this file are trusted."""

    allowed_networks: tuple[str, ...] = Field(
        default=(
            "127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7",
        ),
        description="networks (CIDR) nodes may be in; metadata and link-local addresses never",
    )  # fmt: skip

    @field_validator("allowed_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ip_network(text)  # ValueError says what is wrong with it
        return value


ADMIN_TOKEN_CHARS_MIN = 32


class AuthSettings(_Part):
    """Who may use the admin API and the data plane; see core/identity/README.md."""

    anonymous_role: Literal["none", "viewer", "operator", "admin"] = Field(
        default="viewer",
        description="role of callers on this machine that show nothing; loopback only",
    )
    require_api_key: bool | None = Field(
        default=None, description="/v1 needs a key; unset: unless server.host is loopback"
    )
    admin_token: SecretStr | None = Field(
        default=None,
        description="an administrator's token, given from outside; 32 characters or more",
    )
    open_metrics: bool = Field(default=False, description="/metrics is open to everybody")
    trusted_proxies: tuple[str, ...] = Field(
        default=(), description="networks (CIDR) whose X-Forwarded-For is believed"
    )
    oidc: OidcSettings = OidcSettings()

    @field_validator("admin_token")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < ADMIN_TOKEN_CHARS_MIN:
            raise ValueError(f"is shorter than {ADMIN_TOKEN_CHARS_MIN} characters")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _are_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ip_network(text)
        return value


class RecordSettings(_Part):
    """How long records are kept, and how much waits on disk while the database is away."""

    decisions_days: Positive = Field(
        default=14.0, description="days; decisions, outcomes, readings, fine roll-ups"
    )
    rollups_days: Positive = Field(
        default=400.0, description="days; roll-ups of five minutes and an hour, events"
    )
    keep_prompts: bool = Field(
        default=False, description="keep redacted prompt text beside decisions, for admins"
    )
    prompt_days: Positive = Field(default=3.0, description="days; prompt text, where it is kept")
    prompt_chars_max: int = Field(
        default=8_192, ge=1, le=1 << 17, description="characters kept of one prompt"
    )
    delete_share_max: float = Field(
        default=0.2, gt=0, le=1, description="a clean-up that would delete more of a table refuses"
    )
    spool_bytes_max: int = Field(
        default=256 << 20, ge=1 << 20, description="bytes; records on disk while it is away"
    )
    export_rows_max: int = Field(
        default=1_000_000, ge=1, description="rows; longest export over the admin API"
    )


class HistorySettings(_Part):
    """The read-only API that `conductor up` starts beside the service, for its records."""

    port: Port = Field(default=8081, description="TCP port on the server's host; 0: not started")


class EmulationSettings(_Part):
    """The emulated fleet and workload that `conductor up` starts without nodes of your own."""

    prefill: int = Field(default=3, ge=0, description="prefill nodes")
    decode: int = Field(default=2, ge=0, description="decode nodes")
    both: int = Field(default=1, ge=0, description="nodes that do both")
    model: str = Field(default="demo-7b", description="served model name")
    block_size: int = Field(default=128, ge=1, description="tokens a KV block")
    kv_tokens: int = Field(default=12_000_000, ge=1024, description="KV cache of a node, tokens")
    profile: str = Field(default="tiny-emulated", description="cost profile")
    time_scale: Positive = Field(default=50.0, description="model times are divided by this")
    tick_ms: float = Field(
        default=100.0, ge=0, description="ms; decoded tokens are written this rarely"
    )
    requests_per_s: float = Field(default=2.0, ge=0, description="1/s; built-in workload; 0: none")


class LabSettings(_Part):
    """The Lab: trying policies and parameters on recorded requests or traces."""

    trace_dir: Path | None = Field(
        default=None, description="directory whose .jsonl traces may be played; unset: none"
    )
    requests_max: int = Field(default=20_000, ge=20, le=100_000, description="requests of a run")
    runs_max: int = Field(default=400, ge=1, le=10_000, description="runs of a job")
    time_max_s: Positive = Field(default=1800.0, description="s; longest job")
    jobs_max: int = Field(default=20, ge=1, le=1000, description="jobs kept, ended ones too")


class Settings(BaseSettings):
    """Everything a process needs to start."""

    model_config = SettingsConfigDict(
        env_prefix="CONDUCTOR_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    server: ServerAddress = ServerAddress()
    console: ConsoleAddress = ConsoleAddress()
    state_dir: Path = Field(default=Path("conductor-state"), description="database and logs")
    database_url: str = Field(default="", description="SQLAlchemy URL; empty: SQLite in state_dir")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="logging"
    )
    seed: int | None = Field(default=None, description="seed of tie-breaking; unset: random")
    nodes: tuple[NodeSettings, ...] = ()
    discovery: tuple[DiscoverySettings, ...] = ()
    models: tuple[ModelSettings, ...] = ()
    limits: LimitSettings = LimitSettings()
    probe: ProbeSettings = ProbeSettings()
    registration: RegistrationSettings = RegistrationSettings()
    alerts: AlertSettings = AlertSettings()
    auth: AuthSettings = AuthSettings()
    records: RecordSettings = RecordSettings()
    history: HistorySettings = HistorySettings()
    emulation: EmulationSettings = EmulationSettings()
    lab: LabSettings = LabSettings()
    tunables: dict[str, Any] = Field(default={}, description="start values of live tunables")

    @model_validator(mode="after")
    def _distinct_nodes(self) -> Settings:
        seen: set[str] = set()
        for node in self.nodes:
            if node.id in seen:
                raise ValueError(f"nodes: id {node.id!r} appears twice")
            seen.add(node.id)
        pools = [pool.name for pool in self.discovery]
        if twice := sorted({name for name in pools if pools.count(name) > 1}):
            raise ValueError(f"discovery: name {twice[0]!r} appears twice")
        return self

    @property
    def database(self) -> str:
        """The database URL in force."""
        return self.database_url or f"sqlite:///{self.state_dir.resolve() / 'conductor.db'}"

    def tunable_changes(self) -> dict[str, Any]:
        """`tunables` as path -> value: nested tables and dotted names mean the same."""
        return dict(_flat(self.tunables, ""))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (the framework's signature)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first, then what the file said (given as init values)."""
        return env_settings, init_settings


def load_settings(path: Path | None = None, **overrides: Any) -> Settings:
    """Settings from `path` (TOML), the environment and keyword overrides, strongest last.

    Invalid names the field, what it was and what was expected.
    """
    given: dict[str, Any] = {}
    if path is not None:
        given = _read(path)
    try:
        settings = Settings(**given)
        return settings.model_copy(update=overrides) if overrides else settings
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "settings"
        source = f"{path}: " if path is not None else ""
        raise Invalid(f"{source}{where}: {first['msg']}", field=where) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        if path.suffix == ".json":
            return dict(json.loads(text))
        return tomllib.loads(text)
    except OSError as e:
        raise Invalid(f"config: cannot read {path}: {e.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, ValueError) as e:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise Invalid(f"config: {path} is not {kind}: {e}", field="config") from None


def _flat(tree: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            out += _flat(value, f"{prefix}{name}.")
        else:
            out.append((f"{prefix}{name}", value))
    return out
