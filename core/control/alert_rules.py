"""What is watched (S3 5.1, and the service itself) and when it is worth an alert. Pure.

A monitor is a number that is sampled every few seconds; a rule compares one monitor with one
tunable under ``alerts``. Pages wake somebody because users suffer, or because somebody changed the
audit; tickets say why users may suffer soon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["page", "ticket"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """A watched number; what it is in words, and its unit ("" for ratios and shares)."""

    name: str
    unit: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Fires once `monitor` has been above (or below) the tunable `limit` for `for_s` seconds.

    With `also`, that monitor has to be above `also_limit` all that time, too; while it has no
    value there is nothing to judge by.
    """

    name: str
    monitor: str
    limit: str
    """Field of `core.tunables.Alerts`."""
    severity: Severity
    for_s: float
    summary: str
    below: bool = False
    also: str = ""
    also_limit: str = ""

    def broken(self, value: float, limit: float) -> bool:
        """Whether the value is on the wrong side."""
        return value < limit if self.below else value > limit


MONITORS: tuple[Monitor, ...] = (
    Monitor(
        name="product_cv", unit="",
        doc="spread of P-token x BS over prefill nodes: standard deviation over mean (S3 5.1)",
    ),
    Monitor(name="product_max", unit="", doc="largest P-token x BS product over the mean"),
    Monitor(name="hit_achieved", unit="share", doc="prompt tokens matched on the chosen nodes"),
    Monitor(name="hit_reachable", unit="share", doc="best match anywhere, of prompt tokens"),
    Monitor(name="hit_ratio", unit="", doc="achieved over reachable hit, where much is reachable"),
    Monitor(name="hit_spread", unit="share", doc="highest less lowest hit share of busy nodes"),
    Monitor(name="group_share", unit="share", doc="of matched tokens, the best prefix group's"),
    Monitor(name="firings", unit="1/min", doc="stage-2 firings of the hotspot detector"),
    Monitor(name="hot_groups", unit="groups", doc="prefix groups alerted or filtered now"),
    Monitor(name="decision_p99", unit="s", doc="time of a scheduling decision, of the last minute"),
    Monitor(
        name="decision_felt", unit="share",
        doc="p99 of a decision's time, of five minutes, over the 0.1 s that seem instantaneous",
    ),
    Monitor(name="burn_fast", unit="", doc="burn rate that 1 h and 5 min agree on"),
    Monitor(name="burn_slow", unit="", doc="burn rate that 6 h and 30 min agree on"),
    Monitor(name="burn_long", unit="", doc="burn rate that 3 d and 6 h agree on"),
    Monitor(name="panic", unit="", doc="1 while too few nodes are left and breakers are ignored"),
    Monitor(name="nodes_dead", unit="nodes", doc="that do not answer and are not cordoned"),
    Monitor(name="signal_lost", unit="s", doc="longest that a live node was not believed"),
    Monitor(name="spool", unit="share", doc="of the record spool that is full"),
    Monitor(name="records_dropped", unit="records", doc="records given up in the last 5 min"),
    Monitor(name="audit_broken", unit="", doc="1 while an audit entry is not as it was written"),
    Monitor(name="loop_lag", unit="s", doc="worst event loop lag of the last minute"),
)  # fmt: skip

RULES: tuple[Rule, ...] = (
    Rule(
        name="slo_burn_fast", monitor="burn_fast", limit="burn_fast", severity="page", for_s=0.0,
        summary="2 % of a month's error budget goes in an hour",
    ),
    Rule(
        name="slo_burn_slow", monitor="burn_slow", limit="burn_slow", severity="page", for_s=0.0,
        summary="5 % of a month's error budget goes in six hours",
    ),
    Rule(
        name="slo_burn_long", monitor="burn_long", limit="burn_long", severity="ticket", for_s=0.0,
        summary="the error budget will not last the month",
    ),
    Rule(
        name="audit_broken", monitor="audit_broken", limit="audit_broken", severity="page",
        for_s=0.0, summary="an entry of the administrative audit was changed or taken out",
    ),
    Rule(
        name="panic", monitor="panic", limit="panic", severity="ticket", for_s=0.0,
        summary="too few nodes are available: breakers are being ignored",
    ),
    Rule(
        name="nodes_dead", monitor="nodes_dead", limit="nodes_dead", severity="ticket", for_s=30.0,
        summary="a node does not answer, and nobody took it out of service",
    ),
    Rule(
        name="cache_signal_lost", monitor="signal_lost", limit="signal_lost_s",
        severity="ticket", for_s=0.0,
        summary="a node's cache signal has not been believed for minutes",
    ),
    Rule(
        name="spool_filling", monitor="spool", limit="spool_share", severity="ticket", for_s=0.0,
        summary="records wait on disk for the database, and room runs out",
    ),
    Rule(
        name="records_dropped", monitor="records_dropped", limit="records_dropped",
        severity="ticket", for_s=0.0, summary="records were given up",
    ),
    Rule(
        name="loop_lag", monitor="loop_lag", limit="loop_lag_s", severity="ticket", for_s=60.0,
        summary="the event loop runs late: decisions and streams wait",
    ),
    Rule(
        name="decisions_slow", monitor="decision_p99", limit="decision_s", severity="ticket",
        for_s=300.0, also="decision_felt", also_limit="decision_share",
        summary="scheduling decisions take longer than their limit, and so long that users feel it",
    ),
    Rule(
        name="load_uneven", monitor="product_cv", limit="product_cv", severity="ticket",
        for_s=120.0, summary="P-token x BS is spread unevenly over the nodes",
    ),
    Rule(
        name="hit_uneven", monitor="hit_spread", limit="hit_spread", severity="ticket",
        for_s=300.0, summary="some nodes reuse their caches and others do not",
    ),
    Rule(
        name="hit_missed", monitor="hit_ratio", limit="hit_ratio_min", severity="ticket",
        for_s=300.0, below=True, summary="much of what the caches could give is not used",
    ),
    Rule(
        name="hotspots", monitor="firings", limit="firings_per_min", severity="ticket", for_s=0.0,
        summary="the hotspot detector fires again and again",
    ),
)  # fmt: skip
