"""Define `deputize tool service-levels`, how a tool does against its contract, and `deputize health`, how all do."""

from typing import Annotated, Any

import typer

from deputize.interfaces.cli.client.target import Token, Url, build_tool_path, complete_tool, find_gateway
from deputize.interfaces.cli.render.circuits import print_circuits
from deputize.interfaces.cli.render.output import Json, printer

_LABELS = {"p99_seconds": "p99", "availability": "availability", "accuracy": "accuracy", "cost": "cost per call"}
_BAR_WIDTH = 10
_MIN_PENALTY = 0.005
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


def report_health(url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show the health of the tools that were called in the last 15 minutes, the worst first. Needs an administrator.

    Services whose calls are paused because they kept failing come first, with the time of the next trial.
    A score of 1 is perfect. Errors take up to 0.5 off, a p99 close to the timeout up to 0.3, timeouts up to 0.2.
    """
    answer = find_gateway(url, token).get("/v1/tool-health")
    if json:
        printer.json(answer)
        return
    print_health(answer)


def print_health(answer: dict[str, Any]) -> None:
    """Print a line for each tool: its score, also as a bar, and what lowers it."""
    # A gateway of an earlier release reports none.
    if circuits := answer.get("circuits"):
        print_circuits(circuits)
    if not answer["tools"]:
        printer.line(f"No tool was called in the last {answer['minutes']} minutes.")
        return
    rows = [
        (
            each["tool"],
            f"{each['score']:.2f}",
            "█" * round(each["score"] * _BAR_WIDTH) + "░" * (_BAR_WIDTH - round(each["score"] * _BAR_WIDTH)),
            f"{each['calls']:,}",
            f"{each['error_share']:.1%}",
            f"{each['timeout_share']:.1%}",
            "-"
            if each["p99_seconds"] is None
            else f"{_format_seconds(each['p99_seconds'])} of {each['limit_seconds']:g} s",
            _describe_penalties(each["penalties"]),
        )
        for each in answer["tools"]
    ]
    printer.table(("tool", "health", "", "calls", "errors", "timeouts", "p99", "lowered by"), rows)


def _describe_penalties(penalties: dict[str, float]) -> str:
    """Name what lowers a score by a hundredth or more, the most first."""
    causes = sorted(penalties.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{cause} {penalty:.2f}" for cause, penalty in causes if penalty >= _MIN_PENALTY) or "-"


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
