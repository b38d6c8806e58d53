"""Judge what was tried against a database, by its state, by its log and by its counters."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pgparse

from proofs.kit.report import Figure

Outcome = Literal["done", "refused", "error"]
_LOGGED: Final = re.compile(r"(?:statement|execute [^:]*): (.*)", re.DOTALL)
_TRANSACTION: Final = re.compile(r"\s*(?:begin|commit|rollback|set constraints)\b[^;]*;?\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One call of a tool."""

    tool: str
    text: str
    is_honest: bool
    outcome: Outcome
    has_rule: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Traces:
    """What the attempts left in the database: changed states, sessions, and what ran there by its own account."""

    changed_states: int
    sessions_left: int
    own_functions_called: int
    other_tables_scanned: int
    statements: tuple[str, ...]


def read_statement(message: str) -> str | None:
    """Read the statement of a line of the server's log; None if there is none."""
    found = _LOGGED.fullmatch(message)
    return None if found is None else found[1]


def list_foreign_parts(
    statements: Iterable[str], *, own: frozenset[str], functions: frozenset[str], tables: frozenset[str]
) -> tuple[list[str], list[str]]:
    """List functions and tables of executed statements that are not among the allowed ones.

    `own` are the statements of the tools themselves, with one space between words.
    """
    foreign_functions, foreign_tables = [], []
    for statement in statements:
        if " ".join(statement.split()) in own or _TRANSACTION.fullmatch(statement):
            continue
        parts = list(_iter_parts(pgparse.parse(statement)))
        defined = {part["ctename"] for part in parts if "ctename" in part}
        for part in parts:
            if "funcname" in part:
                name = ".".join(each["String"]["sval"] for each in part["funcname"]).removeprefix("pg_catalog.")
                if name not in functions:
                    foreign_functions.append(name)
            if "relname" in part:
                name = f"{part.get('schemaname', 'public')}.{part['relname']}"
                if name not in tables and part["relname"] not in defined:
                    foreign_tables.append(name)
    return foreign_functions, foreign_tables


def _iter_parts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for each in value:
            yield from _iter_parts(each)
    elif isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _iter_parts(each)


def compute_figures(
    attempts: Sequence[Attempt], traces: Traces, foreign: tuple[Sequence[str], Sequence[str]]
) -> dict[str, Figure]:
    """Compute the figures that the bars are about."""
    hostile = [each for each in attempts if not each.is_honest]
    honest = [each for each in attempts if each.is_honest]
    return {
        "hostile_statements": len({each.text for each in hostile if each.tool == "query"}),
        "hostile_changes": len({each.text for each in hostile if each.tool == "change"}),
        "hostile_checks": len({each.text for each in hostile if each.tool == "validate"}),
        "honest_calls": len(honest),
        "not_refused": sum(each.outcome == "done" for each in hostile),
        "refused_without_a_rule": sum(each.outcome == "refused" and not each.has_rule for each in hostile),
        "unexpected_errors": sum(each.outcome == "error" for each in attempts),
        "honest_calls_refused": sum(each.outcome == "refused" for each in honest),
        "changed_states": traces.changed_states,
        "sessions_left": traces.sessions_left,
        "functions_not_allowed": len(foreign[0]) + traces.own_functions_called,
        "tables_not_allowed": len(foreign[1]) + traces.other_tables_scanned,
        "statements_in_the_log": len(traces.statements),
    }
