"""Define `deputize tool service-levels`: how a tool does against what its contract promises."""

from typing import Annotated, Any

import typer

from deputize.interfaces.cli.client.target import Token, Url, build_tool_path, complete_tool, find_gateway
from deputize.interfaces.cli.render.output import Json, printer

_LABELS = {"p99_seconds": "p99", "availability": "availability", "accuracy": "accuracy", "cost": "cost per call"}
_ENDS = {
    "successes": "succeeded",
    "rejections": "returned a wrong result",
    "failures": "failed",
    "timeouts": "timed out",
    "unknown_outcomes": "ended unknown",
}


def report_service_levels(
    tool: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@VERSION]", autocompletion=complete_tool, help="The tool, or one exact version of it."
        ),
    ],
    days: Annotated[int, typer.Option(min=1, max=30, help="How many days to look back, today included.")] = 7,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Compare what was measured of a tool with the objectives and the timeout that it declares. Needs an administrator.

    Failures, timeouts, wrong results and unknown outcomes count against the tool; refusals, cancellations and mistakes
    of callers do not.
    """
    name, _, version = tool.partition("@")
    answer = find_gateway(url, token).get(f"{build_tool_path(name)}/service-levels", version=version or None, days=days)
    if json:
        printer.json(answer)
        return
    for each in answer["versions"]:
        print_version(answer, each)


def print_version(answer: dict[str, Any], levels: dict[str, Any]) -> None:
    """Print what was measured of one version, its objectives and the advice on its timeout."""
    title = f"{answer['name']} {levels['version']} ({levels['state']})"
    noun = "call" if levels["calls"] == 1 else "calls"
    printer.line(f"{title}: {levels['calls']:,} {noun} since {answer['since']}")
    if levels["calls"]:
        ends = (f"{count:,} {_ENDS[end]}" for end, count in levels["ends"].items() if count)
        printer.line(f"  {', '.join(ends)}; {_format_share(levels['timeout_share'])} timed out")
        printer.line(f"  {_format_quantiles(levels['latency'])}mean cost {levels['mean_cost']:.6g}")
    rows = [
        (
            _LABELS[each["name"]],
            _format_value(each["name"], each["target"]),
            _format_value(each["name"], each["value"]),
            each["status"].replace("-", " "),
            each["reason"],
        )
        for each in levels["objectives"]
    ]
    printer.table(("objective", "declared", "measured", "status", "why"), rows)
    printer.line(f"  timeout: {levels['timeout']['text']}")


def _format_quantiles(latency: dict[str, Any]) -> str:
    if not latency["calls"]:
        return ""
    quantiles = (f"{name} {_format_seconds(latency[f'{name}_seconds'])}" for name in ("p50", "p95", "p99"))
    return f"{', '.join(quantiles)}; "


def _format_value(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name == "p99_seconds":
        return _format_seconds(value)
    return f"{value:.6g}" if name == "cost" else _format_share(value)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _format_share(share: float) -> str:
    return f"{share * 100:.6g}%"
