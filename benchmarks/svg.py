"""Draws measured points as a picture (SVG): panels below each other, with time from left to right."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 110, 60, 48, 46
"""The size of a panel, and the space left of it, above the first one, and between two, in pixels."""

INK, LINE, GRID = "#666666", "#2a78c6", "#bbbbbb"
"""Colours that can be seen on light and on dark pages."""


@dataclass(frozen=True)
class Panel:
    """One line of measured values."""

    title: str
    seconds: Sequence[float]
    values: Sequence[float]
    """NaN where nothing was measured."""


def panels_as_svg(title: str, panels: Sequence[Panel]) -> str:
    """Return the picture of some panels, whose axes begin at zero."""
    height = TOP + len(panels) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" '
        f'font-family="sans-serif" font-size="13" fill="{INK}" role="img" aria-label="{escape(title)}">',
        f'<text x="{LEFT}" y="18" font-size="15">{escape(title)}</text>',
    ]
    last = max(panel.seconds[-1] for panel in panels)
    for number, panel in enumerate(panels):
        parts += _panel(panel, TOP + number * (HEIGHT + GAP), last)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, top: float, last: float) -> list[str]:
    highest = nice_limit(max((value for value in panel.values if not math.isnan(value)), default=1.0))
    bottom = top + HEIGHT
    points = " ".join(
        f"{LEFT + WIDTH * second / last:.1f},{bottom - HEIGHT * value / highest:.1f}"
        for second, value in zip(panel.seconds, panel.values, strict=True)
        if not math.isnan(value)
    )
    found = [f'<text x="{LEFT}" y="{top - 6}">{escape(panel.title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - HEIGHT * share
        found.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="{GRID}" stroke-width="0.5"/>'
        )
        found.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{highest * share:g}</text>')
    for minute in range(int(last // 60) + 1):
        x = LEFT + WIDTH * 60 * minute / last
        found.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{minute} min</text>')
    found.append(f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="1.8"/>')
    return found


def nice_limit(value: float) -> float:
    """Return the least of 1, 2, 4, 5, 10, 20, ... that is not below a value."""
    scale = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(scale * step for step in (1, 2, 4, 5, 10) if scale * step >= value)
