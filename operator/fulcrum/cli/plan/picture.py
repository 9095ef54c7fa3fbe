"""A plan as a picture: prefill pools left, decode pools right, and between them KV as wide as it flows."""

from __future__ import annotations

from html import escape

from fulcrum.api.names import Role
from fulcrum.placement.plan import PlacedPool, PlacementPlan

_WIDTH = 760
_BOX = 210
_HEIGHT = 56
_GAP = 24
_TOP = 64
_LEFT = 20
_THICKEST = 36.0
_COLOURS = {Role.PREFILL: "#2b6cb0", Role.DECODE: "#2f855a", Role.MIXED: "#805ad5"}


def svg(plan: PlacementPlan, *, title: str) -> str:
    """Return an SVG document."""
    places: dict[str, tuple[float, float]] = {}
    body: list[str] = []
    for column, roles in enumerate(((Role.PREFILL, Role.MIXED), (Role.DECODE,))):
        left = float(_LEFT if column == 0 else _WIDTH - _LEFT - _BOX)
        for row, pool in enumerate(pool for role in roles for pool in plan.pools if pool.role is role):
            top = float(_TOP + row * (_HEIGHT + _GAP))
            places[pool.name] = (left, top)
            body.append(_box(pool, left, top))
    most = max((route.rate for route in plan.routes), default=1.0)
    ribbons = []
    for route in plan.routes:
        (left, top), (right, bottom) = places[route.source], places[route.target]
        start, end = (left + _BOX, top + _HEIGHT / 2), (right, bottom + _HEIGHT / 2)
        bend = (start[0] + end[0]) / 2
        ribbons.append(
            f'<path d="M{start[0]} {start[1]} C{bend} {start[1]} {bend} {end[1]} {end[0]} {end[1]}" fill="none" '
            f'stroke="#a0aec0" stroke-opacity="0.6" stroke-width="{max(1.0, _THICKEST * route.rate / most):.1f}">'
            f"<title>{escape(route.source)} to {escape(route.target)}: {route.rate:.2f} requests/s</title></path>"
            f'<text x="{start[0] + 8}" y="{start[1] + (end[1] - start[1]) * 0.08 + 4:.0f}" font-size="11">'
            f"{route.rate:.1f}/s</text>"
        )
    height = max((top for _, top in places.values()), default=_TOP) + _HEIGHT + 48
    summary = f"{plan.goodput:.1f} requests/s expected, {plan.gpus_used} of {plan.gpus} GPUs"
    foot = f"Bottleneck: {', '.join(plan.bottlenecks)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="26" font-size="16" font-weight="bold">{escape(title)}</text>'
        f'<text x="{_LEFT}" y="46" font-size="12">{escape(summary)}</text>'
        f"{''.join(ribbons)}{''.join(body)}"
        f'<text x="{_LEFT}" y="{height - 16:.0f}" font-size="12">{escape(foot)}</text></svg>\n'
    )


def _box(pool: PlacedPool, left: float, top: float) -> str:
    text = f"{pool.workers} x {pool.option.gpus} GPUs, {pool.utilisation:.0%} used"
    return (
        f'<rect x="{left}" y="{top}" width="{_BOX}" height="{_HEIGHT}" rx="6" fill="{_COLOURS[pool.role]}"/>'
        f'<text x="{left + 12}" y="{top + 23}" font-size="14" fill="white">{escape(pool.name)}</text>'
        f'<text x="{left + 12}" y="{top + 42}" font-size="12" fill="white">{escape(text)}</text>'
    )
