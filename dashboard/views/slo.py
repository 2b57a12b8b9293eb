"""SLO: are the limits kept, for whom not, and do predictions come true."""

from __future__ import annotations

from functools import partial

import streamlit as st

from core import wire
from dashboard import session
from dashboard.api.client import ServiceError
from dashboard.nodes.acts import records
from dashboard.overview.models import Notice
from dashboard.parts import acting, times
from dashboard.parts import format as fmt
from dashboard.parts.components import heading, notice, tile_grid
from dashboard.parts.drawn import drawn
from dashboard.parts.kept import MEANWHILE_S, kept
from dashboard.parts.live_plot import Prepared, live_plot, prepared
from dashboard.parts.page import page, part
from dashboard.parts.shared import shared
from dashboard.parts.tables import select_table
from dashboard.parts.theme import Palette
from dashboard.slo import figures as slo_figures
from dashboard.slo import models as sm

READ_EVERY_S = 8.0


def main(_: wire.FleetState | None = None) -> None:
    """Tiles and charts over the shown window."""
    with part("The requests"):
        window = session.window()
        key = window.span or (window.start, window.end)
        calls = records()
        shares = kept(
            "owners", key, ttl_s=READ_EVERY_S, meanwhile_s=MEANWHILE_S,
            read=lambda: calls.shares(window, nodes=False),
        )  # fmt: skip
        objective, burn = _objective(), _burn()
        given = (shares, burn)
        drawn("tiles", objective, given=given, draw=lambda: _tiles(shares, objective, burn))
        if not shares.decisions:
            return
        timings = kept(
            "timings", key, ttl_s=READ_EVERY_S, meanwhile_s=MEANWHILE_S,
            read=lambda: calls.timings(window),
        )  # fmt: skip
        series = _series()

        def draw() -> None:
            _limits(timings, series, objective)
            _tenants(shares, objective)
            _calibration(timings)

        look = (session.colours(), session.zone())
        drawn("charts", objective, given=(shares, timings, series, *look), draw=draw)


def _tiles(shares: wire.Shares, objective: float, burn: dict[str, float] | None) -> None:
    tile_grid(sm.tiles(sm.total(shares), objective, burn))
    if not shares.decisions:
        notice(
            Notice(
                "none",
                "No request in this window",
                "Choose a longer range above, or send one to `/v1/chat/completions`.",
            )
        )


def _objective() -> float:
    try:
        read = acting.records().tunables
        items = kept("tunables", ttl_s=READ_EVERY_S, read=read, meanwhile_s=MEANWHILE_S).items
    except ServiceError:
        return sm.OBJECTIVE_DEFAULT
    return sm.objective_of(items)


def _burn() -> dict[str, float] | None:
    """Burn rates, which only a running service knows."""
    if session.feed().look().error:
        return None
    try:
        read = acting.control().guard
        return kept("guard", ttl_s=READ_EVERY_S, read=read, meanwhile_s=MEANWHILE_S).burn
    except ServiceError:
        return None


def _limits(timings: wire.TimingsView, series: wire.Series | None, objective: float) -> None:
    p = session.colours()
    left, right = st.columns(2, gap="medium")
    with left:
        heading("Margin to the limits", _covered(timings, timings.requests))
        figure = shared(
            "margins", given=(timings, p), make=lambda: prepared(slo_figures.margins(timings, p))
        )
        live_plot(figure, key="margins", alt="Observed over limit")
    with right:
        heading("Attainment over time", f"share that kept both limits, {session.zone_name()}")
        if series is None:
            st.caption("Reading the stored measurements …")
        else:
            zone = session.zone()
            figure = shared(
                "attainment", objective, given=(series, p, zone),
                make=lambda: prepared(slo_figures.attainment(series, objective, p, zone=zone)),
            )  # fmt: skip
            live_plot(figure, key="attainment", alt="Attainment over time")
    with st.expander("Numbers behind the margins"):
        select_table(
            sm.margin_rows(timings), key="margin_rows", alt="Margins by class", given=(timings,)
        )


def _series() -> wire.Series | None:
    window, look = session.window(), session.look()
    if window.in_memory and look.live is not None:
        return look.live
    if look.error and session.history_url():
        key = window.span or (window.start, window.end)
        return kept(
            "minutes", key, ttl_s=READ_EVERY_S,
            read=lambda: session.reader().minutes(window.start, window.end),
        )  # fmt: skip
    return session.feed().past(window)


def _tenants(shares: wire.Shares, objective: float) -> None:
    heading(
        "By tenant and model",
        f"worst first; {_covered(shares, shares.decisions)}",
    )
    number = st.column_config.NumberColumn(format="localized")
    columns = dict.fromkeys(("Requests", "Refused", "Failed"), number)
    select_table(
        sm.attainment_rows(shares, objective), key="tenants", alt="Attainment by tenant and model",
        percent=("Attainment", "TTFT met", "TBT met", "Reuse"), columns=columns,
        given=(shares,), choice=(objective,),
    )  # fmt: skip


def _calibration(timings: wire.TimingsView) -> None:
    p = session.colours()
    columns = st.columns(2, gap="medium")
    for column, name, c, colour, meaning in (
        (columns[0], "TTFT", timings.ttft, p.categories[0], times.TTFT),
        (columns[1], "TBT", timings.tbt, p.categories[1], times.TBT),
    ):
        with column:
            heading(f"{name}: predicted against observed", sm.calibration_words(c))
            if c.count:
                figure = shared(
                    "calibration", colour, given=(c, p),
                    make=partial(_calibration_figure, c, p, colour),
                )  # fmt: skip
                live_plot(
                    figure, key=f"calibration_{name}", alt=f"Predicted against observed {name}"
                )
                st.caption(meaning)
    with st.expander("Numbers behind the calibration"):
        rows = sm.calibration_rows(timings)
        if rows:
            names = ("Predicted from s", "to s", "Observed / predicted p10", "p50", "p90")
            columns_ = {n: st.column_config.NumberColumn(format="%.3g") for n in names}
            select_table(
                rows, key="calibration_rows", alt="Calibration", columns=columns_, given=(timings,)
            )
        else:
            st.caption("Too few requests have both a prediction and an observed time.")


def _calibration_figure(c: wire.Calibration, p: Palette, colour: str) -> Prepared:
    return prepared(slo_figures.calibration(c, p, colour))


def _covered(view: wire.Shares | wire.TimingsView, count: int) -> str:
    at = view.covered_from
    words = fmt.moment(at, session.zone())[:19] if at is not None else ""
    return sm.coverage(words, view.complete, count)


page(main, key="slo", history=main)
