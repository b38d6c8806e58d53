"""Draw what calls cost: a bar for each group, in which each component has a fill of its own."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.output import format_count, printer

_BAR_WIDTH: Final = 30
_MAX_NAME_LENGTH: Final = 60
_FILLS: Final = {
    "compute": ("█", "compute"),
    "external_api": ("▓", "external API"),
    "storage_io": ("▒", "storage"),
    "network": ("░", "network"),
    "token": ("▚", "tokens"),
    "human_review": ("◆", "human review"),
}
_NO_NAME: Final = {"task": "(no task)", "caller": "(other callers)"}


def print_costs(report: Mapping[str, Any]) -> None:
    """Print a chart for each currency, or that there were no calls."""
    whose = "your tenant" if report["scope"] == "tenant" else "your own calls"
    if not report["currencies"]:
        printer.line(f"No calls since {report['since']} ({whose}).")
        return
    printer.line(f"Costs since {report['since']} by {report['by']}, {whose}")
    for each in report["currencies"]:
        printer.line()
        _print_currency(report["by"], each)


def _print_currency(by: str, totals: Mapping[str, Any]) -> None:
    unit = totals["currency"] or "units of contracts that name no currency"
    printer.line(f"{format_amount(totals['cost'])} {unit} for {format_count(totals['calls'], 'call')}")
    groups = sorted(totals["groups"], key=lambda each: each["name"]) if by == "day" else totals["groups"]
    highest_cost = max((each["cost"] for each in groups), default=0.0)
    rows = [
        (
            to_display_text(each["name"], _MAX_NAME_LENGTH) or _NO_NAME.get(by, "-"),
            format_amount(each["cost"]),
            draw_bar(each["costs"], highest_cost),
            f"{each['calls']:,}",
            _describe_usage(each["usage"]),
        )
        for each in groups
    ]
    printer.table((by, "cost", "", "calls", "used"), rows)
    legend = [
        f"{fill} {label} {format_amount(totals['costs'][component])}"
        for component, (fill, label) in _FILLS.items()
        if totals["costs"][component]
    ]
    if legend:
        printer.line("  ".join(legend))


def draw_bar(costs: Mapping[str, float], highest_cost: float) -> str:
    """Draw the components of a cost, at the scale at which the highest one fills the width.

    A component that costs something gets at least one character, so that it can be seen.
    """
    if highest_cost <= 0:
        return ""
    widths = {
        component: max(round(_BAR_WIDTH * costs[component] / highest_cost), 1)
        for component in _FILLS
        if costs[component] > 0
    }
    return "".join(_FILLS[component][0] * width for component, width in widths.items())


def format_amount(amount: float) -> str:
    """Format an amount with two digits, a small one with as many as it needs."""
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.3g}"


def _describe_usage(usage: Mapping[str, Any]) -> str:
    """Name what was used, as far as it was measured."""
    parts: Sequence[tuple[float, str]] = (
        (usage["compute_seconds"], f"{usage['compute_seconds']:,.3g} s"),
        (usage["storage_bytes"], f"{_format_bytes(usage['storage_bytes'])} stored"),
        (usage["network_bytes"], f"{_format_bytes(usage['network_bytes'])} sent"),
        (usage["tokens"], f"{usage['tokens']:,.0f} tokens"),
        (usage["reviews"], format_count(usage["reviews"], "review")),
    )
    return ", ".join(text for quantity, text in parts if quantity) or "-"


def _format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
