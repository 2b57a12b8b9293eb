"""Colours, the page's style sheet, and the layout all charts share. Pure.

Categories use the Okabe-Ito colours, which people with any colour vision tell apart; heat is one
hue whose brightness moves away from the page's as the value grows. A state is never shown by
colour alone: a word and a sign go with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "warn", "bad", "none"]
Figure = dict[str, Any]

SIGN: dict[Level, str] = {"ok": "✓", "warn": "▲", "bad": "✕", "none": "○"}


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of one theme."""

    name: str
    page: str
    panel: str
    text: str
    muted: str
    line: str
    ok: str
    warn: str
    bad: str
    accent: str
    heat: tuple[str, ...]
    """From nothing to the most; brightness alone orders it."""
    categories: tuple[str, ...]

    def level(self, level: Level) -> str:
        """Text colour of a level."""
        return {"ok": self.ok, "warn": self.warn, "bad": self.bad, "none": self.muted}[level]


LIGHT = Palette(
    name="light", page="#ffffff", panel="#f4f6f8", text="#17212b", muted="#55626f", line="#d8dee5",
    ok="#00664a", warn="#8a5300", bad="#a8200d", accent="#0b62a8",
    heat=("#edf2f7", "#a9cbe8", "#4b92cc", "#12558f", "#0a2440"),
    categories=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a7a00"),
)  # fmt: skip
DARK = Palette(
    name="dark", page="#10161d", panel="#18212b", text="#e6ebf0", muted="#9fabb7", line="#2d3946",
    ok="#45cf9f", warn="#f2b84b", bad="#ff8a70", accent="#6cb8f2",
    heat=("#17222d", "#1f4a72", "#2f80bd", "#7fc0ea", "#fdf6c8"),
    categories=("#56b4e9", "#e69f00", "#2fc79a", "#cc79a7", "#f0e442", "#6aa5ff", "#d55e00"),
)  # fmt: skip


def palette(kind: str | None) -> Palette:
    """The palette of a theme type; light when the browser has not said."""
    return DARK if kind == "dark" else LIGHT


def layout(p: Palette, *, height: int, **more: Any) -> Figure:
    """The layout every chart starts from; `more` replaces or adds top-level entries."""
    axis = {
        "gridcolor": p.line,
        "linecolor": p.line,
        "zerolinecolor": p.line,
        "tickfont": {"color": p.muted, "size": 12},
        "title": {"font": {"color": p.muted, "size": 12}},
        "automargin": True,
    }
    base: Figure = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "Source Sans, sans-serif", "size": 13, "color": p.text},
        "colorway": list(p.categories),
        "uirevision": "keep",
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": p.panel,
            "bordercolor": p.line,
            "font": {"color": p.text, "size": 12},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": p.muted, "activecolor": p.accent},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"size": 12, "color": p.text},
            "traceorder": "normal",
        },
        "xaxis": {**axis, "tickangle": 0},
        "yaxis": axis,
    }
    for name, value in more.items():
        both = isinstance(value, dict) and isinstance(base.get(name), dict)
        base[name] = {**base[name], **value} if both else value
    return base


def room(*, left: int = 49, right: int = 20, above: int = 48, below: int = 50) -> dict[str, int]:
    """The margins (px) that labels and legend of a chart over time will need.

    Smaller ones grow by themselves: the library draws everything, finds that it does not fit, and
    draws everything once more.
    """
    return {"l": left, "r": right, "t": above, "b": below}


def axis_title(p: Palette, text: str) -> Figure:
    """Title of an axis, for `layout`."""
    return {"text": text, "font": {"color": p.muted, "size": 12}}


