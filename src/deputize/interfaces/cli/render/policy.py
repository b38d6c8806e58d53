"""Render policies, their decisions, test cases, backtests and errors."""

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.output import format_count, format_json, printer

_MAX_ROWS = 30
_NO_DECISION_NUMBER = "E3205"
_EFFECT_WORDS = {
    ("permit", False): "allow",
    ("permit", True): "ask",
    ("forbid", False): "deny",
    ("forbid", True): "ask",
}


def show_findings(findings: Mapping[str, Any]) -> None:
    """Print each error and warning on one line, in the form `file:line: message` that editors understand."""
    for each in findings["errors"]:
        printer.line(f"{each['file']}:{each['line']}: {each['message']}")
    for each in findings["warnings"]:
        printer.line(f"{each['file']}:{each['line']}: warning: {each['message']}")


def show_policies(policies: Mapping[str, Any]) -> None:
    """Print the active policies, rule by rule."""
    source = "the default set" if policies["default"] else ", ".join(file["path"] for file in policies["files"])
    printer.line(f"Active since policy epoch {policies['epoch']}: {source}")
    if policies["put_by"]:
        when = str(policies["put_at"]).partition(".")[0].replace("T", " ")
        printer.line(f"Put by {policies['put_by']} at {when} · {policies['digest'][:19]}")
    rows = [(each["id"], _describe_effect(each), each["where"], each["reason"]) for each in policies["rules"]]
    printer.table(("rule", "effect", "where", "reason"), rows)


def show_usage(report: Mapping[str, Any]) -> None:
    """Print how many calls each rule decided, and since when."""
    since = str(report["since"]).partition("+")[0].replace("T", " ")
    limit = "" if report["is_complete"] else ", in the newest entries of a busy day"
    printer.line(f"{format_count(report['calls'], 'call')} since {since} UTC{limit}")
    rows = [(each["id"], f"{each['calls']:,}") for each in report["rules"]]
    printer.table(("rule", "calls"), rows)
    printer.line("Those of a rule: deputize audit search --rule RULE")


def _describe_effect(rule: Mapping[str, Any]) -> str:
    effect = _EFFECT_WORDS[rule["effect"], rule["requires_approval"]]
    has_approvers = rule.get("approval_terms") and (
        rule["approval_terms"]["groups"] or rule["approval_terms"]["quorum"] > 1
    )
    return f"{effect} {describe_requirement(rule['approval_terms'])}" if has_approvers else effect


def show_requirements(requirements: Sequence[Mapping[str, Any]]) -> None:
    """Print who must approve, one line for each set of approvers, with the rules that require it."""
    by_approvers: dict[str, list[str]] = {}
    for each in requirements:
        by_approvers.setdefault(describe_requirement(each), []).append(each["rule"])
    for approvers, rules in list(by_approvers.items())[:_MAX_ROWS]:
        more = f" and {len(rules) - _MAX_ROWS} more" if len(rules) > _MAX_ROWS else ""
        printer.line(f"  approval by {approvers}: {', '.join(rules[:_MAX_ROWS])}{more}")
    if len(by_approvers) > _MAX_ROWS:
        printer.line(f"  and {len(by_approvers) - _MAX_ROWS} more; --json lists them all")


def describe_requirement(requirement: Mapping[str, Any]) -> str:
    """Describe who must approve, as in `2 of oncall, then leads, within 24h, signed in with hwk`."""
    groups = ", then ".join(requirement["groups"]) or "the default approvers"
    approvers = f"{requirement['quorum']} of {groups}" if requirement["quorum"] > 1 else groups
    seconds = requirement["deadline_seconds"]
    within = "" if seconds is None else f", within {_format_span(seconds)}"
    return f"{approvers}{within}{', signed in with ' + requirement['step_up'] if requirement['step_up'] else ''}"


def _format_span(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600)):
        if seconds % size == 0 and seconds > size:
            return f"{seconds // size}{unit}"
    return f"{seconds // 60}m"


def show_failed_case(case: Mapping[str, Any]) -> None:
    """Print a test case that failed: the expected and the actual decision, the rules behind it, and a suggestion."""
    expectation, decision = case["expected"], case["said"]
    by = f" by {', '.join(expectation['by'])}" if expectation["by"] else ""
    by += f" of {', '.join(expectation['approvers'])}" if expectation["approvers"] else ""
    printer.error(f"{case['file']}:{case['line']}: {case['name']}")
    printer.note(f"    expected {expectation['behavior']}{by}, got {decision['behavior']}")
    for rule in decision["rules"]:
        printer.note(f"    by {describe_rule(rule['id'], rule['where'], rule['reason'])}")
    for each in decision["demands"]:
        printer.note(f"    approval by {describe_requirement(each)}: {each['rule']}")
    printer.note(f"    {case['suggestion']}")


