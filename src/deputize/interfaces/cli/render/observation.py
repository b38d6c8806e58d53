"""Print what was observed: who called what, what policies would have decided, unusual calls, secrets and costs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.cost_chart import format_amount
from deputize.interfaces.cli.render.output import format_count, printer

_MAX_ROWS: Final = 20
_MAX_NAME: Final = 60
INCOMPLETE: Final = "There were more calls: only the newest are in this report. Choose a later --since."


def print_observation(observation: Mapping[str, Any]) -> None:
    """Print the whole report as tables."""
    report = observation["observed"]
    printer.line(describe_period(report))
    if not report["calls"]:
        return
    if not report["is_complete"]:
        printer.warn(INCOMPLETE)
    _print_rows(
        ("caller", "system", "tool", "effects", "calls", "failed", "refused"),
        [list_use_cells(each) for each in report["uses"]],
    )
    _print_shadow("the default policies", observation["default"])
    if observation["draft"] is not None:
        _print_shadow("the draft", observation["draft"])
    if need := describe_key_need(report):
        printer.line(need)
    _print_unusual(report)
    if report["secrets"]:
        printer.line("\nSecrets in arguments, whose values were not recorded")
        _print_rows(
            ("caller", "tool", "argument", "calls"),
            [(show(each["actor"]), each["tool"], each["argument"], str(each["calls"])) for each in report["secrets"]],
        )
    _print_costs(observation["cost"])
    if observation["written"] is not None:
        _print_shadow("the written policy", observation["written"])


def describe_period(report: Mapping[str, Any]) -> str:
    """Describe how much was observed, in one line."""
    since = str(report["since"])[:16].replace("T", " ")
    if not report["calls"]:
        return f"No calls since {since}."
    callers = len({name_caller(each) for each in report["uses"]})
    systems = len({each["system"] for each in report["uses"]} - {""})
    counts = f"{format_count(callers, 'caller')}, {format_count(systems, 'system')}"
    calls = "1 call" if report["calls"] == 1 else f"{report['calls']:,} calls"
    return f"{calls} since {since}: {counts}, {report['unusual_count']} unusual"


def describe_key_need(report: Mapping[str, Any]) -> str:
    """Describe how many calls need an idempotency key where the policies do not observe; nothing if none do."""
    count = sum(each["calls"] for each in report["uses"] if each["effects"] == "destructive")
    if not count:
        return ""
    need = "1 call is irreversible and needs" if count == 1 else f"{count:,} calls are irreversible and need"
    return f"{need} an idempotency key under other policies, until you confirm what these tools do"


def list_use_cells(use: Mapping[str, Any]) -> tuple[str, ...]:
    """List the cells of one caller's calls of one tool."""
    proposal, effects = use["inferred_effects"], use["effects"]
    effects_text = effects if proposal == effects or not effects else f"{proposal}, if confirmed"
    return (
        show(name_caller(use)), show(use["system"] or "-"), show(use["tool"]), effects_text or "-", f"{use['calls']:,}",
        str(use["failures"]), str(use["refusals"]),
    )  # fmt: skip


def summarize_shadow(result: Mapping[str, Any]) -> str:
    """Summarize what policies would have decided about the calls."""
    counts: Counter[str] = Counter()
    for each in result["changes"]:
        counts[each["after"]["behavior"]] += each["calls"]
    texts = [
        f"{result['same']:,} as they were", f"{counts['ask']:,} would ask", f"{counts['deny']:,} would be denied",
    ]  # fmt: skip
    others = (("would be allowed", counts["allow"]), ("undetermined", result["undetermined"]))
    texts += [f"{count:,} {name}" for name, count in (*others, ("not recorded", result["unrecorded"])) if count]
    return ", ".join(texts)


def list_shadow_cells(change: Mapping[str, Any]) -> tuple[str, ...]:
    """List the cells of calls that policies would have decided differently."""
    rules = ", ".join(rule["id"] for rule in change["after"]["rules"]) or "no rule"
    behavior = str(change["after"]["behavior"])
    return (f"{change['calls']:,}", show(change["tool"]), show(name_caller(change)), behavior, show(rules))


def list_unusual_cells(call: Mapping[str, Any]) -> tuple[str, ...]:
    """List the cells of an unusual call."""
    kinds = ", ".join(each["kind"] for each in call["oddities"])
    reasons = "; ".join(each["reason"] for each in call["oddities"])
    time = format_time(call["at_ms"])
    return (time, show(name_caller(call)), show(call["tool"]), kinds, to_display_text(reasons, 300), call["call_id"])


def name_caller(subject: Mapping[str, Any]) -> str:
    """Name the agent and the user it acts for."""
    return f"{subject['agents'][0]} for {subject['user']}" if subject["agents"] else str(subject["user"])


def format_time(at_ms: int) -> str:
    """Format a time in UTC, to the minute."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def show(text: str) -> str:
    """Make a name of a caller safe and short."""
    return to_display_text(text, _MAX_NAME)


def _print_shadow(name: str, result: Mapping[str, Any]) -> None:
    printer.line(f"\nUnder {name}: {summarize_shadow(result)}")
    rows = [list_shadow_cells(each) for each in result["changes"]]
    if rows:
        _print_rows(("calls", "tool", "caller", "decision", "by"), rows)


def _print_unusual(report: Mapping[str, Any]) -> None:
    if report["unusual"]:
        printer.line("\nUnusual calls")
        rows = [list_unusual_cells(each) for each in report["unusual"]]
        _print_rows(("time", "caller", "tool", "what", "why", "call"), rows)


def _print_costs(cost: Mapping[str, Any]) -> None:
    for each in cost["currencies"]:
        if each["cost"]:
            unit = each["currency"] or "units"
            printer.line(f"\nCost: {format_amount(each['cost'])} {unit}. By tool: deputize cost")


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    printer.table(columns, rows[:_MAX_ROWS])
    if len(rows) > _MAX_ROWS:
        printer.line(f"  and {len(rows) - _MAX_ROWS} more; --json and --html list them")
