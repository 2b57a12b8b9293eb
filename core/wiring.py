"""The one place that joins clock, randomness, sockets, storage, policies and settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

import structlog

from core.audit import Recorder
from core.clock import Clock, SystemClock, seeded
from core.conductor import Conductor
from core.control.lab import LabRules
from core.domain import NodeId
from core.engines.addresses import check_trusted, networks, parse_url
from core.engines.guard import AddressGuard
from core.engines.health import HealthRules
from core.engines.parity import Parity
from core.engines.supervisor import FleetSupervisor
from core.engines.watch import WatchRules
from core.errors import EngineUnreachable, Invalid, UsageError
from core.gateway.dns_nodes import DnsNodes, Pool
from core.gateway.limits import Limits
from core.gateway.restore import RESTORE_S, Restorer, StatedNode
from core.gateway.service import Service
from core.gateway.webhook import check_webhook
from core.identity.api_keys import KeyRing
from core.identity.authority import Authority
from core.identity.first_start import FirstStart, make_authority
from core.policy import get_policy
from core.prompt import LocalTokenizer, Prompts
from core.recording import TELEMETRY_S, drained, record_telemetry
from core.relay import Relay
from core.roster import check_spec
from core.settings import LabSettings, ProbeSettings, Settings
from core.tunables import Tunables
from storage.retention import Rules
from storage.store import Keeping, Storage, open_storage

log = logging.getLogger("conductor")


@asynccontextmanager
async def running_service(
    settings: Settings,
    *,
    clock: Clock | None = None,
    made: Callable[[Service], None] = lambda _: None,
) -> AsyncIterator[Service]:
    """A whole scheduler process, entered: nodes watched, records written; left in order.

    made: called before anything of the service runs: the place for what holds the loop. Raises
    Invalid for tunables, tokenizers or node addresses that make no sense, before anything starts.
    """
    clock = clock or SystemClock()
    tunables = start_tunables(settings)
    check_nodes(settings)
    prompts = make_prompts(settings)
    rng = seeded(settings.seed)
    conductor = Conductor(tunables=tunables, rng=rng, new_id=timed_ids(clock, rng))
    changes = Relay()
    with open_records(settings, on_change=changes.tell) as storage:
        recorder = make_recorder(settings, storage, conductor)
        authority, first = await who_may(settings, storage, clock)
        guard = AddressGuard(networks(settings.registration.allowed_networks))
        supervisor = FleetSupervisor(
            conductor,
            guard=guard,
            clock=clock,
            rng=random.Random(rng.getrandbits(64)),
            rules=watch_rules(settings.probe),
            tokenizer=prompts.local_ids,
            on_parity=parity_listener(prompts),
        )
        service = Service(
            conductor=conductor,
            clock=clock,
            prompts=prompts,
            recorder=recorder,
            store=storage.store,
            sink=storage.sink,
            fleet=supervisor,
            limits=limits(settings),
            authority=authority,
            keys=KeyRing(authority.rules, store=storage.store, clock=clock),
            guard=guard,
            webhook_url=settings.alerts.webhook_url,
            rng=random.Random(rng.getrandbits(64)),
            version=product_version(),
            node_notes=supervisor.notes,
            lab=lab_rules(settings.lab),
        )
        service.store_upkeep = storage.upkeep
        service.streams = supervisor.streams
        restorer = Restorer(service, stated_nodes(settings))
        add_jobs(service, recorder, restorer)
        supervisor.on_round = rounds_noted(service, settings.probe)
        await_first_start(service, first)
        made(service)
        async with drained(recorder), supervisor, service, changes.followed(service.heard):
            await restorer.start()
            await watch_pools(service, settings)
            yield service


async def watch_pools(service: Service, settings: Settings) -> None:
    """Follow the names behind which nodes stand, and register who is there now."""
    for nodes in [DnsNodes(service, pool) for pool in dns_pools(settings)]:
        nodes.watch()
        with contextlib.suppress(EngineUnreachable):  # the job tries again, and tells
            await nodes.refresh()


def add_jobs(service: Service, recorder: Recorder, restorer: Restorer) -> None:
    """The process's periodic work that is not the gateway's own."""
    jobs, conductor, clock = service.jobs, service.conductor, service.clock
    service.committer.restore = restorer.again
    jobs.add(
        "telemetry",
        lambda: record_telemetry(conductor, recorder, clock),
        every_s=TELEMETRY_S,
        what="record every node's gauges",
    )
    jobs.add(
        "restore",
        restorer.again,
        every_s=RESTORE_S,
        what="nodes and cordons of before the start, while the store could not be read",
    )


def rounds_noted(service: Service, s: ProbeSettings) -> Callable[[str, float, str], None]:
    """Shows the loops that watch nodes among the jobs; a round is one node's."""
    loops = {
        "probe": service.jobs.loop("probe", every_s=s.interval_s, what="health of each node"),
        "scrape": service.jobs.loop(
            "scrape", every_s=s.scrape_interval_s, what="gauges of each node"
        ),
    }
    return lambda kind, seconds, error: loops[kind].note(seconds, error)


