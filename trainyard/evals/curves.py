"""Training loss curves as one small SVG: no script, no font, light and dark ground, with a text for screen readers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from trainyard.json_types import JsonMapping

CURVES_FILE = "curves.svg"
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 40
MOST_POINTS = 400
"""Points drawn of one curve; longer ones are thinned by taking every n-th."""
STYLES = ("#2563eb", "#d97706", "#059669", "#9333ea")
DASHES = ("", "6 4", "2 3", "8 3 2 3")
"""Colour is never the only difference between two curves."""

Point = tuple[float, float]


def loss_curves(training: Mapping[str, JsonMapping]) -> str:
    """Return the SVG text; `training` maps a name to facts with `losses: [[step, loss, learning rate], …]`."""
    curves = {name: points(facts.get("losses", ())) for name, facts in training.items()}
    curves = {name: curve for name, curve in curves.items() if curve}
    body = drawing(curves) if curves else f'<text x="{WIDTH // 2}" y="{HEIGHT // 2}">no losses were recorded</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-labelledby="title description">\n'
        '<title id="title">Training loss by step</title>\n'
        f'<desc id="description">{escape(describe(curves))}</desc>\n'
        "<style>text{font:12px sans-serif;fill:#374151}line,path{stroke-width:1}.axis{stroke:#6b7280}"
        "@media(prefers-color-scheme:dark){text{fill:#d1d5db}.axis{stroke:#9ca3af}}</style>\n"
        f"{body}\n</svg>\n"
    )


def points(losses: Sequence[Sequence[float]]) -> list[Point]:
    """(step, loss) pairs with finite losses, thinned to at most 400."""
    pairs = [(float(row[0]), float(row[1])) for row in losses if row[1] is not None and math.isfinite(row[1])]
    stride = math.ceil(len(pairs) / MOST_POINTS) or 1
    thinned = pairs[::stride]
    return [*thinned, pairs[-1]] if pairs and thinned[-1] != pairs[-1] else thinned


def describe(curves: Mapping[str, list[Point]]) -> str:
    """Return a description of the picture."""
    sentences = [
        f"{name}: from {curve[0][1]:.3f} to {curve[-1][1]:.3f} in {curve[-1][0]:.0f} steps"
        for name, curve in curves.items()
    ]
    return "; ".join(sentences) + "." if sentences else "No losses were recorded."


def drawing(curves: Mapping[str, list[Point]]) -> str:
    every = [point for curve in curves.values() for point in curve]
    last_step = max(step for step, _ in every) or 1.0
    low, high = min(loss for _, loss in every), max(loss for _, loss in every)
    span = (high - low) or 1.0

    def locate(point: Point) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * point[0] / last_step
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - point[1]) / span
        return f"{x:.1f},{y:.1f}"

    parts = [axes(last_step, low, high)]
    for index, (name, curve) in enumerate(curves.items()):
        colour, dash = STYLES[index % len(STYLES)], DASHES[index % len(DASHES)]
        line = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        x = LEFT + 130 * index
        parts.append(f'<polyline {line} points="{" ".join(map(locate, curve))}"/>')
        parts.append(f'<path {line} d="M{x} 14h24"/><text x="{x + 30}" y="18">{escape(name)}</text>')
    return "\n".join(parts)


def axes(last_step: float, low: float, high: float) -> str:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    return (
        f'<line class="axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{floor}"/>'
        f'<line class="axis" x1="{LEFT}" y1="{floor}" x2="{right}" y2="{floor}"/>'
        f'<text x="8" y="{TOP + 4}">{high:.2f}</text><text x="8" y="{floor}">{low:.2f}</text>'
        f'<text x="{LEFT}" y="{floor + 16}">0</text>'
        f'<text x="{right}" y="{floor + 16}" text-anchor="end">{last_step:.0f}</text>'
        f'<text x="{(LEFT + right) // 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>'
        f'<text x="8" y="{TOP - 14}">loss</text>'
    )
