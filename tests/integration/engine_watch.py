"""A conductor whose fleet is supervised, for tests of supervision."""

import asyncio
from contextlib import asynccontextmanager

from core.conductor import Conductor
from core.domain import EngineKind, Health, NodeId, NodeSpec, Outcome, OutcomeKind, Request, Trust
from core.engines.health import HealthRules
from core.engines.supervisor import FleetSupervisor
from core.engines.watch import WatchRules
from core.hashing import chain, root_key, token_array
from tests.integration.engine_fleet import EmulatedEngine
from tests.integration.engine_wire import until

NODE = NodeId("n")
QUICK = WatchRules(
    health=HealthRules(interval_s=0.3, timeout_s=0.5), scrape_interval_s=0.1, hurry_s=0.1
)
PROMPT = list(range(1, 1000))


def keys(ids: list[int]) -> dict[int, list[int]]:
    return {32: chain(token_array(ids), 32, root_key("tiny", block_size=32))}


class Watched:
    """A conductor whose fleet is supervised."""

    def __init__(self, fleet: FleetSupervisor, conductor: Conductor) -> None:
        self.fleet = fleet
        self.conductor = conductor

    async def add(self, engine: EmulatedEngine, node: str = NODE, **options) -> None:
        spec = NodeSpec(id=NodeId(node), url=engine.url, engine=EngineKind.EMULATED)
        await self.fleet.add(spec, **options)

    def health(self, node: str = NODE) -> Health:
        return self.conductor.fleet.health(NodeId(node))

    def match(self, ids: list[int] = PROMPT) -> int:
        return int(self.conductor.match(keys(ids))[self.conductor.fleet.slot(NODE)])

    @property
    def trust(self) -> Trust:
        return self.conductor.trust.trust(self.conductor.fleet.slot(NODE))

    async def healthy(self, node: str = NODE) -> None:
        await until(lambda: self.health(node) is Health.HEALTHY, what=f"{node} healthy")

    async def serve(self, engine: EmulatedEngine, ids: list[int]) -> tuple[int, int]:
        """One request scheduled, sent and finished: (predicted match, reported cached)."""
        now = asyncio.get_running_loop().time()
        request = Request(id="r", model="tiny", prompt_tokens=len(ids), keys=keys(ids))
        decided = self.conductor.schedule(request, now)
        assert isinstance(decided, tuple), decided
        decision, reservation = decided
        usage = (await engine.complete(ids))["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        outcome = Outcome(kind=OutcomeKind.OK, cached_tokens=cached, prompt_tokens=len(ids))
        reservation.finish(outcome, asyncio.get_running_loop().time())
        return decision.match_tokens, cached


@asynccontextmanager
async def watching(**options):
    conductor = Conductor()
    async with FleetSupervisor(conductor, rules=QUICK, **options) as fleet:
        yield Watched(fleet, conductor)