def style_sheet(p: Palette) -> str:
    """The style of our own markup, as a `<style>` element."""
    return f"""<style>
[data-testid="stMainBlockContainer"] {{ padding-left:2rem; padding-right:2rem; }}
[data-testid="stBaseButton-primary"]:not(:disabled) p,
[data-testid="stMultiSelect"] span[title] {{ color:{p.page}; }}
[data-testid="stCaptionContainer"] {{ opacity:1; }}
[data-testid="stCaptionContainer"] :is(p, li, code) {{ color:{p.muted}; opacity:1; }}
.cd-strip {{ display:flex; flex-wrap:wrap; gap:.35rem .5rem; align-items:center; }}
.cd-strip .cd-where {{ font-size:1.1rem; font-weight:620; line-height:1.35; margin:0 .3rem 0 0;
  padding:0; color:{p.text}; white-space:nowrap; }}
.cd-badge {{ display:inline-flex; gap:.35rem; align-items:center; padding:.12rem .55rem;
  border:1px solid {p.line}; border-radius:999px; background:{p.panel}; color:{p.text};
  font-size:.82rem; line-height:1.35; white-space:nowrap; }}
.cd-badge b {{ font-weight:600; }}
.cd-badge a {{ color:{p.accent}; }}
.cd-badge i, .cd-sub, .cd-quiet {{ color:{p.muted}; font-style:normal; }}
.cd-tiles {{ display:grid; gap:.6rem; grid-template-columns:repeat(auto-fit, minmax(172px, 1fr)); }}
@media (max-width:1150px) {{ .cd-tiles {{ grid-template-columns:repeat(3, minmax(0, 1fr)); }} }}
.cd-tile {{ border:1px solid {p.line}; border-radius:8px; background:{p.panel};
  padding:.6rem .8rem .65rem; min-width:0; border-top-width:3px; }}
.cd-tile .cd-name {{ color:{p.muted}; font-size:.82rem; }}
.cd-tile .cd-value {{ font-size:1.55rem; font-weight:620; line-height:1.25; color:{p.text};
  font-variant-numeric:tabular-nums; white-space:nowrap; }}
.cd-tile .cd-sub {{ font-size:.8rem; line-height:1.35; font-variant-numeric:tabular-nums; }}
.cd-word {{ font-size:.82rem; font-weight:600; }}
.cd-ok {{ color:{p.ok}; }} .cd-warn {{ color:{p.warn}; }} .cd-bad {{ color:{p.bad}; }}
.cd-none {{ color:{p.muted}; }}
.cd-tile.cd-t-ok {{ border-top-color:{p.ok}; }}
.cd-tile.cd-t-warn {{ border-top-color:{p.warn}; }}
.cd-tile.cd-t-bad {{ border-top-color:{p.bad}; }}
.cd-tile.cd-t-none {{ border-top-color:{p.line}; }}
.cd-note {{ border:1px solid {p.line}; border-left-width:4px; border-radius:6px;
  background:{p.panel}; padding:.55rem .85rem; color:{p.text}; }}
.cd-note.cd-n-bad {{ border-left-color:{p.bad}; }}
.cd-note.cd-n-warn {{ border-left-color:{p.warn}; }}
.cd-note.cd-n-ok {{ border-left-color:{p.ok}; }}
.cd-note.cd-n-none {{ border-left-color:{p.accent}; }}
.cd-note p {{ margin:.15rem 0 0; }}
.cd-note code {{ background:{p.page}; color:{p.text}; font-size:.9em;
  padding:0 .25rem; border-radius:3px; }}
.cd-list {{ display:grid; gap:.35rem; }}
.cd-list div {{ display:flex; gap:.5rem; line-height:1.35; color:{p.text}; font-size:.92rem; }}
.cd-h {{ font-size:1rem; font-weight:620; color:{p.text}; margin:.35rem 0 0; }}
.cd-h span {{ color:{p.muted}; font-weight:400; font-size:.85rem; margin-left:.4rem; }}
.cd-legend {{ display:flex; flex-wrap:wrap; gap:.3rem .9rem; font-size:.82rem; color:{p.text}; }}
.cd-legend span {{ display:inline-flex; align-items:center; gap:.35rem; }}
.cd-legend i {{ width:.95rem; height:.95rem; border-radius:3px; border:1px solid {p.line}; }}
.cd-bar {{ display:grid; gap:.25rem; }}
.cd-track {{ height:.5rem; border-radius:999px; background:{p.line}; overflow:hidden; }}
.cd-fill {{ height:100%; background:{p.accent}; }}
.cd-fill.cd-f-ok {{ background:{p.ok}; }} .cd-fill.cd-f-warn {{ background:{p.warn}; }}
.cd-fill.cd-f-bad {{ background:{p.bad}; }}
.cd-brand {{ font-weight:700; font-size:1.02rem; color:{p.text}; letter-spacing:.01em; }}
</style>"""