async def who_may(
    settings: Settings, storage: Storage, clock: Clock
) -> tuple[Authority, FirstStart]:
    """Who may do what, once it is sure that somebody can sign in. Invalid where nobody could."""
    auth, server, store = settings.auth, settings.server, storage.store
    first = FirstStart(auth, server, settings.state_dir, store=store, clock=clock)
    await asyncio.to_thread(first.run)
    return make_authority(auth, server, store=store, clock=clock), first


def await_first_start(service: Service, first: FirstStart) -> None:
    """Where the store did not say who may sign in: ask again until it does."""

    async def again() -> None:
        await asyncio.to_thread(first.run)
        if first.done:
            service.jobs.drop("first_start")

    if not first.done:
        service.jobs.add("first_start", again, every_s=5.0, what="who may sign in")


def dns_pools(settings: Settings) -> list[Pool]:
    """The names of the settings behind which nodes stand."""
    return [
        Pool(
            name=d.name,
            host=d.dns,
            port=d.port,
            refresh_s=d.refresh_s,
            template=d.node.stated(d.name, ""),
            discover_events=d.node.events != "off",
        )
        for d in settings.discovery
    ]


def stated_nodes(settings: Settings) -> list[StatedNode]:
    """The nodes of the settings."""
    return [StatedNode(n.spec(), discover_events=n.events != "off") for n in settings.nodes]


def start_tunables(settings: Settings) -> Tunables:
    """Defaults with the settings' changes; Invalid names the path under ``tunables``."""
    try:
        tunables = Tunables().changed(settings.tunable_changes())
        get_policy(tunables.policy)
    except Exception as e:
        raise Invalid(f"tunables: {e}", field="tunables") from None
    return tunables


def make_prompts(settings: Settings) -> Prompts:
    """Tokenizers of the models that have a local directory."""
    found: dict[str, LocalTokenizer] = {}
    for model in settings.models:
        if model.tokenizer_dir is not None:
            try:
                found[model.name] = LocalTokenizer(model.tokenizer_dir)
            except Exception as e:
                text = f"models: tokenizer of {model.name} in {model.tokenizer_dir}: {e}"
                raise Invalid(text, field="models") from None
    return Prompts(found)


def make_recorder(settings: Settings, storage: Storage, conductor: Conductor) -> Recorder:
    """Carries records to the store, prompts too where they are kept."""
    kept = settings.records
    chars = kept.prompt_chars_max if kept.keep_prompts else 0
    return Recorder(storage.sink, slo=lambda: conductor.tunables.slo, prompt_chars_max=chars)


