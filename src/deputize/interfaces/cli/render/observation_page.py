"""Render what was observed as one page that loads nothing: tables and charts as inline SVG.

Names, arguments and reasons come from agents and servers, so every text is escaped, and the page allows no scripts.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.observation import (
    INCOMPLETE,
    describe_key_need,
    describe_period,
    format_time,
    list_shadow_cells,
    list_unusual_cells,
    list_use_cells,
    show,
    summarize_shadow,
)

_MAX_ROWS: Final = 500
_MAX_CELL: Final = 400
_MAX_POLICY: Final = 200_000
_WIDTH: Final = 640
_BAR_HEIGHT: Final = 22
_LABEL_WIDTH: Final = 200
_COLUMN_HEIGHT: Final = 120
# One day is a column, not a wall.
_MAX_COLUMN_WIDTH: Final = 64
_HEAD: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><title>What was observed</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin: .5rem 0 2rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dee4; overflow-wrap: anywhere; }
th { background: #f6f8fa; } h2 { margin: 2rem 0 .3rem; font-size: 1.15rem; } svg text { font: 12px system-ui; }
rect { fill: #3b6fb6; } figure { margin: 1rem 0; display: inline-block; vertical-align: top; margin-right: 2rem; }
figcaption { font-weight: 600; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  body { background: #0f1419; color: #dde3ea; } th { background: #1b222b; } th, td { border-color: #2c3540; }
  svg text { fill: #dde3ea; } rect { fill: #6ea0e6; } }
</style></head><body>
"""


def render_page(observation: Mapping[str, Any]) -> str:
    """Render the report as a whole HTML document."""
    report = observation["observed"]
    parts = [_HEAD, f"<h1>What was observed</h1>\n<p>{_text(describe_period(report))}</p>\n"]
    if not report["is_complete"]:
        parts.append(f"<p><strong>{_text(INCOMPLETE)}</strong></p>\n")
    parts += _render_charts(report)
    use_columns = ("caller", "system", "tool", "effects", "calls", "failed", "refused")
    uses = report["uses"][:_MAX_ROWS]
    rest = report["calls"] - sum(each["calls"] for each in uses)
    rest_text = f"And {rest:,} calls of others." if rest > 0 else ""
    parts.append(_render_table("Who called what", use_columns, [list_use_cells(each) for each in uses], rest_text))
    for name, key in (("the default policies", "default"), ("the draft", "draft"), ("the written policy", "written")):
        result = observation[key]
        if result is not None:
            rows = [list_shadow_cells(each) for each in result["changes"]]
            title = f"Under {name}: {summarize_shadow(result)}"
            rest_text = _count_rest(len(rows), len(rows))
            parts.append(_render_table(title, ("calls", "tool", "caller", "decision", "by"), rows, rest_text))
    if need := describe_key_need(report):
        parts.append(f"<p>{_text(need)}.</p>\n")
    columns = ("time", "caller", "tool", "what", "why", "call")
    rows = [list_unusual_cells(each) for each in report["unusual"]]
    parts.append(_render_table("Unusual calls", columns, rows, _count_rest(len(rows), report["unusual_count"])))
    secrets = [
        (show(each["actor"]), show(each["tool"]), show(each["argument"]), str(each["calls"]))
        for each in report["secrets"]
    ]
    # The report has no more than these, the most frequent.
    rest_text = f"Only the {_MAX_ROWS} most frequent." if len(secrets) >= _MAX_ROWS else ""
    parts.append(_render_table("Secrets in arguments", ("caller", "tool", "argument", "calls"), secrets, rest_text))
    parts.append(f"<h2>A first policy</h2>\n{_render_policy(report['policy']['text'])}</body></html>\n")
    return "".join(parts)


def _render_policy(text: str) -> str:
    """Render the policy as it would be written, apart from characters that no one sees."""
    lines = text[:_MAX_POLICY].split("\n")
    # Only between backslashes: a rule has them for itself, and doubled it would be another rule.
    visible_lines = ("\\".join(to_display_text(part, _MAX_POLICY) for part in line.split("\\")) for line in lines)
    rest = len(text) - _MAX_POLICY
    rest_text = f"<p>And {rest:,} more characters: --write-policy writes all.</p>\n" if rest > 0 else ""
    return f"<pre>{escape(chr(10).join(visible_lines))}</pre>\n{rest_text}"


