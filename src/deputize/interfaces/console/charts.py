"""Draw charts as SVG on the server: numbers in, markup out. Each is an image with a text; a table stands beside it.

Colours come from classes of the stylesheet, because the pages' policy allows no style of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

_WIDTH: Final = 240
_HEIGHT: Final = 56
_GAP: Final = 1
_ROW_HEIGHT: Final = 26
_LABEL_WIDTH: Final = 150
_BAR_WIDTH: Final = 560
_MIN_BAR: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One bar of a waterfall, in milliseconds since the call began."""

    label: str
    start_ms: float
    end_ms: float
    tone: str = "plain"

    @property
    def duration(self) -> str:
        return format_milliseconds(self.end_ms - self.start_ms)


def format_milliseconds(milliseconds: float) -> str:
    """Format a duration for people."""
    if milliseconds < 1:
        return f"{milliseconds * 1000:.0f} µs"
    if milliseconds < 1000:
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def draw_bars(title: str, values: Sequence[float | None], tone: str) -> Markup:
    """Draw a small chart of bars, the oldest first. None is a gap."""
    highest = max((each for each in values if each is not None), default=0) or 1
    step = _WIDTH / max(len(values), 1)
    bars = []
    for index, value in enumerate(values):
        if not value:
            continue
        height = max(value / highest * (_HEIGHT - 4), _MIN_BAR)
        bars.append(
            f'<rect x="{index * step:.2f}" y="{_HEIGHT - height:.2f}" width="{max(step - _GAP, 1):.2f}" '
            f'height="{height:.2f}" rx="1"/>'
        )
    return Markup(
        f'<svg class="chart {escape(tone)}" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">'
        f"<title>{escape(title)}</title>"
        f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT - 0.5}" y2="{_HEIGHT - 0.5}"/>{"".join(bars)}</svg>'
    )


def draw_waterfall(spans: Sequence[Span]) -> Markup:
    """Draw the phases of a call below each other, each where it began."""
    total = max((each.end_ms for each in spans), default=0) or 1
    height = len(spans) * _ROW_HEIGHT
    rows = []
    for index, each in enumerate(spans):
        x = _LABEL_WIDTH + each.start_ms / total * _BAR_WIDTH
        width = max((each.end_ms - each.start_ms) / total * _BAR_WIDTH, _MIN_BAR)
        middle = index * _ROW_HEIGHT + _ROW_HEIGHT / 2
        is_left = x + width > _LABEL_WIDTH + _BAR_WIDTH - 80
        anchor = (
            f'x="{x - 6:.1f}" text-anchor="end"' if is_left and x > _LABEL_WIDTH + 80 else f'x="{x + width + 6:.1f}"'
        )
        if is_left and x <= _LABEL_WIDTH + 80:
            anchor = f'x="{x + width - 6:.1f}" text-anchor="end" class="on-bar"'
        rows.append(
            f'<text x="0" y="{middle + 4}">{escape(each.label)}</text>'
            f'<rect class="{escape(each.tone)}" x="{x:.1f}" y="{middle - 7}" width="{width:.1f}" height="14" rx="2"/>'
            f'<text {anchor} y="{middle + 4}">{escape(each.duration)}</text>'
        )
    width = _LABEL_WIDTH + _BAR_WIDTH
    return Markup(
        f'<svg class="waterfall" role="img" viewBox="0 0 {width} {height}"><title>The phases of the call</title>'
        f'<line x1="{_LABEL_WIDTH}" x2="{_LABEL_WIDTH}" y1="0" y2="{height}"/>{"".join(rows)}</svg>'
    )
