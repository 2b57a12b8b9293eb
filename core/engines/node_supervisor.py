"""Watching one node: health, telemetry, discovery, identity of its process, its event stream.

Order matters at the moment a node becomes eligible: before a good probe is told to the
conductor, the engine is asked who it is, so that no request is ever placed on the strength of a
cache that died with an earlier process.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog
import zmq

from core.domain import Health, NodeSpec
from core.engines.discovery import join
from core.engines.health import HealthTracker, Probe
from core.engines.probe import EngineProbe
from core.engines.registry import adapter
from core.engines.transport import NodeStream
from core.engines.watch import NodeStatus, WatchTools
from core.errors import EngineBroken, EngineFault, NotFound
from core.fleet.transition import TransitionEvent
from core.fleet.trust import COOLING

_log = structlog.get_logger("conductor.engines")
_CONFIRMATIONS = 4


class NodeSupervisor:
    """Watches one registered node while its context is open.

    registered: the spec as the operator gave it; discovery completes it in the conductor.
    discover_events: attach to the event stream that the engine names, where none was given.
    """

    def __init__(
        self, registered: NodeSpec, tools: WatchTools, *, discover_events: bool = True
    ) -> None:
        self.registered = registered
        self.node = registered.id
        self.status = NodeStatus(node=registered.id)
        self._tools = tools
        self.discover_events = discover_events
        self._adapter = adapter(registered.engine)
        self._probe = EngineProbe(registered, self._adapter, tools.client)
        self._tracker = HealthTracker(tools.rules.health)
        self._poked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stream: NodeStream | None = None
        self._discovered_s = float("-inf")
        self._gone = False

    # ---- life -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if not self.registered.url:
            # A publisher without an address: its events are followed, nobody can be asked.
            await self._attach(self.registered)
            return self
        self._tasks = [
            asyncio.create_task(self._health_loop(), name=f"health {self.node}"),
            asyncio.create_task(self._scrape_loop(), name=f"scrape {self.node}"),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._detach()

    def poke(self) -> None:
        """Probe now: somebody saw the node fail."""
        self._poked.set()

    def cache_cleared(self) -> None:
        """Somebody emptied the engine's cache from outside: engines may tell much later."""
        if self._stream is not None:
            self._stream.cleared(self._now())

    # ---- health ---------------------------------------------------------------------------

    async def _health_loop(self) -> None:
        while True:
            began = self._now()
            problem = ""
            try:
                await self.check()
            except Exception as error:
                # A node that cannot be watched must not end the watch over it.
                _log.exception("probe_failed", node=self.node)
                self.status.last_error = f"probe failed: {type(error).__name__}: {error}"
                problem = f"{self.node}: {self.status.last_error}"
            self._tools.on_round("probe", self._now() - began, problem)
            await self._pause(began)

    async def _pause(self, began: float) -> None:
        rules = self._tools.rules
        hurried = self._tracker.health is Health.UNKNOWN or (
            self._tracker.health is Health.DEAD and self._tracker.streak > 0
        )
        interval = rules.hurry_s if hurried else rules.health.interval_s
        interval *= 1 + rules.health.jitter * (2 * self._tools.rng.random() - 1)
        await asyncio.sleep(rules.poke_s)
        left = began + interval - self._now()
        try:
            async with asyncio.timeout(max(left, 0.0)):
                await self._poked.wait()
        except TimeoutError:
            pass
        self._poked.clear()

    async def check(self) -> Health:
        """Probe once and tell the conductor what it means."""
        probe = await self._ask()
        if probe is Probe.GOOD and not await self._identified():
            probe = Probe.BAD
        health = self._tracker.observe(probe)
        self.status.probes += 1
        if probe is Probe.GONE:
            self._process_gone()
        elif probe is not Probe.GOOD and not self.status.last_error:
            self.status.last_error = "the health probe got no good answer in time"
        elif probe is Probe.GOOD:
            self._gone, self.status.last_error = False, ""
        self.status.health, self.status.streak = health, self._tracker.streak
        self._tools.conductor.set_health(self.node, health, self._now())
        return health

    async def _ask(self) -> Probe:
        """One probe; a connection that was cut is tried again at once, and counted once.

        A killed process cuts its connections some time before its port refuses new ones, and
        only a refusal shows that it is gone.
        """
        probe = Probe.CUT
        for _ in range(_CONFIRMATIONS):
            probe = await self._probe.health(timeout_s=self._tools.rules.health.timeout_s)
            if probe is not Probe.CUT:
                break
            await asyncio.sleep(self._tools.rules.poke_s)
        return probe

    async def _identified(self) -> bool:
        """Whether we know which process answers; asks where the node is about to rise."""
        due = self._now() - self._discovered_s >= self._tools.rules.discovery_interval_s
        rising = self._tracker.would_rise()
        if not (due or rising or not self.status.discovered):
            return True
        try:
            await self._discover()
            if rising:
                await self._scrape(whole=True)
        except EngineFault as fault:
            self.status.last_error = f"cannot be identified: {fault.message}"
            return self.status.discovered and not rising
        return True

    # ---- who it is ------------------------------------------------------------------------

    async def _discover(self) -> None:
        found = await self._probe.discover()
        self._discovered_s = self._now()
        if self.registered.dp_rank is None and found.dp_size > 1 and self._tools.on_ranks:
            self._tools.on_ranks(self.registered, found)
            raise EngineBroken(f"the server has {found.dp_size} data-parallel ranks: one node each")
        self._note_epoch(found.epoch)
        joined = join(self.registered, found)
        self.status.notes, self.status.version = joined.notes, found.version
        self.status.bootstrap_port = found.bootstrap_port
        await self._take_over(joined.spec)
        if not self.status.discovered:
            await self._compare_tokens(joined.spec)
            self.status.discovered = True
            self._note("discovered", version=found.version, block_size=joined.spec.block_size)

    async def _take_over(self, spec: NodeSpec) -> None:
        """Tell the conductor what changed, and follow the event stream where that moved."""
        conductor = self._tools.conductor
        if not self.discover_events and self.registered.events is None:
            spec = replace(spec, events=None)
        current = conductor.fleet.spec(self.node)
        moved = any(
            getattr(spec, name) != getattr(current, name)
            for name in ("events", "block_size", "models")
        )
        failed = self._stream is not None and self._stream.failed
        if moved or failed or (self._stream is None) != (spec.events is None):
            # Nothing may reach the index under what is not true any more.
            await self._detach()
        # The weight may have changed while the engine was asked and the stream was let go.
        spec = replace(spec, weight=self.registered.weight)
        if spec != current:
            conductor.update_spec(spec, self._now())
        if self._stream is None and spec.events is not None:
            await self._attach(spec)

    async def _compare_tokens(self, spec: NodeSpec) -> None:
        if self._tools.tokenizer is None:
            return
        for model in spec.models:
            try:
                parity = await self._probe.parity(model, self._tools.tokenizer)
            except EngineFault as fault:
                _log.warning("parity_unknown", node=self.node, model=model, error=fault.message)
                continue
            self.status.parity[model] = parity
            if parity.mismatches:
                _log.error("token_mismatch", node=self.node, model=model, at=parity.mismatches)
                self._note("token_mismatch", model=model, mismatches=len(parity.mismatches))
            if self._tools.on_parity is not None:
                self._tools.on_parity(self.node, parity)

    # ---- telemetry ------------------------------------------------------------------------

    async def _scrape_loop(self) -> None:
        rules = self._tools.rules
        while True:
            await asyncio.sleep(rules.scrape_every_s(self._tools.nodes()))
            if self._tracker.health not in (Health.HEALTHY, Health.SUSPECT):
                continue
            self._heed_trust()
            began, problem = self._now(), ""
            try:
                async with asyncio.timeout(rules.scrape_timeout_s):
                    await self._scrape()
            except Exception as fault:
                if not isinstance(fault, (EngineFault, TimeoutError)):
                    _log.exception("scrape_failed", node=self.node)
                self.status.scrape_failures += 1
                self.status.last_error = f"no telemetry: {fault or type(fault).__name__}"
                problem = f"{self.node}: {self.status.last_error}"
                self.poke()
            self._tools.on_round("scrape", self._now() - began, problem)

    async def _scrape(self, *, whole: bool = False) -> None:
        reading = await self._probe.scrape(whole=whole)
        self.status.scrapes += 1
        self._note_epoch(reading.epoch)
        self._tools.conductor.telemetry(self.node, reading.telemetry, self._now())

    # ---- restarts -------------------------------------------------------------------------

    def _note_epoch(self, epoch: str) -> None:
        """Compare the process that answered with the one whose cache we believe in."""
        known, self.status.epoch = self.status.epoch, epoch or self.status.epoch
        if known and epoch and epoch != known:
            self._restarted("process_start_changed")
            self._discovered_s = float("-inf")

    def _process_gone(self) -> None:
        """Nobody listens: what was cached and in flight is gone, once for each death."""
        self.status.last_error = "it does not answer: connection refused"
        if not self._gone and self._tracker.health is Health.DEAD:
            self._gone, self.status.epoch = True, ""
            self._discovered_s = float("-inf")
            self._restarted("connection_refused")

    def _restarted(self, cause: str) -> None:
        self.status.restarts += 1
        self._tools.conductor.restarted(self.node, self._now())
        if self._stream is not None:
            self._stream.restarted(self._now())
        _log.warning("engine_restarted", node=self.node, cause=cause)
        self._note("restarted", cause=cause)

    def _stream_restarted(self) -> None:
        """The stream saw a new process before any probe did: its next epoch is no news."""
        self.status.restarts += 1
        self.status.epoch = ""
        self._tools.conductor.restarted(self.node, self._now())
        _log.warning("engine_restarted", node=self.node, cause="sequence_went_back")
        self._note("restarted", cause="sequence_went_back")
        self.poke()

    # ---- event stream ---------------------------------------------------------------------

    async def _attach(self, spec: NodeSpec) -> None:
        stream = NodeStream(
            spec,
            self._tools.stream,
            on_restart=self._stream_restarted,
            on_lost_link=self.poke,
        )
        try:
            await stream.__aenter__()
        except zmq.ZMQError as error:
            self.status.notes += (f"cannot follow events at {spec.events}: {error}",)
            return
        self._stream, self.status.stream = stream, stream.status

    async def _detach(self) -> None:
        stream, self._stream, self.status.stream = self._stream, None, None
        if stream is not None:
            await stream.__aexit__(None, None, None)

    def _heed_trust(self) -> None:
        """Relearn the cache of a node whose credit was not confirmed."""
        if self._stream is None:
            return
        try:
            slot = self._tools.conductor.fleet.slot(self.node)
            standing = self._tools.conductor.trust.node(slot).standing
        except (NotFound, KeyError):
            return
        self._stream.doubted(standing in COOLING, self._now())

    # ---- small things ---------------------------------------------------------------------

    def _now(self) -> float:
        return self._tools.clock.now()

    def _note(self, after: str, *, cause: str = "probe", **data: str | int) -> None:
        event = TransitionEvent(
            now_s=self._now(), machine="engine", node=self.node, before="", after=after,
            cause=cause, data=data,
        )  # fmt: skip
        self._tools.conductor.note(event)
