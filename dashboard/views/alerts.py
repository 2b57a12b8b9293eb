"""Alerts: what fires now, by which rule, since when, and where the evidence is."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.alerts import models as am
from dashboard.api.client import ServiceError
from dashboard.live import live
from dashboard.navigation import VIEWS
from dashboard.overview.models import Notice, problems
from dashboard.parts import acting
from dashboard.parts.components import heading, notice, problem_list, tile_grid
from dashboard.parts.drawn import drawn
from dashboard.parts.kept import kept
from dashboard.parts.live_plot import live_plot
from dashboard.parts.page import act, failure_notice, page, part
from dashboard.parts.tables import plain_table
from dashboard.parts.theme import Level

READ_EVERY_S = 1.0


def main(_state: wire.FleetState) -> None:
    """A live part with what fires, and the rules below it."""
    acting.looking_only()
    acting.told()
    live(_live, key="alerts_live")


def _live() -> None:
    calls = acting.control()
    try:
        found = kept("alerts", ttl_s=READ_EVERY_S, read=calls.alerts)
        monitors = kept("monitors", ttl_s=READ_EVERY_S, read=calls.monitors)
    except ServiceError as e:
        notice(failure_notice("The alerts", e))
        return
    units = {m.name: m.unit for m in monitors.monitors}
    shown = [a for a in found.alerts if a.state in ("firing", "pending")]
    drawn("tiles", given=(found,), draw=lambda: _tiles(found, len(shown)))
    for alert in shown:
        _alert(alert, units)
    state = session.look().state
    given = (found, monitors, state, session.zone())
    drawn("rules", given=given, draw=lambda: _rules(found, units, state))


def _tiles(found: wire.AlertList, shown: int) -> None:
    tile_grid(am.alert_tiles(found.alerts, found.webhook))
    if not shown:
        notice(Notice("ok", "Nothing fires", "Every rule below is quiet."))


def _rules(found: wire.AlertList, units: dict[str, str], state: wire.FleetState | None) -> None:
    if state is not None:
        heading("Known problems", "sentences of the service, worst first")
        problem_list(problems(state))
    heading("Rules", f"limits are live parameters, group alerts; times in {session.zone_name()}")
    rows = am.alert_rows(found.alerts, units, session.zone())
    plain_table(rows, key="alert_rows", alt="Every alert rule and how it stands")


def _alert(alert: wire.AlertView, units: dict[str, str]) -> None:
    unit, series = units.get(alert.monitor, ""), None
    with part("The monitor"):
        series = kept(
            "monitor", alert.monitor, ttl_s=READ_EVERY_S,
            read=lambda: acting.control().monitor_series(alert.monitor),
        )  # fmt: skip
    given = (alert, series, session.colours(), session.zone())
    drawn("alert", alert.name, unit, given=given, draw=lambda: _evidence(alert, series, units))
    script, name, params = am.evidence_page(alert)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if (VIEWS.parent / script).exists():
            st.page_link(script, label=f"Evidence: {name}", query_params=params)
        if alert.acknowledged is None and act("I know of it …", key=f"ack-{alert.name}"):
            _acknowledge(alert)


def _evidence(
    alert: wire.AlertView, series: wire.MonitorSeries | None, units: dict[str, str]
) -> None:
    level: Level = "bad" if alert.state == "firing" and alert.severity == "page" else "warn"
    title = f"{alert.name}: {alert.summary}"
    notice(Notice(level, title, am.alert_text(alert, units, session.now())))
    if series is not None and any(point.values[0] is not None for point in series.points):
        p, zone, unit = session.colours(), session.zone(), units.get(alert.monitor, "")
        figure = am.monitor_figure(series, alert, unit, p, zone=zone)
        live_plot(figure, key=f"alert-{alert.name}", alt=f"Monitor of {alert.name}")


@st.dialog("Acknowledge", width="medium")
def _acknowledge(alert: wire.AlertView) -> None:
    """Say that somebody knows, and what is being done."""
    st.write(f"{alert.name}: {alert.summary}. It ends with the alert.")
    form = acting.Form()
    note = form.reason("ack_note")
    if form.go("Acknowledge", key="ack_do"):
        asked = wire.AlertNote(note=note, author=acting.author())
        acting.carry_out(
            lambda: acting.control().acknowledge(alert.name, asked), f"{alert.name}: noted"
        )


page(main, key="alerts", empty=None, live=False)
