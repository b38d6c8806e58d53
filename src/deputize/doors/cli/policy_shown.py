"""How policies, their answers and their mistakes look in a terminal."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from deputize.doors.cli.output import counted, pretty, printer

if TYPE_CHECKING:
    from deputize.govern.policy.cases import Judged

_MOST_ROWS = 30
_NO_ANSWER = "E3205"
_SAYS = {("permit", False): "allow", ("permit", True): "ask", ("forbid", False): "deny", ("forbid", True): "ask"}


def show_findings(found: Mapping[str, Any]) -> None:
    """One line for each, in the form that editors jump to."""
    for each in found["errors"]:
        printer.line(f"{each['file']}:{each['line']}: {each['message']}")
    for each in found["warnings"]:
        printer.line(f"{each['file']}:{each['line']}: warning: {each['message']}")


def show_policies(shown: Mapping[str, Any]) -> None:
    whose = "the default set" if shown["default"] else ", ".join(file["path"] for file in shown["files"])
    printer.line(f"in force since policy epoch {shown['epoch']}: {whose}")
    if shown["put_by"]:
        when = str(shown["put_at"]).partition(".")[0].replace("T", " ")
        printer.line(f"put by {shown['put_by']} at {when} · {shown['digest'][:19]}")
    rows = [(each["id"], _says(each), each["where"], each["reason"]) for each in shown["rules"]]
    printer.table(("rule", "says", "where", "why"), rows)


def _says(rule: Mapping[str, Any]) -> str:
    says = _SAYS[rule["effect"], rule["asks"]]
    named = rule.get("wants") and (rule["wants"]["groups"] or rule["wants"]["quorum"] > 1)
    return f"{says} {asked_of(rule['wants'])}" if named else says


def show_demands(demands: Sequence[Mapping[str, Any]]) -> None:
    """Whom the rules that ask would ask, a line for each kind of people."""
    by_people: dict[str, list[str]] = {}
    for each in demands:
        by_people.setdefault(asked_of(each), []).append(each["rule"])
    for people, rules in list(by_people.items())[:_MOST_ROWS]:
        more = f" and {len(rules) - _MOST_ROWS} more" if len(rules) > _MOST_ROWS else ""
        printer.line(f"  asks {people}: {', '.join(rules[:_MOST_ROWS])}{more}")
    if len(by_people) > _MOST_ROWS:
        printer.line("  and others; --json lists them all")


def asked_of(wants: Mapping[str, Any]) -> str:
    """`2 of oncall, then leads, within 24h, signed in with hwk`."""
    groups = ", then ".join(wants["groups"]) or "the usual approvers"
    people = f"{wants['quorum']} of {groups}" if wants["quorum"] > 1 else groups
    seconds = wants["deadline_seconds"]
    within = "" if seconds is None else f", within {_span(seconds)}"
    return f"{people}{within}{', signed in with ' + wants['step_up'] if wants['step_up'] else ''}"


def _span(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600)):
        if seconds % size == 0 and seconds > size:
            return f"{seconds // size}{unit}"
    return f"{seconds // 60}m"


def show_case(judged: "Judged") -> None:
    """A case that does not hold: what was expected, what was said and by which rules, and a way out."""
    placed, verdict = judged.placed, judged.verdict
    case = placed.case
    by = f" by {', '.join(case.by)}" if case.by else ""
    by += f" of {', '.join(case.approvers)}" if case.approvers else ""
    printer.bad(f"{placed.file}:{placed.line}: {case.name}")
    printer.aside(f"    expected {case.expect}{by}, but the answer is {verdict.behavior}")
    for rule in verdict.rules:
        printer.aside(f"    by {named(rule.id, rule.where, rule.reason)}")
    for demand in judged.to_json()["said"]["demands"]:
        printer.aside(f"    asks {asked_of(demand)}: {demand['rule']}")
    printer.aside(f"    {judged.suggestion}")


def show_decision(told: Mapping[str, Any]) -> None:
    tool = told["tool"]["name"]
    who = told.get("principal")
    by = f" for {_caller(who['user'], who['agents'])}" if who else ""
    if told.get("decided_by") == "token":
        number = told.get("error_number")
        error = f" ({number})" if number else ""
        when = "because the policies gave no answer" if number == _NO_ANSWER else "before the policies were asked"
        printer.line(f"{tool}: {told['state']}{error} {when}")
        return
    printer.line(f"{tool}{by}: {told['behavior']}")
    _rules(told["rules"])
    show_demands(told.get("demands") or ())
    for error in told.get("errors") or ():
        printer.line(f"  could not be evaluated: {error}")
    if told.get("suggestion"):
        printer.line(f"  {told['suggestion']}")
    now = told.get("now")
    if now and not told["in_force"]:
        _show_now(now)
    _allowed_if(now["allowed_if"] if now else told.get("allowed_if"))


def _rules(rules: Sequence[Mapping[str, Any]]) -> None:
    for rule in rules:
        printer.line(f"  by {named(rule['id'], rule['where'], rule['reason'])}")
        for path, value in (rule.get("read") or {}).items():
            printer.line(f"     it read {path} = {pretty(value)}")


def _show_now(now: Mapping[str, Any]) -> None:
    printer.line("  the policies have changed since; now the answer would be")
    if now["behavior"] is None:
        printer.line(f"    not known: they read {', '.join(now['lacks'])}, which the record does not hold")
        return
    rules = ", ".join(f"{rule['id']} ({rule['where']})" if rule["where"] else rule["id"] for rule in now["rules"])
    printer.line(f"    {now['behavior']} by {rules}")


def _allowed_if(changes: Sequence[str] | None) -> None:
    if changes:
        printer.line("  it would be allowed")
    for each in changes or ():
        printer.line(f"    {each}")


def show_backtest(result: Mapping[str, Any]) -> None:
    since = _when(result["since_ms"])
    printer.line(
        f"{counted(result['calls'], 'call')} since {since}, {counted(result['questions'], 'kind')} of question"
    )
    changes = result["changes"]
    if changes:
        rows = [_row(each) for each in changes[:_MOST_ROWS]]
        printer.table(("calls", "tool", "caller", "before", "after"), rows)
        if len(changes) > _MOST_ROWS:
            printer.line(f"  and {len(changes) - _MOST_ROWS} more kinds of change; --json lists them all")
    for each in result["cannot_tell"][:_MOST_ROWS]:
        lacks = ", ".join(each["lacks"])
        calls = counted(each["calls"], "call")
        printer.line(
            f"  cannot be told for {calls} of {each['tool']} by {_caller(each['user'], each['agents'])}: {lacks}"
        )
    if result["unrecorded"]:
        printer.line(f"  without a record: {counted(result['unrecorded'], 'call')}")
    if result["changed"]:
        printer.warn(
            f"{counted(result['changed'], 'call')} would be answered otherwise: "
            f"{result['looser']} looser, {result['stricter']} stricter{_of_others(result['asked_of_others'])}"
        )
    else:
        printer.good("no call would be answered otherwise")


def _of_others(calls: int) -> str:
    return f", {calls} asked of others" if calls else ""


def _row(change: Mapping[str, Any]) -> tuple[str, ...]:
    who = _caller(change["user"], change["agents"])
    return (str(change["calls"]), change["tool"], who, _answer(change["before"]), _answer(change["after"]))


def _answer(said: Mapping[str, Any]) -> str:
    rules = ", ".join(f"{rule['id']} ({rule['where']})" if rule["where"] else rule["id"] for rule in said["rules"])
    asks = "; ".join(asked_of(each) for each in said.get("wants") or () if each["groups"])
    return f"{said['behavior']} by {rules}" + (f" of {asks}" if asks else "")


def _caller(user: str, agents: Sequence[str]) -> str:
    return f"{agents[0]} for {user}" if agents else user


def named(rule: str, where: str, reason: str) -> str:
    placed = f"{rule} ({where})" if where else rule
    return f"{placed}: {reason}" if reason else placed


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
