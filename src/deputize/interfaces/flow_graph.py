"""Draw a flow as text, Mermaid or SVG, with the state of each step if a run of it is shown.

The command line and the console draw with it. Colours of the SVG come from classes, because the console's pages allow
no style of their own: its stylesheet has them, and a document of its own carries them.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from deputize.core.contract.flow import Flow, FlowStep
from deputize.core.value_types import frozen

# By the name of a step, how far it is.
Statuses = Mapping[str, str]

_SIGNS: Final = {
    "succeeded": "✓", "failed": "✗", "running": "▶", "skipped": "↷", "discarded": "–", "compensated": "↶",
    "waiting": "·",
}  # fmt: skip
_COLOURS: Final = {
    "succeeded": "#d3f0d8", "failed": "#f9d0d0", "running": "#fdf0c4", "skipped": "#eeeeee", "discarded": "#eeeeee",
    "compensated": "#dde7f7",
}  # fmt: skip
# The same as in the console's stylesheet, for a document that stands alone.
_STYLE: Final = (
    ".flow{font:12px system-ui,sans-serif;text-anchor:middle}.flow text{fill:#57606a}"
    ".flow .name{font-weight:bold;fill:#1b1f24}"
    ".flow rect{fill:#fff;stroke:#8c959f}.flow line{stroke:#8c959f}"
    ".flow .succeeded rect{fill:#d3f0d8}.flow .failed rect{fill:#f9d0d0}.flow .running rect{fill:#fdf0c4}"
    ".flow .skipped rect,.flow .discarded rect{fill:#eee}.flow .compensated rect{fill:#dde7f7}"
    "@media(prefers-color-scheme:dark){.flow text{fill:#a3acb6}.flow .name{fill:#e6edf3}.flow rect{fill:#161b22}"
    ".flow .succeeded rect{fill:#17381f}.flow .failed rect{fill:#45201a}.flow .running rect{fill:#3a2f12}"
    ".flow .skipped rect,.flow .discarded rect{fill:#2a2f36}.flow .compensated rect{fill:#1d2b45}}"
)
_WIDTH: Final = 200
_HEIGHT: Final = 44
_GAP: Final = 28


def draw_text(flow: Flow, statuses: Statuses) -> list[str]:
    """Draw the steps as a tree: what stands below runs later, unless it is parallel."""
    return list(_draw_tree(flow.steps, statuses, ""))


def _draw_tree(steps: Sequence[FlowStep], statuses: Statuses, indent: str) -> Iterator[str]:
    for place, step in enumerate(steps):
        is_last = place == len(steps) - 1
        status = statuses.get(step.name)
        sign = "" if status is None else f"{_SIGNS.get(status, '?')} "
        yield f"{indent}{'└─' if is_last else '├─'} {sign}{step.name}: {_describe_step(step)}"
        inner = indent + ("   " if is_last else "│  ")
        yield from _draw_tree((*(step.parallel or ()), *(step.steps or ())), statuses, inner)
        if step.otherwise:
            yield f"{inner}otherwise"
            yield from _draw_tree(step.otherwise, statuses, inner)


def _describe_step(step: FlowStep) -> str:
    """Describe what a step does, in a few words."""
    if step.parallel is not None:
        quorum = "" if step.quorum is None else f" of {step.quorum:g}"
        text = f"parallel, {step.join or 'all'}{quorum}"
    else:
        text = step.tool or "steps"
    if step.map is not None:
        text += f" for each of {step.map.over}, up to {step.map.max_items}"
    if step.loop is not None:
        text += f" until {step.loop.until}, up to {step.loop.max_rounds} times"
    if step.fallback is not None:
        text += f", else {', '.join(each.tool for each in step.fallback)}"
    return text if step.when is None else f"{text} when {step.when}"


def draw_mermaid(flow: Flow, statuses: Statuses) -> list[str]:
    """Draw the graph in the language of Mermaid."""
    lines = ["flowchart TD", "  input([input])"]
    ends = _draw_nodes(flow.steps, ("input",), lines, statuses)
    lines.append("  output([output])")
    lines += [f"  {each} --> output" for each in ends]
    lines += [f"  classDef {status} fill:{colour}" for status, colour in _COLOURS.items() if statuses]
    return lines


def _draw_nodes(
    steps: Sequence[FlowStep], starts: Sequence[str], lines: list[str], statuses: Statuses
) -> tuple[str, ...]:
    """Add the nodes of steps in a row behind others; return those that the next ones follow."""
    for step in steps:
        text = f"{step.name}<br>{_describe_step(step)}".replace('"', "#quot;")
        status = statuses.get(step.name)
        node = f'{{"{text}"}}' if step.when is not None else f'["{text}"]'
        # A step may be named like another node, or like a keyword of the language.
        node_id = f"step_{step.name}"
        lines.append(f"  {node_id}{node}{'' if status is None else f':::{status}'}")
        lines += [f"  {each} --> {node_id}" for each in starts]
        ends: list[str] = []
        for branch in step.parallel or ():
            ends += _draw_nodes((branch,), (node_id,), lines, statuses)
        if step.steps:
            ends += _draw_nodes(step.steps, (node_id,), lines, statuses)
        if step.otherwise:
            ends += _draw_nodes(step.otherwise, (node_id,), lines, statuses)
        if not ends or (step.when is not None and not step.otherwise):
            ends.append(node_id)
        starts = tuple(dict.fromkeys(ends))
    return tuple(starts)


@frozen
class _Block:
    """A part of the drawing: its size and its shapes. Lines enter and leave it in the middle."""

    width: float
    height: float
    shapes: tuple[str, ...]


def draw_svg_document(flow: Flow, statuses: Statuses) -> str:
    """Draw the graph as an SVG document, which brings its own colours."""
    return draw_svg(flow, statuses, title="The steps of the flow", style=f"<style>{_STYLE}</style>")


def draw_svg(flow: Flow, statuses: Statuses, *, title: str, style: str = "") -> str:
    """Draw the graph as SVG: downwards in time, parallel and alternative steps beside each other."""
    block = _lay_out(flow.steps, statuses)
    width, height = block.width + 2 * _GAP, block.height + 2 * _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flow" role="img" width="{width:g}" height="{height:g}" '
        f'viewBox="{-_GAP} {-_GAP} {width:g} {height:g}"><title>{escape(title)}</title>{style}'
        f"{''.join(block.shapes)}</svg>"
    )


def _lay_out(steps: Sequence[FlowStep], statuses: Statuses) -> _Block:
    rows = [_lay_out_step(each, statuses) for each in steps]
    width, y = max((each.width for each in rows), default=_WIDTH), 0.0
    shapes: list[str] = []
    for place, row in enumerate(rows):
        if place:
            shapes.append(_draw_line(width / 2, y - _GAP, width / 2, y))
        shapes.append(_move((width - row.width) / 2, y, row.shapes))
        y += row.height + _GAP
    return _Block(width=width, height=max(y - _GAP, 0.0), shapes=tuple(shapes))


def _lay_out_step(step: FlowStep, statuses: Statuses) -> _Block:
    columns = [_lay_out((each,), statuses) for each in step.parallel or ()]
    columns += [_lay_out(each, statuses) for each in (step.steps, step.otherwise) if each]
    width = max(_WIDTH, sum(each.width + _GAP for each in columns) - _GAP)
    shapes = [_move((width - _WIDTH) / 2, 0, (_draw_box(step, statuses.get(step.name)),))]
    if not columns:
        return _Block(width=width, height=_HEIGHT, shapes=tuple(shapes))
    x, top, depth = 0.0, _HEIGHT + _GAP, max(each.height for each in columns)
    bottom = top + depth + _GAP
    for column in columns:
        middle = x + column.width / 2
        shapes.append(_draw_line(width / 2, _HEIGHT, middle, top))
        shapes.append(_move(x, top, column.shapes))
        shapes.append(_draw_line(middle, top + column.height, width / 2, bottom))
        x += column.width + _GAP
    return _Block(width=width, height=bottom, shapes=tuple(shapes))


def _draw_box(step: FlowStep, status: str | None) -> str:
    description = _describe_step(step)
    sign = "" if status is None else f"{_SIGNS.get(status, '?')} "
    state = "" if status is None else f", {status}"
    return (
        f'<g class="{escape(status or "")}"><title>{escape(f"{step.name}: {description}{state}")}</title>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text class="name" x="{_WIDTH // 2}" y="18">{escape(sign + step.name)}</text>'
        f'<text x="{_WIDTH // 2}" y="35">{escape(_shorten(description))}</text></g>'
    )


def _shorten(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:29]}…"


def _draw_line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _move(x: float, y: float, shapes: Sequence[str]) -> str:
    return f'<g transform="translate({x:g} {y:g})">{"".join(shapes)}</g>'
