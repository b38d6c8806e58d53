"""Keep the figures in README.md and docs/reference/figures.md equal to the stored results of the proofs.

Each `proofs/results/*.json` is one full run, as `proofs/kit/report.py` writes it: `name`, `passed`, `form`,
`figures`, `bars` (each with `op` and `bar`), `controls` (broken variants, and whether they were caught),
`commit` and `machine`. Whether a result is true of this code is judged by `proofs/kit/stored_results.py`; a result of
earlier code or below its bar is shown as such, and one that must not be published is not shown. README.md gets one line
per headline, the reference page every figure that has a bar. `--write` renders both between their markers.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from proofs.kit.declarations import load_declarations
from proofs.kit.stored_results import ResultJudge, StoredResult

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "reference" / "figures.md"
OPEN_MARK, CLOSE_MARK = "<!-- figures -->", "<!-- /figures -->"
NOTHING_YET = "No results are stored yet. `make proofs` makes them."
HEADLINE_HEAD = ["| experiment | result | proof | state |", "|---|---|---|---|"]
# What README.md shows of a proof: what was tried, and what came of it, with the figures' names in braces.
HEADLINES: Mapping[str, tuple[str, str]] = {
    "crash_matrix": (
        "{kills} gateways killed at every boundary of a write",
        "{duplicate_effects} duplicate effects, {lost_acknowledged_effects} lost",
    ),
    "idempotency_race": (
        "{keys} idempotency keys, each raced by many callers at several gateways",
        "{keys_not_executed_exactly_once} not executed exactly once",
    ),
    "barrier": ("{acts} revocations under load", "{late} calls began on revoked authority"),
    "confused_deputy": ("{bad_tokens} bad tokens tried at {endpoints} endpoints", "{accepted} accepted"),
    "approvals": (
        "{tickets} approval requests, with gateways and workers killed meanwhile",
        "{executed_unapproved} calls executed unapproved, {used_or_executed_twice} twice",
    ),
    "recovery": (
        "{runs} durable runs, with workers frozen and databases killed meanwhile",
        "{lost_runs_or_steps} lost, {duplicate_or_blindly_repeated_steps} repeated; takeover within "
        "{takeover_p99_seconds} s (p99)",
    ),
    "conformance": ("{scenarios} scenarios of the official MCP suite", "{unexpected} unexpected results"),
    "policy": ("{rules} Cedar rules", "{cached_us} µs for a cached decision"),
    "quickstart": ("From `deputize init` to the first governed call", "{installed_seconds} s"),
}
# Figures whose keys, in results that were stored earlier, do not say plainly what was counted.
PLAIN_NAMES: Mapping[str, str] = {
    "approvals_unbound": "approvals not bound to the exact call",
    "approvals_unchecked": "approvals not checked before execution",
    "approved_and_lost": "approved calls lost",
    "decided_by_who_may_not": "decisions accepted from people who may not decide",
    "endpoints_shut_to_good_tokens": "endpoints that rejected a good token",
    "entries_that_do_not_match": "audit entries that do not match the calls",
    "expired_and_not_denied": "expired requests not denied",
    "found": "secrets found outside the vault",
    "not_come_to_an_end": "calls that did not end",
    "otherwise_wrong": "other errors",
    "tickets": "approval requests",
    "unknown_and_nobody_asked": "unknown outcomes without a reconciliation task",
    "ways_to_be_wrong": "kinds of error tried",
}
HEAD = ["| proof | figure | measured | bar | state |", "|---|---|---|---|---|"]

Result = Mapping[str, Any]


def judge_results() -> list[StoredResult]:
    """Judge the stored results of all proofs, in a stable order."""
    return ResultJudge(declarations=load_declarations()).judge_all()


def find_problems(results: Sequence[StoredResult]) -> list[str]:
    """Name the figures of headlines that the stored runs do not have."""
    return [
        f"{each.name}: the headline names {figure}, which the stored run did not measure"
        for each, result in _list_shown(results)
        for text in HEADLINES.get(each.name, ())
        for _, figure, _, _ in Formatter().parse(text)
        if figure and figure not in result["figures"]
    ]


def _list_shown(results: Sequence[StoredResult]) -> list[tuple[StoredResult, Result]]:
    """List the results that may be published."""
    return [(each, each.result) for each in results if each.result is not None and not each.faults]


def render_table(results: Sequence[StoredResult]) -> str:
    """Draw the table of every figure that has a bar, and of every control."""
    shown = _list_shown(results)
    rows = [row for each, result in shown for row in _render_rows(each, result)]
    machines = dict.fromkeys(_format_value(result["machine"]) for _, result in shown)
    table = [*HEAD, *rows, "", *(f"Measured on: {machine}." for machine in machines)] if rows else [NOTHING_YET]
    return "\n".join([*table, *_render_unmeasured(results)])


def render_headlines(results: Sequence[StoredResult]) -> str:
    """Draw one line for each proof that has a headline, in the order of the headlines."""
    shown = {each.name: (each, result) for each, result in _list_shown(results)}
    lines = [_render_headline(*shown[name], *texts) for name, texts in HEADLINES.items() if name in shown]
    table = [*HEADLINE_HEAD, *lines] if lines else [NOTHING_YET]
    return "\n".join([*table, *_render_unmeasured([each for each in results if each.name in HEADLINES])])


def _render_headline(each: StoredResult, result: Result, experiment: str, outcome: str) -> str:
    figures = {name: _format_value(value) for name, value in result["figures"].items()}
    texts = (experiment.format_map(figures), outcome.format_map(figures), f"`{each.name}`", each.describe_state())
    return f"| {' | '.join(texts)} |"


def _render_unmeasured(results: Sequence[StoredResult]) -> list[str]:
    """Name the proofs whose results are missing or must not be published."""
    shown = {each.name for each, _ in _list_shown(results)}
    names = [f"`{each.name}`" for each in results if each.name not in shown]
    return ["", f"Not measured on this code: {', '.join(names)}."] if names else []


def _render_rows(each: StoredResult, result: Result) -> Iterator[str]:
    proof, state = f"`{each.name}`", each.describe_state()
    for name, bar in result["bars"].items():
        figure_text, bar_text = _format_value(result["figures"].get(name)), f"{bar['op']} {_format_value(bar['bar'])}"
        mark = "" if bar["passed"] else " (missed)"
        yield f"| {proof} | {_spell_name(name)} | {figure_text} | {bar_text}{mark} | {state} |"
    for name, is_caught in result.get("controls", {}).items():
        outcome = "caught" if is_caught else "missed"
        yield f"| {proof} | broken variant: {_spell_name(name)} | {outcome} | caught | {state} |"


def _spell_name(name: str) -> str:
    return PLAIN_NAMES.get(name, name).replace("_", " ").replace("|", "\\|")


def _format_value(value: object) -> str:
    match value:
        case None:
            return "–"
        case float():
            return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case Mapping():
            return ", ".join(f"{_spell_name(key)} {_format_value(item)}" for key, item in value.items())
        case _:
            return str(value).replace("|", "\\|").replace("\n", " ")


def insert_table(page: str, table: str) -> str:
    """Put the table between the markers."""
    if page.count(OPEN_MARK) != 1 or page.count(CLOSE_MARK) != 1:
        raise ValueError(f"a page with figures needs the markers {OPEN_MARK} and {CLOSE_MARK} exactly once each")
    before, rest = page.split(OPEN_MARK)
    _, after = rest.split(CLOSE_MARK)
    return f"{before}{OPEN_MARK}\n{table}\n{CLOSE_MARK}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the stored results and the pages that show them, or write their figures."""
    parser = argparse.ArgumentParser(prog="python -m checks.figures", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables")
    write = parser.parse_args(arguments).write
    results = judge_results()
    problems = find_problems(results)
    pages = () if problems else ((README, render_headlines(results)), (PAGE, render_table(results)))
    for path, table in pages:
        page = path.read_text(encoding="utf-8")
        expected_page = insert_table(page, table)
        if write:
            path.write_text(expected_page, encoding="utf-8")
        elif expected_page != page:
            problems.append(f"{path.name} shows other figures: run python -m checks.figures --write")
    for problem in problems:
        print(f"figures: {problem}", file=sys.stderr)
    if not problems:
        print(f"figures: {len(_list_shown(results))} stored results, shown as they are")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
