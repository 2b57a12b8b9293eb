"""The cost models of nodes as the admin API and Prometheus tell them."""

from fleet_cases import conductor, decided, outcome, request, spec

from core.domain import NodeId
from core.gateway.costs import cost_families, fit_view


def test_errors_are_told_once_there_is_something_to_compare() -> None:
    c = conductor(spec("a", kv_transfer=""), spec("b"), changes={"admission.mode": "off"})
    assert not next(iter(cost_families(c))).samples
    assert fit_view(c.calibration.prefill(NodeId("a"))).error is None
    c.drain(NodeId("b"), True, 0.0)
    for i in range(64):
        r = c.begin(decided(c, request(0, tokens=500 + 50 * i), i * 100.0), i * 100.0)
        r.first_token(i * 100.0 + 5.0 + i)
        r.finish(outcome(cached_tokens=0), i * 100.0 + 90.0)
    view = fit_view(c.calibration.prefill(NodeId("a")))
    (sample,) = next(iter(cost_families(c))).samples
    assert sample.labels == {"node": "a", "model": "prefill", "source": view.source}
    assert sample.value == view.error
    assert view.error is not None and view.profile_error is not None
    assert view.source == "fitted" and view.error < view.profile_error