def show_decision(decision: Mapping[str, Any]) -> None:
    """Print a decision: the rules behind it, who must approve, and what would change it."""
    tool = decision["tool"]["name"]
    principal = decision.get("principal")
    by = f" for {_describe_caller(principal['user'], principal['agents'])}" if principal else ""
    if decision.get("decided_by") == "token":
        number = decision.get("error_number")
        error = f" ({number})" if number else ""
        has_no_decision = number == _NO_DECISION_NUMBER
        when = "because the policies gave no decision" if has_no_decision else "before the policies were evaluated"
        printer.line(f"{tool}: {decision['state']}{error} {when}")
        _print_rules([each for each in decision["rules"] if each["reason"]])
        return
    printer.line(f"{tool}{by}: {decision['behavior']}")
    _print_rules(decision["rules"])
    show_requirements(decision.get("demands") or ())
    for error in decision.get("errors") or ():
        printer.line(f"  evaluation error: {error}")
    if decision.get("suggestion"):
        printer.line(f"  {decision['suggestion']}")
    now = decision.get("now")
    if now and not decision["is_active"]:
        _print_current_decision(now)
    _print_allowing_changes(now["allowed_if"] if now else decision.get("allowed_if"))


def _print_rules(rules: Sequence[Mapping[str, Any]]) -> None:
    for rule in rules:
        printer.line(f"  by {describe_rule(rule['id'], rule['where'], rule['reason'])}")
        for path, value in (rule.get("read") or {}).items():
            printer.line(f"     with {path} = {format_json(value)}")


def _print_current_decision(now: Mapping[str, Any]) -> None:
    printer.line("  The policies have changed since. The decision would now be:")
    if now["behavior"] is None:
        lacks = ", ".join(now["missing"])
        printer.line(f"    undetermined: the policies read {lacks}, which was not recorded with the call")
        return
    rules = ", ".join(f"{rule['id']} ({rule['where']})" if rule["where"] else rule["id"] for rule in now["rules"])
    printer.line(f"    {now['behavior']} by {rules}")


def _print_allowing_changes(changes: Sequence[str] | None) -> None:
    if changes:
        printer.line("  It would be allowed:")
    for each in changes or ():
        printer.line(f"    {each}")


def show_backtest(result: Mapping[str, Any]) -> None:
    """Print which recorded calls the draft would decide differently."""
    since = _format_time(result["since_ms"])
    variants = format_count(result["questions"], "distinct request")
    printer.line(f"{format_count(result['calls'], 'call')} since {since}, {variants}")
    changes = result["changes"]
    if changes:
        rows = [_make_row(each) for each in changes[:_MAX_ROWS]]
        printer.table(("calls", "tool", "caller", "before", "after"), rows)
        # In the rows, places would make lines that no terminal shows whole.
        answers = [each[side] for each in changes[:_MAX_ROWS] for side in ("before", "after")]
        places = {rule["id"]: rule["where"] for answer in answers for rule in answer["rules"] if rule["where"]}
        for rule_id, where in sorted(places.items()):
            printer.line(f"  {rule_id}: {where}")
        if len(changes) > _MAX_ROWS:
            printer.line(f"  and {len(changes) - _MAX_ROWS} more; --json lists them all")
    for each in result["cannot_tell"][:_MAX_ROWS]:
        lacks = ", ".join(each["missing"])
        calls = format_count(each["calls"], "call")
        caller = _describe_caller(each["user"], each["agents"])
        printer.line(f"  undetermined for {calls} of {each['tool']} by {caller}: not recorded: {lacks}")
    if result["unrecorded"]:
        printer.line(f"  no recorded decision: {format_count(result['unrecorded'], 'call')}")
    for each in result.get("mismatches", ()):
        printer.warn(f"{each['file']}:{each['line']}: {each['message']}")
    if result["changed"]:
        printer.warn(
            f"{format_count(result['changed'], 'call')} would be decided differently: "
            f"{result['looser']} looser, {result['stricter']} "
            f"stricter{_format_other_approvers(result['asked_of_others'])}"
        )
    else:
        printer.success("No call would be decided differently.")


def _format_other_approvers(calls: int) -> str:
    return f", {calls} with other approvers" if calls else ""


def _make_row(change: Mapping[str, Any]) -> tuple[str, ...]:
    who = _describe_caller(change["user"], change["agents"])
    return (
        str(change["calls"]),
        change["tool"],
        who,
        _describe_answer(change["before"]),
        _describe_answer(change["after"]),
    )


def _describe_answer(answer: Mapping[str, Any]) -> str:
    rules = ", ".join(rule["id"] for rule in answer["rules"])
    approvers = "; ".join(describe_requirement(each) for each in answer.get("approval_terms") or () if each["groups"])
    return f"{answer['behavior']} by {rules}" + (f" of {approvers}" if approvers else "")


def _describe_caller(user: str, agents: Sequence[str]) -> str:
    return f"{agents[0]} for {user}" if agents else user


def describe_rule(rule: str, where: str, reason: str) -> str:
    """Name a rule with its file and line, and its reason."""
    title = f"{rule} ({where})" if where else rule
    return f"{title}: {reason}" if reason else title


def _format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def show_policy_difference(
    active_files: Sequence[Mapping[str, str]], proposed_files: Sequence[Mapping[str, str]]
) -> None:
    """Show on standard error which lines a proposal adds to the active policies and removes from them."""
    old, new = ({file["path"]: file["text"].splitlines() for file in files} for files in (active_files, proposed_files))
    for path in sorted({*old, *new}):
        names = (f"active/{path}", f"proposed/{path}")
        lines = difflib.unified_diff(old.get(path, []), new.get(path, []), *names, n=2, lineterm="")
        for line in lines:
            printer.note(f"  {to_display_text(line)}")
    if not proposed_files:
        printer.note("  The proposal is the default set.")
