"""What a reader has set on the charts of a page, and whether any was ever seen without content."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

_STATE = """() => Object.fromEntries([...document.querySelectorAll('.cd-plot')].map(e => {
  const axes = Object.keys(e._fullLayout).filter(n => /^[xy]axis[0-9]*$/.test(n));
  const key = [...e.closest('[class*="st-key-"]').classList].find(c => c.startsWith('st-key-'));
  return [key.slice(7), {
    same: e.cdSeen === true,
    zoom: Object.fromEntries(axes.filter(n => e._fullLayout[n].autorange === false)
      .map(n => [n, e._fullLayout[n].range.map(String)])),
    hidden: e._fullData.filter(t => t.visible === 'legendonly').map(t => t.name),
  }];
}))"""
_DRAWN = """e => e.querySelectorAll('.scatterlayer .trace, .barlayer .trace, .sankey-node,'
  + '.heatmaplayer .hm image, .iciclelayer .slice').length"""
_WATCH = f"""() => {{
  const drawn = {_DRAWN}, hosts = [...document.querySelectorAll('.cd-plot')].filter(drawn);
  const found = window.cdFrames = {{ frames: 0, blank: 0, draws: 0, on: true }};
  for (const e of hosts) {{
    e.cdSeen = true;
    e.on('plotly_afterplot', () => {{ found.draws += 1; }});
  }}
  const look = () => {{
    if (!found.on) return;
    found.frames += 1;
    const shown = e => e.isConnected && e.getBoundingClientRect().height > 40 && drawn(e) > 0;
    if (!hosts.every(shown)) found.blank += 1;
    requestAnimationFrame(look);
  }};
  requestAnimationFrame(look);
}}"""


def chart_states(page: Page) -> dict[str, dict[str, Any]]:
    """Of each chart by its key: zoomed axes with their ranges, hidden entries of the legend, and
    whether it is the element that was there when `watch_frames` began."""
    found: dict[str, dict[str, Any]] = page.evaluate(_STATE)
    return found


def watch_frames(page: Page) -> None:
    """From now on look at every frame whether each chart has its content."""
    page.evaluate(_WATCH)


def frames_seen(page: Page) -> tuple[int, int, int]:
    """(frames, blank ones, times a chart was drawn) since `watch_frames`."""
    found = page.evaluate("window.cdFrames")
    return found["frames"], found["blank"], found["draws"]


def stop_watching(page: Page) -> None:
    """Look at no further frame."""
    page.evaluate("() => { window.cdFrames.on = false; }")


def set_every_chart(page: Page) -> dict[str, dict[str, Any]]:
    """Zoom into each chart that has axes by dragging, and hide the second entry of each legend."""
    charts = page.locator(".cd-plot")
    for number in range(charts.count()):
        chart = charts.nth(number)
        chart.scroll_into_view_if_needed()
        entries = chart.locator(".legendtoggle")
        if entries.count() > 1:
            entries.nth(1).click()
            page.wait_for_timeout(450)
        plane = chart.locator(".nsewdrag")
        box = plane.first.bounding_box() if plane.count() else None
        if box is not None:
            page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.2)
            page.mouse.down()
            page.mouse.move(
                box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.7, steps=6
            )  # fmt: skip
            page.mouse.up()
            page.wait_for_timeout(450)
    return chart_states(page)