def _count_rest(listed_count: int, count: int) -> str:
    rest = count - min(listed_count, _MAX_ROWS)
    return f"And {rest:,} more." if rest > 0 else ""


def _render_charts(report: Mapping[str, Any]) -> list[str]:
    by_system: dict[str, int] = {}
    for each in report["uses"]:
        by_system[each["system"]] = by_system.get(each["system"], 0) + each["calls"]
    by_system.pop("", None)
    systems = sorted(by_system.items(), key=lambda pair: -pair[1])[:20]
    days = [(format_time(each["day_ms"])[5:10], each["calls"]) for each in report["days"]]
    return [
        _render_columns("Calls by day", days[-31:]),
        _render_columns("Calls by hour, UTC", [(str(hour), count) for hour, count in enumerate(report["hours"])]),
        _render_bars("Calls by system", systems),
        _render_bars("Unusual, by kind", list(report["unusual_by_kind"].items())[:30]),
    ]


def _render_columns(title: str, counts: Sequence[tuple[str, int]]) -> str:
    """Render counts in their order as columns."""
    if not counts:
        return ""
    highest, step = max(max(count for _, count in counts), 1), min(_WIDTH / len(counts), _MAX_COLUMN_WIDTH)
    columns = []
    for number, (label, count) in enumerate(counts):
        height = _COLUMN_HEIGHT * count / highest
        left, middle = number * step, (number + 0.5) * step
        columns.append(
            f'<rect x="{left + 1:.1f}" y="{_COLUMN_HEIGHT - height:.1f}" width="{max(step - 2, 1):.1f}" '
            f'height="{height:.1f}"><title>{_text(label)}: {count}</title></rect>'
            f'<text x="{middle:.1f}" y="{_COLUMN_HEIGHT + 14}" text-anchor="middle">{_text(label)}</text>'
        )
    return _render_figure(title, _COLUMN_HEIGHT + 20, "".join(columns))


def _render_bars(title: str, counts: Sequence[tuple[str, int]]) -> str:
    """Render counts with their names as bars."""
    if not counts:
        return ""
    highest, room = max(max(count for _, count in counts), 1), _WIDTH - _LABEL_WIDTH - 60
    bars = []
    for number, (label, count) in enumerate(counts):
        top, width = number * _BAR_HEIGHT, room * count / highest
        bars.append(
            f'<text x="0" y="{top + 15}">{_text(to_display_text(label, 30))}</text>'
            f'<rect x="{_LABEL_WIDTH}" y="{top + 3}" width="{width:.1f}" height="{_BAR_HEIGHT - 6}"></rect>'
            f'<text x="{_LABEL_WIDTH + width + 6:.1f}" y="{top + 15}">{count:,}</text>'
        )
    return _render_figure(title, len(counts) * _BAR_HEIGHT, "".join(bars))


def _render_figure(title: str, height: int, content: str) -> str:
    return (
        f'<figure><figcaption>{_text(title)}</figcaption><svg role="img" aria-label="{_text(title)}" '
        f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">{content}</svg></figure>\n'
    )


def _render_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], rest_text: str) -> str:
    """Render a table, with what it does not list."""
    if not rows:
        return f"<h2>{_text(title)}</h2>\n<p>None.</p>\n"
    head = "".join(f"<th>{_text(each)}</th>" for each in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows[:_MAX_ROWS])
    rest = f"<p>{_text(rest_text)}</p>\n" if rest_text else ""
    return f"<h2>{_text(title)}</h2>\n<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n{rest}"


def _text(text: str, limit: int = _MAX_CELL) -> str:
    """Escape a text for HTML, with control and invisible characters made visible."""
    lines = [to_display_text(line, limit) for line in text[:limit].split("\n")]
    return escape("\n".join(lines), quote=True)
