"""Use `deputize tasks` as a person does: list a task, show it, and resolve it."""

from pathlib import Path

import pytest

from deputize.store.local_postgres import LocalPostgres
from tests.acceptance.cli.cli_process import run_as_operator, run_deputize

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.nightly]

TASK_ID = "01890000-0000-7000-8000-00000000000a"
QUESTION = '{"asked": "Did hello.remember happen?", "why": "its contract names no status tool"}'


def _mark_outcome_unknown(shop: Path, call: str) -> None:
    """Set a call's outcome to unknown, as if its answer was lost and the tool cannot be asked about it."""
    database = LocalPostgres(shop / ".deputize").start()
    # Without triggers: no call that succeeded becomes unknown by itself.
    database.run_sql(
        "set session_replication_role = replica; "
        f"update deputize.calls set state = 'unknown', error = 'outcome-unknown' where id = '{call}'"
    )
    database.run_sql(
        "insert into deputize.human_tasks (tenant, id, kind, call_id, question) "
        f"values ('dev', '{TASK_ID}', 'reconcile', '{call}', convert_to('{QUESTION}', 'utf8'))"
    )


def test_a_human_task_is_listed_shown_and_resolved(shop_project: Path) -> None:
    assert run_deputize("tasks", "list", folder=shop_project).out == "No open tasks.\n"
    call = run_deputize("call", "hello.remember", "text=milk", "--json", folder=shop_project).json["call_id"]
    _mark_outcome_unknown(shop_project, call)
    listing = run_deputize("tasks", "list", folder=shop_project).out
    assert TASK_ID in listing
    assert "its contract names no status tool" in listing
    assert run_deputize("tasks", "show", TASK_ID, "--json", folder=shop_project).json["call"]["call_id"] == call
    without_reason = run_deputize("tasks", "resolve", TASK_ID, "happened", folder=shop_project)
    assert without_reason.code == 2
    answer = run_as_operator(
        "tasks", "resolve", TASK_ID, "happened", "--reason", "it is in the list", folder=shop_project
    )
    assert answer.out == f"✓ Task resolved: call {call} is now succeeded.\n"
    settled_call = run_deputize("calls", "show", call, "--json", folder=shop_project).json
    assert "it is in the list" in settled_call["summary"]
    again = run_deputize("tasks", "resolve", TASK_ID, "did_not_happen", "--reason", "or is it", folder=shop_project)
    assert (again.code, "is already closed" in again.err) == (1, True)
    resolved_tasks = run_deputize("tasks", "list", "--state", "resolved", "--json", folder=shop_project).json
    assert resolved_tasks["tasks"][0]["reason"]
