"""The judge of the proof of the SQL tools finds each planted fault."""

from dataclasses import replace

import pytest

from proofs.sql_bounds.judge import Attempt, Traces, compute_figures, list_foreign_parts, read_statement
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

REFUSED = Attempt(tool="query", text="drop", is_honest=False, outcome="refused")
HONEST = replace(REFUSED, is_honest=True, outcome="done")
GOOD = [
    *(replace(REFUSED, tool=tool, text=f"{n}") for tool in ("query", "change", "validate") for n in range(200)),
    *[HONEST] * 300,
]
TRACES = Traces(
    changed_states=0, sessions_left=0, own_functions_called=0, other_tables_scanned=0, statements=("select 1",) * 2_000
)
NONE: tuple[list[str], list[str]] = ([], [])


def test_a_good_run_misses_no_bar() -> None:
    figures = compute_figures(GOOD, TRACES, NONE)
    assert list_missed_bars("sql_bounds", figures) == set()
    assert list_exact_bars("sql_bounds", among=figures.keys()) == {
        "not_refused", "refused_without_a_rule", "unexpected_errors", "honest_calls_refused", "changed_states",
        "sessions_left", "functions_not_allowed", "tables_not_allowed",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("attempts", "traces", "foreign", "missed"),
    [
        ([*GOOD, replace(REFUSED, outcome="done")], TRACES, NONE, "not_refused"),
        ([*GOOD, replace(REFUSED, has_rule=False)], TRACES, NONE, "refused_without_a_rule"),
        ([*GOOD, replace(REFUSED, outcome="error")], TRACES, NONE, "unexpected_errors"),
        ([*GOOD, replace(HONEST, outcome="refused")], TRACES, NONE, "honest_calls_refused"),
        (GOOD, replace(TRACES, changed_states=1), NONE, "changed_states"),
        (GOOD, replace(TRACES, sessions_left=1), NONE, "sessions_left"),
        (GOOD, replace(TRACES, own_functions_called=1), NONE, "functions_not_allowed"),
        (GOOD, TRACES, (["pg_sleep"], []), "functions_not_allowed"),
        (GOOD, replace(TRACES, other_tables_scanned=1), NONE, "tables_not_allowed"),
        (GOOD, TRACES, ([], ["pg_authid"]), "tables_not_allowed"),
    ],
)
def test_each_fault_misses_its_bar(
    attempts: list[Attempt], traces: Traces, foreign: tuple[list[str], list[str]], missed: str
) -> None:
    assert list_missed_bars("sql_bounds", compute_figures(attempts, traces, foreign)) == {missed}


def test_foreign_parts_are_found_wherever_they_stand() -> None:
    assert read_statement("execute __asyncpg_1/c: SELECT 1") == "SELECT 1"
    assert read_statement("duration: 3 ms") is None
    found = list_foreign_parts(
        [
            "begin isolation level repeatable read read only;",
            "select own()",
            "with x as (select lower('A')) select * from x, orders where exists (select pg_catalog.pg_sleep(1))",
            "update private.salaries set amount = ship(1)",
        ],
        own=frozenset({"select own()"}),
        functions=frozenset({"lower"}),
        tables=frozenset({"public.orders"}),
    )
    assert found == (["pg_sleep", "ship"], ["private.salaries"])
