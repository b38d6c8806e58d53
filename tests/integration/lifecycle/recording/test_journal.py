"""Every write leaves in the journal, with its outcome, what it did and how to take it back."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from deputize.core.call import CallOrigin, CallRequest
from deputize.core.errors import ToolFailed, ToolPrecondition
from deputize.core.states import State
from deputize.lifecycle.recording.journal import unseal_compensation
from deputize.operations.admin.human_tasks import HumanTasks
from tests.support import notebook_tools
from tests.support.gateway_lab import GatewayLab, open_lab
from tests.support.notebook_tools import failures, notes
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("RES-6")


@pytest_asyncio.fixture
async def lab(fresh_database: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    notes.clear()
    failures.clear()
    async with open_lab(fresh_database, tmp_path, tools=[*TOOLS, *notebook_tools.TOOLS]) as lab:
        yield lab


async def call(lab: GatewayLab, tool: str, /, **arguments: Any) -> str:
    request = CallRequest(
        tool=f"book.{tool}", arguments=arguments, idempotency_key=f"{tool} {arguments}", session="s1", step="2",
        origin=CallOrigin(flow_id="f1"),
    )  # fmt: skip
    return (await lab.gateway.run_call(await lab.make_caller(scopes=("book:write",)), request)).call_id


async def fetch_journal(lab: GatewayLab, call_id: str) -> list[asyncpg.Record]:
    return list(await lab.db.fetch("select * from deputize.journal where call_id = $1 order by id, number", call_id))


async def read_compensation(lab: GatewayLab, row: asyncpg.Record) -> dict[str, Any]:
    keys = await lab.runtime.keys.get("dev")
    return unseal_compensation(keys, str(row["id"]), row["sealed"]).to_json()


async def test_a_write_leaves_what_it_did_and_its_bound_compensation(lab: GatewayLab) -> None:
    call_id = await call(lab, "add", name="a", text="milk")
    (row,) = await fetch_journal(lab, call_id)
    assert (row["resource"], row["op"], row["scope"]) == ("book.notes", "create", "a")
    assert (row["certainty"], row["compensation_class"], row["number"]) == ("happened", "full", 0)
    assert (row["caller_user"], row["session"], row["tool"]) == ("ana", "s1", "book.add")
    # The caller names a flow, which did not make the call.
    assert (row["flow_id"], row["step"], row["undoes"]) == (None, "2", None)
    assert await read_compensation(lab, row) == {
        "tool": "book.remove", "arguments": {"name": "a"}, "origins": {"name": "result"},
    }  # fmt: skip
    assert b"remove" not in row["sealed"]
    entry = "select id from deputize.audit_entries where call_id = $1 order by id desc limit 1"
    assert row["id"] == await lab.db.fetchval(entry, call_id)
    seconds = "select extract(epoch from undo_until - k.ended_at) from deputize.journal j"
    seconds += " join deputize.calls k on k.id = j.call_id where j.call_id = $1"
    assert await lab.db.fetchval(seconds, call_id) == 3600


async def test_the_state_before_is_kept_where_the_compensation_needs_it(lab: GatewayLab) -> None:
    notes["b"] = "bread"
    (row,) = await fetch_journal(lab, await call(lab, "change", name="b", text="butter"))
    assert (await read_compensation(lab, row))["arguments"] == {"name": "b", "text": "bread"}
    assert row["before_digest"] != row["after_digest"]


async def test_a_tool_that_only_names_its_undo_leaves_its_arguments(lab: GatewayLab) -> None:
    (row,) = await fetch_journal(lab, await call(lab, "pin", name="c", text="top"))
    compensation = {
        "tool": "book.unpin", "arguments": {"name": "c", "text": "top"}, "by_name": True,
        "origins": {"name": "result", "text": "arguments"},
    }  # fmt: skip
    assert await read_compensation(lab, row) == compensation
    assert (row["compensation_class"], row["undo_until"]) == ("semantic", None)


async def test_what_cannot_be_taken_back_is_in_the_journal_too(lab: GatewayLab) -> None:
    (row,) = await fetch_journal(lab, await call(lab, "mail", name="d"))
    assert (row["compensation_class"], row["sealed"]) == ("irreversible", None)


async def test_reads_and_what_certainly_did_not_happen_leave_nothing(lab: GatewayLab) -> None:
    await lab.call("look", "looked")
    failures["none"] = ToolPrecondition("not now")
    notes["none"] = "left"
    # The state was read before and after: it is the same.
    failures["same"] = ToolFailed("no")
    for name in ("none", "same"):
        await call(lab, "remove", name=name)
    assert await lab.db.fetchval("select count(*) from deputize.journal") == 0


async def test_a_failure_that_may_have_acted_is_uncertain_until_it_is_settled(lab: GatewayLab) -> None:
    failures["e"] = ConnectionError("reset")
    call_id = await call(lab, "add", name="e", text="eggs")
    assert await lab.fetch_state(call_id) == State.UNKNOWN
    (row,) = await fetch_journal(lab, call_id)
    assert row["certainty"] == "uncertain"
    counts = "select deputize.counts_as_effect(tenant, call_id, certainty) from deputize.journal where call_id = $1"
    counts += " order by id"
    assert await lab.db.fetchval(counts, call_id) is True
    await settle(lab, call_id, "happened")
    _, settled = await fetch_journal(lab, call_id)
    assert (settled["certainty"], settled["scope"], settled["caller_user"]) == ("happened", "e", "ana")
    assert [each[0] for each in await lab.db.fetch(counts, call_id)] == [False, True]
    # It is as old as the call, so that what others did meanwhile came later.
    order = "select count(distinct (ordinal, began_at, ended_at)) from deputize.journal where call_id = $1"
    assert await lab.db.fetchval(order, call_id) == 1
    # A person who settles a call does not know what it returned.
    assert (await read_compensation(lab, settled))["missing"] == ["/result/name"]


async def test_what_turns_out_not_to_have_happened_no_longer_counts(lab: GatewayLab) -> None:
    failures["f"] = ConnectionError("reset")
    call_id = await call(lab, "add", name="f", text="figs")
    await settle(lab, call_id, "did_not_happen")
    counts = "select deputize.counts_as_effect(tenant, call_id, certainty) from deputize.journal where call_id = $1"
    assert [each[0] for each in await lab.db.fetch(counts, call_id)] == [False]


async def settle(lab: GatewayLab, call_id: str, outcome: Any) -> None:
    task_id = lab.runtime.clock.new_id()
    insert = "insert into deputize.human_tasks (tenant, id, kind, call_id, question) values ('dev', $1, $2, $3, '{}')"
    await lab.db.execute(insert, task_id, "reconcile", call_id)
    await HumanTasks(lab.runtime).resolve_task(await lab.make_admin(), task_id, outcome, "looked")
