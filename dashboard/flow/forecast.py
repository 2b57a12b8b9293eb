"""What is expected shortly, beside how wrong such forecasts were. Pure."""

from __future__ import annotations

from core import wire
from dashboard.parts import format as fmt

QUANTITY_WORDS = {"arrivals": "requests /s", "prefill_tokens": "prompt tokens /s"}
ALL_MODELS = "(all)"


def forecast_words(found: wire.ForecastView) -> str:
    """Whether it is used, and what it says, in one sentence."""
    if not found.enabled:
        return "The forecast is switched off (forecast.enabled)."
    if not found.series:
        return "Nothing came yet that could be continued."
    if not found.in_use:
        return (
            "Not used now: so far the present predicted the near future better. Early rejection "
            "and migration go by what there is."
        )
    return (
        f"In use: prefill work in {fmt.seconds(found.horizon_s)} is expected at {found.growth:.2f} "
        "times that of now; early rejection and migration count with it."
    )


def forecast_rows(found: wire.ForecastView) -> list[dict[str, object]]:
    """A row a series: now, expected, its mean error and that of expecting what there is."""
    return [
        {
            "Model": s.model or ALL_MODELS,
            "Class": s.tenant_class or fmt.NONE,
            "What": QUANTITY_WORDS[s.quantity],
            "Now": s.now_per_s,
            "Expected": s.expected_per_s,
            "Error": s.error_per_s,
            "Error of persistence": s.persistence_error_per_s,
            "Better": _verdict(s),
        }
        for s in found.series
    ]


def _verdict(s: wire.ForecastSeries) -> str:
    if not s.compared:
        return "not compared yet"
    return "forecast" if s.beats_persistence else "persistence"
