"""`deputize tickets` as a person uses it: listed with its question, shown, and answered."""

from pathlib import Path

import pytest

from deputize.store.local import LocalPostgres
from tests.acceptance.cli.shell import deputize

pytestmark = pytest.mark.requirement("NEW-3")

TICKET = "01890000-0000-7000-8000-00000000000a"
QUESTION = '{"asked": "Did hello.remember happen?", "why": "its contract names no status to ask"}'


def _lose(shop: Path, call: str) -> None:
    """As if the answer to the call had got lost, and nothing could be asked what became of it."""
    database = LocalPostgres(shop / ".deputize").start()
    database.sql(f"update deputize.calls set state = 'unknown', error = 'outcome-unknown' where id = '{call}'")
    database.sql(
        "insert into deputize.tickets (tenant, id, kind, call_id, question) "
        f"values ('dev', '{TICKET}', 'reconcile', '{call}', convert_to('{QUESTION}', 'utf8'))"
    )


def test_a_ticket_is_found_and_answered(shop: Path) -> None:
    assert deputize("tickets", "list", folder=shop).out == "No ticket waits for an answer.\n"
    call = deputize("call", "hello.remember", "text=milk", "--json", folder=shop).json["call_id"]
    _lose(shop, call)
    listed = deputize("tickets", "list", folder=shop).out
    assert TICKET in listed
    assert "its contract names no status to ask" in listed
    assert deputize("tickets", "show", TICKET, "--json", folder=shop).json["call"]["call_id"] == call
    unsaid = deputize("tickets", "resolve", TICKET, "happened", folder=shop)
    assert unsaid.code == 2
    answer = deputize("tickets", "resolve", TICKET, "happened", "--reason", "it is in the list", folder=shop)
    assert answer.out == f"✓ the call {call} is succeeded now\n"
    shown = deputize("calls", "show", call, "--json", folder=shop).json
    assert "it is in the list" in shown["summary"]
    again = deputize("tickets", "resolve", TICKET, "did_not_happen", "--reason", "or is it", folder=shop)
    assert (again.code, "needs no answer any more" in again.err) == (1, True)
    assert deputize("tickets", "list", "--state", "resolved", "--json", folder=shop).json["tickets"][0]["reason"]