def open_records(
    settings: Settings, *, on_change: Callable[[frozenset[str]], None] | None = None
) -> Storage:
    """The record store with its upkeep; rows wait in the state directory while it is away.

    on_change: called from a thread with the topics that other processes changed.
    """
    server, records = settings.server, settings.records
    rules = Rules(
        decisions_days=records.decisions_days,
        rollups_days=records.rollups_days,
        prompts_days=records.prompt_days,
        share_max=records.delete_share_max,
    )
    return open_storage(
        settings.database,
        spool_dir=settings.state_dir / "spool",
        spool_bytes_max=records.spool_bytes_max,
        keeping=Keeping(
            version=product_version(),
            address=f"{server.host}:{server.port}",
            rules=rules,
            on_change=on_change,
        ),
    )


def timed_ids(clock: Clock, rng: random.Random) -> Callable[[], str]:
    """Ids of 24 hex digits that sort by time: 12 of milliseconds, 4 counting, 8 random."""
    count = rng.getrandbits(15)

    def new_id() -> str:
        nonlocal count
        count = (count + 1) & 0xFFFF
        millis = int(clock.wall().timestamp() * 1000)
        return f"{millis:012x}{count:04x}{rng.getrandbits(32):08x}"

    return new_id


def check_nodes(settings: Settings) -> None:
    """Invalid, naming the node's field, where one has an address or a figure that cannot be."""
    for node in settings.nodes:
        try:
            check_trusted(node.spec())
            check_spec(node.spec())
        except UsageError as e:
            where = f"nodes.{node.id}.{e.field}"
            raise Invalid(f"nodes.{node.id}.{e.message}", field=where) from None
    if settings.alerts.webhook_url:
        check_webhook(settings.alerts.webhook_url)
    for pool in settings.discovery:
        field = f"discovery.{pool.name}.dns"
        parse_url(f"http://{pool.dns}:{pool.port}", field=field)


def limits(settings: Settings) -> Limits:
    """The gateway's limits with the settings' values."""
    s = settings.limits
    return Limits(
        body_bytes_max=s.body_bytes_max,
        requests_max=s.requests_max,
        connect_timeout_s=s.connect_timeout_s,
        first_byte_timeout_s=s.first_byte_timeout_s,
        idle_timeout_s=s.idle_timeout_s,
        retries_max=s.retries_max,
        retry_share=s.retry_share,
        retry_min=s.retry_min,
        drain_s=s.drain_s,
        prompt_memory_bytes=s.prompt_memory_bytes,
        queue_max=s.queue_max,
        queue_bytes_max=s.queue_bytes_max,
        allowed_networks=networks(settings.registration.allowed_networks),
        export_rows_max=settings.records.export_rows_max,
        prompt_days=settings.records.prompt_days if settings.records.keep_prompts else 0.0,
    )


def lab_rules(s: LabSettings) -> LabRules:
    """The Lab's bounds."""
    return LabRules(
        trace_dir=s.trace_dir,
        runs_max=s.runs_max,
        requests_max=s.requests_max,
        time_max_s=s.time_max_s,
        jobs_max=s.jobs_max,
    )


def watch_rules(s: ProbeSettings) -> WatchRules:
    """When nodes are probed and scraped, and when they count as dead."""
    health = HealthRules(
        interval_s=s.interval_s,
        timeout_s=s.timeout_s,
        down_after=s.down_after,
        up_after=s.up_after,
    )
    return WatchRules(health=health, scrape_interval_s=s.scrape_interval_s)


def parity_listener(prompts: Prompts) -> Callable[[NodeId, Parity], None]:
    """Says loudly when our tokens are not the engine's, and stops using ours."""

    def heard(node: NodeId, parity: Parity) -> None:
        if parity.mismatches:
            detail = parity.mismatches[0]
            prompts.distrust(parity.model, f"{node}: {detail}")
            log.error("tokens of %s differ from those of node %s: %s", parity.model, node, detail)

    return heard


def product_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("kv-conductor")
    except PackageNotFoundError:
        return "unknown"


def configure_logging(level: str, *, json: bool) -> None:
    """Structured logs on standard error: for people on a terminal, JSON lines elsewhere."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = [structlog.dev.ConsoleRenderer()]
    if json:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("httpx", "uvicorn.access", "alembic", "apscheduler"):
        logging.getLogger(name).setLevel(logging.WARNING)
