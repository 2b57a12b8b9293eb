"""A class's limits reach the decision, its record and its verdict; a request's own go before."""

from gateway_world import Engine, engines, gateway

from core.tunables import Tunables


async def test_limits_of_a_tenant_hold_for_its_requests_until_they_change():
    tunables = Tunables().changed({"slo.classes": "tenant=gold* ttft_s=0.001 tbt_s=0.002"})
    with engines(Engine("a")) as (a,):
        async with gateway(a.spec(), tunables=tunables.changed({"admission.mode": "off"})) as w:
            for tenant, more in (("gold-1", {}), ("free", {}), ("gold-2", {"ttft": "9000"})):
                headers = {"x-conductor-tenant": tenant}
                if more:
                    headers["x-conductor-ttft-slo-ms"] = more["ttft"]
                answer = await w.complete("hello", max_tokens=3, headers=headers, stream=True)
                assert answer.status == 200 and await answer.read()
            await w.settled()
            limits = {d.tenant: (d.ttft_slo_s, d.tbt_slo_s) for d in w.sink.decisions}
            assert limits == {"gold-1": (0.001, 0.002), "free": (30.0, 0.2), "gold-2": (9.0, 0.002)}
            by_id = {o.decision_id: o for o in w.sink.outcomes}
            gold = next(d for d in w.sink.decisions if d.tenant == "gold-1")
            assert "ttft" in by_id[gold.id].slo_missed
            w.service.conductor.apply(Tunables(), revision=2)
            again = await w.complete("x", max_tokens=3, headers={"x-conductor-tenant": "gold-1"})
            assert again.status == 200
            await w.settled()
            assert w.sink.decisions[-1].ttft_slo_s == 30.0
