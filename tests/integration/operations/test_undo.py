"""A person takes back what an agent did: the plan first, then each step as a call of their own."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize.core.call import CallOrigin, CallRequest
from deputize.core.caller import AUDIT_SCOPE, UNDO_SCOPE, Caller
from deputize.core.clock import Clock
from deputize.core.contract.contract import LifecycleState
from deputize.core.errors import (
    CallNotFound,
    ChangedSince,
    ConcurrencyLimitReached,
    MalformedRequest,
    QueueFull,
    ScopeMissing,
    ToolFailed,
    UndoPlanChanged,
    UndoTooBroad,
)
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.lifecycle import journal_reader
from deputize.lifecycle.compensation import journal_entries, later_writers
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.operations.gateway import UndoSelection
from deputize.operations.undo import undo_requests
from deputize.operations.undo.undo import Undo
from deputize.store.queries import load_statements
from tests.support import notebook_tools
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import GatewayLab, open_lab, parse_body, wait_until
from tests.support.notebook_tools import failures, gates, mails, notes
from tests.support.policies import OPEN_FILES
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("NEW-2")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    tools = [*TOOLS, *notebook_tools.TOOLS]
    async with open_lab(module_database, tmp_path_factory.mktemp("lab"), tools=tools) as lab:
        yield lab


@pytest.fixture(autouse=True)
def session(lab: GatewayLab) -> str:
    """The session of the test, with nothing in it, and an empty book."""
    notes.clear()
    failures.clear()
    mails.clear()
    return lab.runtime.clock.new_id()


async def make_person(lab: GatewayLab, user: str = "ana") -> Caller:
    return await lab.make_caller(user, scopes=("book:write", UNDO_SCOPE))


async def call(lab: GatewayLab, tool: str, session: str, /, *, by: Caller | None = None, **arguments: Any) -> str:
    caller = by or await lab.make_caller(agent="bot", scopes=("book:write",))
    key = lab.runtime.clock.new_id()
    request = CallRequest(tool=f"book.{tool}", arguments=arguments, idempotency_key=key, session=session)
    outcome = await lab.gateway.run_call(caller, request)
    return outcome.call_id


async def plan(lab: GatewayLab, by: Caller | None = None, **selection: Any) -> dict[str, Any]:
    return await lab.gateway.undo.plan_undo(by or await make_person(lab), UndoSelection(**selection))


async def undo(lab: GatewayLab, by: Caller | None = None, **selection: Any) -> dict[str, Any]:
    caller = by or await make_person(lab)
    planned = await plan(lab, caller, **selection)
    return await lab.gateway.undo.execute_undo(caller, UndoSelection(**selection), planned["digest"])


def list_verdicts(planned: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    return [(each["tool"].removeprefix("book."), each["verdict"], each["reason"]) for each in planned["steps"]]


async def test_a_session_is_taken_back_newest_first_and_the_plan_names_what_cannot_be(
    lab: GatewayLab, session: str
) -> None:
    notes.update(kept="k", old="o")
    before = dict(notes)
    await call(lab, "add", session, name="new", text="n")
    await call(lab, "change", session, name="old", text="o2")
    await call(lab, "change", session, name="old", text="o3")
    await call(lab, "mail", session, name="new")
    await call(lab, "remove", session, name="kept")
    await call(lab, "pin", session, name="new", text="top")
    planned = await plan(lab, session=session)
    assert list_verdicts(planned) == [
        ("pin", "ready", None), ("remove", "ready", None), ("mail", "blocked", "irreversible"),
        ("change", "ready", None), ("change", "ready", None), ("add", "ready", None),
    ]  # fmt: skip
    assert planned["steps"][0]["agents"] == ["bot"]
    answer = await undo(lab, session=session)
    assert [each["state"] for each in answer["made"]] == ["succeeded"] * 5
    assert (answer["left"]["ready"], answer["left"]["done"], answer["left"]["blocked"]) == (0, 5, 1)
    assert (notes, mails) == (before, ["new"])


async def test_an_undo_is_a_call_in_the_journal_and_can_itself_be_undone(lab: GatewayLab, session: str) -> None:
    added = await call(lab, "add", session, name="a", text="milk")
    (made,) = (await undo(lab, call_id=added))["made"]
    (row,) = await lab.db.fetch("select * from deputize.journal where call_id = $1", made["call_id"])
    assert (str(row["undoes"]), row["caller_user"], row["caller_agent"]) == (made["entry_id"], "ana", "")
    assert await lab.fetch_entry_kinds(made["call_id"]) == ["intent", "outcome"]
    assert notes == {}
    (again,) = (await undo(lab, call_id=made["call_id"]))["made"]
    assert notes == {"a": "milk"}
    (step,) = (await plan(lab, call_id=added))["steps"]
    assert (step["verdict"], step["reason"]) == ("done", "already_undone")
    assert "was itself taken back" in step["detail"]
    await undo(lab, call_id=again["call_id"])
    assert notes == {}


async def test_undos_of_undos_come_to_an_end(lab: GatewayLab, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_writers, "MAX_UNDOS_IN_TURN", 2)
    calls, states = [await call(lab, "add", session, name="a", text="milk")], []
    for _ in range(3):
        (made,) = (await undo(lab, call_id=calls[-1]))["made"]
        calls.append(made["call_id"])
        states.append((made["state"], made["error"]))
    assert states == [("succeeded", None), ("succeeded", None), ("failed", "changed-since")]
    undone = await lab.db.fetch(
        "select is_undone from deputize.journal where call_id = any($1::uuid[]) order by ordinal", calls
    )
    assert [each["is_undone"] for each in undone] == [False, True, False]


async def test_a_plan_looks_once_at_what_many_changed(lab: GatewayLab, session: str) -> None:
    notes["x"] = "1"
    calls = [await call(lab, "change", session, name="x", text=str(n)) for n in range(5)]
    columns = "call_id, caller_user, caller_agent, session, tool, version, resource, op, certainty, compensation_class"
    await lab.db.execute(
        f"""insert into deputize.journal (tenant, id, number, {columns}, scope, is_undone, began_at)
            select j.tenant, (left(j.id::text, 18) || right(gen_random_uuid()::text, 18))::uuid, 0, {columns},
                   'x/' || n, true, j.ended_at
            from deputize.journal j, generate_series(1, 2000) as n where j.call_id = $1""",
        calls[-1],
    )
    await lab.db.execute("analyze deputize.journal")
    statement = f"explain (analyze, format json) {load_statements('journal')['find_later_writers']}"

    async def count_rows(ids: list[Any]) -> int:
        async with lab.runtime.store.read_transaction("dev") as connection:
            (report,) = orjson.loads(await connection.fetchval(statement, "dev", ids, ids, None))
        return _sum_rows(report["Plan"])

    ids = [
        await lab.db.fetchval("select id from deputize.journal where call_id = $1 order by ordinal limit 1", each)
        for each in calls
    ]
    # Each of the rows is looked at as often for five calls as for one.
    one, five = await count_rows(ids[:1]), await count_rows(ids)
    assert one > 2_000
    assert five < 1.5 * one


def _sum_rows(node: dict[str, Any]) -> int:
    rows = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    return int(rows) + sum(_sum_rows(each) for each in node.get("Plans", ()))


async def test_what_others_changed_since_is_found_and_never_overwritten(lab: GatewayLab, session: str) -> None:
    notes.update(x="1", y="1")
    mine = [await call(lab, "change", session, name=name, text="2") for name in ("x", "y")]
    bob = await lab.make_caller("bob", scopes=("book:write",))
    await call(lab, "change", "of bob", by=bob, name="x", text="3")
    planned = await plan(lab, session=session)
    assert list_verdicts(planned) == [("change", "ready", None), ("change", "blocked", "changed_since")]
    # Whose it is says only the plan of who may see it.
    assert planned["steps"][1]["detail"] == "another caller changed the same later"
    auditor = await lab.make_caller("eve", scopes=(AUDIT_SCOPE,))
    assert "bob changed the same later" in (await plan(lab, auditor, call_id=mine[0]))["steps"][0]["detail"]
    await undo(lab, session=session)
    assert notes == {"x": "3", "y": "1"}


async def test_later_writers_are_found_whatever_the_clocks_of_gateways_say(lab: GatewayLab, session: str) -> None:
    notes["x"] = "1"
    first = await call(lab, "change", session, name="x", text="2")
    slow = Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 - 60_000)
    tools = [*TOOLS, *notebook_tools.TOOLS]
    async with open_lab(lab.dsn, lab.folder, tools=tools, clock=slow) as behind:
        ana = await make_person(lab)
        second = await call(behind, "change", session, by=ana, name="x", text="3")
        assert list_verdicts(await plan(lab, call_id=first)) == [("change", "blocked", "changed_since")]
        planned = await plan(lab, session=session)
        assert [each["call_id"] for each in planned["steps"]] == [second, first]
        await undo(behind, ana, session=session)
    assert notes["x"] == "1"
    assert list_verdicts(await plan(lab, session=session)) == [("change", "done", "already_undone")] * 2


async def test_of_two_that_wrote_at_the_same_time_it_is_not_known_which_came_last(
    lab: GatewayLab, session: str
) -> None:
    notes["x"] = "1"
    gates["x"] = gate = threading.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(call(lab, "change", session, name="x", text="2"))
        await wait_until(lambda: is_running(lab, session))
        second = await call(lab, "change", "of bot", name="x", text="3")
        gate.set()
    for call_id, other in ((first.result(), second), (second, first.result())):
        (step,) = (await plan(lab, call_id=call_id))["steps"]
        assert (step["verdict"], step["reason"]) == ("blocked", "concurrent")
        assert f"changed the same at the same time, with book.change in call {other}" in step["detail"]
    # In one plan, too.
    third = await call(lab, "change", session, name="x", text="4")
    assert list_verdicts(await plan(lab, session=session)) == [
        ("change", "ready", None), ("change", "blocked", "concurrent"),
    ]  # fmt: skip
    await undo(lab, call_id=third)
    assert notes["x"] == "2"


async def is_running(lab: GatewayLab, session: str) -> bool:
    running = "select exists (select from deputize.calls where session = $1 and state = 'running')"
    return bool(await lab.db.fetchval(running, session)) and "x" not in gates


async def test_a_later_call_that_stays_blocks_the_earlier_one_and_one_taken_back_does_not(
    lab: GatewayLab, session: str
) -> None:
    notes["z"] = "1"
    first = await call(lab, "change", session, name="z", text="2")
    second = await call(lab, "change", "later", name="z", text="3")
    (step,) = (await plan(lab, call_id=first))["steps"]
    assert step["reason"] == "changed_since"
    assert second in step["detail"]
    await undo(lab, call_id=second)
    await undo(lab, call_id=first)
    assert notes["z"] == "1"


@contextlib.asynccontextmanager
async def locked_journal(lab: GatewayLab) -> AsyncIterator[None]:
    """A journal in which everything takes too long."""
    async with lab.db.transaction():
        await lab.db.execute("lock table deputize.journal in access exclusive mode")
        yield


async def wait_for_plans(lab: GatewayLab, count: int) -> None:
    """Wait until so many plans wait for the locked journal."""
    waiting = (
        "select count(*) from pg_locks where not granted and relation = 'deputize.journal'::regclass "
        "and pid <> pg_backend_pid()"
    )

    async def are_waiting() -> bool:
        return bool(await lab.db.fetchval(waiting) == count)

    await wait_until(are_waiting)


async def test_plans_leave_connections_to_others_and_a_slot_to_administrators(
    lab: GatewayLab, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_reader, "_STATEMENT_TIMEOUT", "60s")
    added = await call(lab, "add", session, name="a", text="milk")
    ana, bob, cid = [await make_person(lab, name) for name in ("ana", "bob", "cid")]
    bot, root = await lab.make_caller(agent="bot", scopes=("book:write",)), await lab.make_admin()
    selection, undo = UndoSelection(call_id=added), lab.gateway.undo
    async with asyncio.TaskGroup() as group, locked_journal(lab):
        for count, each in enumerate((ana, ana, bob), 1):
            group.create_task(plan(lab, each, call_id=added))
            await wait_for_plans(lab, count)
        refused = (
            plan(lab, ana, call_id=added), undo.execute_undo(ana, selection, "d"),
            undo.requests.request_undo(bot, added), plan(lab, cid, call_id=added),
        )  # fmt: skip
        for attempt in refused:
            with pytest.raises(ConcurrencyLimitReached, match="plans to undo open already"):
                await attempt
        last = group.create_task(plan(lab, root, call_id=added))
        await wait_for_plans(lab, 4)
    assert last.result()["ready"] == 0
    assert (await plan(lab, ana, call_id=added))["ready"] == 1


async def test_what_takes_the_database_too_long_is_ended_and_nothing_happens(
    lab: GatewayLab, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes["x"] = "1"
    changed = await call(lab, "change", session, name="x", text="2")
    entry_id = await find_entry(lab, changed)
    monkeypatch.setattr(journal_reader, "_STATEMENT_TIMEOUT", "100ms")
    async with locked_journal(lab):
        with pytest.raises(UndoTooBroad):
            await plan(lab, session=session)
        # The same for what a step looks up, for its rules and when it begins.
        outcome = await take_back(lab, entry_id, "x")
    assert parse_body(outcome)["error"]["slug"] == "unavailable"
    assert notes["x"] == "2"


async def test_a_plan_ends_at_so_many_effects_or_bytes(
    lab: GatewayLab, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await call(lab, "add", session, name=name, text="t" * 500)
    for name, most in (("_MAX_EFFECTS", 2), ("_MAX_SEALED_BYTES", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(journal_entries, name, most)
            planned = await plan(lab, session=session)
        assert (len(planned["steps"]), planned["is_complete"]) == (most, False)
        assert planned["steps"][0]["effects"][0]["scope"] == "c"
    assert (await plan(lab, session=session))["is_complete"] is True


async def test_a_failed_step_ends_the_undo_and_repeating_it_goes_on(lab: GatewayLab, session: str) -> None:
    for name in ("a", "b", "c"):
        await call(lab, "add", session, name=name, text=name)
    failures["b"] = ToolFailed("the shelf is locked")
    answer = await undo(lab, session=session)
    assert [each["state"] for each in answer["made"]] == ["succeeded", "failed"]
    assert (answer["left"]["ready"], notes) == (2, {"a": "a", "b": "b"})
    answer = await undo(lab, session=session)
    assert [each["state"] for each in answer["made"]] == ["succeeded", "succeeded"]
    assert notes == {}


async def test_a_plan_that_changed_is_refused(lab: GatewayLab, session: str) -> None:
    await call(lab, "add", session, name="a", text="milk")
    planned = await plan(lab, session=session)
    await call(lab, "add", session, name="b", text="bread")
    with pytest.raises(UndoPlanChanged):
        await lab.gateway.undo.execute_undo(await make_person(lab), UndoSelection(session=session), planned["digest"])
    assert len(notes) == 2


async def test_undo_needs_its_own_scope_and_no_agent_has_it(lab: GatewayLab, session: str) -> None:
    added = await call(lab, "add", session, name="a", text="milk")
    without = await lab.make_caller(scopes=("book:write",))
    bare = await plan(lab, await lab.make_admin(), call_id=added)
    assert (bare["missing_scopes"], bare["ready"]) == (["book:write", UNDO_SCOPE], 0)
    agent = await lab.make_caller(agent="bot", scopes=("book:write", UNDO_SCOPE))
    for caller in (without, agent):
        with pytest.raises(ScopeMissing):
            await undo(lab, caller, call_id=added)
    # Someone else does not even see it.
    assert (await plan(lab, await make_person(lab, "bob"), call_id=added))["steps"] == []
    assert notes == {"a": "milk"}


async def test_an_agent_asks_and_the_undo_of_its_person_is_the_answer(lab: GatewayLab, session: str) -> None:
    requests = lab.gateway.undo.requests
    bot = await lab.make_caller(agent="bot", scopes=("book:write",))
    added = await call(lab, "add", session, name="a", text="milk")
    asked = await requests.request_undo(bot, added)
    assert (await requests.request_undo(bot, added))["task_id"] == asked["task_id"]
    ana, bob = await make_person(lab), await make_person(lab, "bob")
    assert [each["call_id"] for each in await requests.list_requests(ana)] == [added]
    assert await requests.list_requests(bob) == []
    assert await requests.list_requests(replace(ana, tenant="other")) == []
    root = await lab.make_admin()
    (task,) = await lab.gateway.human_tasks.list_tasks(root, kind="undo")
    assert task["task_id"] == asked["task_id"]
    assert task["question"]["why"].startswith("an agent asked for it: 1 call can be undone. It would call book.remove;")
    await undo(lab, ana, call_id=added)
    assert (notes, await requests.list_requests(ana)) == ({}, [])
    task = await lab.gateway.human_tasks.show_task(root, asked["task_id"])
    assert (task["state"], task["resolved_by"], task["resolution"]) == ("resolved", "ana", "done")
    # What is taken back already, cannot be, or is another one's, is asked of nobody.
    assert (await requests.request_undo(bot, added))["task_id"] is None
    mailed = await call(lab, "mail", session, name="a")
    assert (await requests.request_undo(bot, mailed))["task_id"] is None
    with pytest.raises(CallNotFound):
        await requests.request_undo(await lab.make_caller("bob", agent="bot", scopes=("book:write",)), added)


async def test_a_request_stays_open_if_nothing_is_undone(
    lab: GatewayLab, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object) -> None:
        raise ConnectionError

    bot, leo = await lab.make_caller("leo", agent="bot", scopes=("book:write",)), await make_person(lab, "leo")
    added = await call(lab, "add", session, by=bot, name="a", text="1")
    await lab.gateway.undo.requests.request_undo(bot, added)
    with monkeypatch.context() as patch:
        patch.setattr(Undo, "_run_steps", die)
        with pytest.raises(ConnectionError):
            await undo(lab, leo, call_id=added)
    assert [each["call_id"] for each in await lab.gateway.undo.requests.list_requests(leo)] == [added]
    await undo(lab, leo, call_id=added)
    assert await lab.gateway.undo.requests.list_requests(leo) == []


async def test_only_who_may_undo_a_call_answers_a_request_about_it(lab: GatewayLab, session: str) -> None:
    bot, ivy = await lab.make_caller("ivy", agent="bot", scopes=("book:write",)), await make_person(lab, "ivy")
    added = await call(lab, "add", session, by=bot, name="a", text="1")
    await lab.gateway.undo.requests.request_undo(bot, added)
    # Sees what others did, and takes back nothing of it.
    auditor = await lab.make_caller("eve", scopes=("book:write", UNDO_SCOPE, AUDIT_SCOPE))
    assert (await undo(lab, auditor, call_id=added))["made"] == []
    assert [each["call_id"] for each in await lab.gateway.undo.requests.list_requests(ivy)] == [added]


async def test_an_agent_asks_again_once_nobody_answered_in_time(lab: GatewayLab, session: str) -> None:
    bot, ana = await lab.make_caller("ana", agent="bot", scopes=("book:write",)), await make_person(lab)
    added = await call(lab, "add", session, by=bot, name="a", text="1")
    requests = lab.gateway.undo.requests
    first = await requests.request_undo(bot, added)
    await lab.db.execute("update deputize.human_tasks set due_at = now() where id = $1", first["task_id"])
    assert await requests.list_requests(ana) == []
    second = await requests.request_undo(bot, added)
    assert [each["task_id"] for each in await requests.list_requests(ana)] == [second["task_id"]]


async def test_a_call_is_asked_for_by_its_id_however_that_is_written(lab: GatewayLab, session: str) -> None:
    bot = await lab.make_caller("kim", agent="bot", scopes=("book:write",))
    added = await call(lab, "add", session, by=bot, name="a", text="1")
    requests = lab.gateway.undo.requests
    first = await requests.request_undo(bot, added)
    assert (await requests.request_undo(bot, f"urn:uuid:{added.upper()}"))["task_id"] == first["task_id"]


async def test_agents_fill_no_list_of_requests_without_end(
    lab: GatewayLab, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo_requests, "_MAX_REQUESTS", 1)
    bot = await lab.make_caller("eve", agent="bot", scopes=("book:write",))
    first, second = [await call(lab, "add", session, by=bot, name=name, text="t") for name in "ab"]
    for _ in range(2):
        await lab.gateway.undo.requests.request_undo(bot, first)
    with pytest.raises(QueueFull):
        await lab.gateway.undo.requests.request_undo(bot, second)
    assert len(await lab.gateway.undo.requests.list_requests(await make_person(lab, "eve"))) == 1


async def test_what_the_caller_may_not_take_back_stays_and_the_plan_says_why(lab: GatewayLab, session: str) -> None:
    await call(lab, "add", session, name="a", text="milk")
    await call(lab, "stamp", session, name="a")
    bob = await lab.make_caller("bob", scopes=("book:write",))
    await call(lab, "add", session, by=bob, name="b", text="bread")
    auditor = await lab.make_caller(scopes=("book:write", UNDO_SCOPE, AUDIT_SCOPE))
    planned = await plan(lab, auditor, session=session)
    assert list_verdicts(planned) == [
        ("add", "blocked", "not_allowed"), ("stamp", "blocked", "not_allowed"), ("add", "ready", None),
    ]  # fmt: skip
    others, stamped, _ = planned["steps"]
    assert others["detail"] == f"call {others['call_id']} is not yours: an administrator can undo it"
    assert stamped["detail"] == "book.unstamp needs scopes that this token lacks: book:stamps"
    assert planned["missing_scopes"] == ["book:stamps"]
    answer = await undo(lab, auditor, session=session)
    assert [each["tool"] for each in answer["made"]] == ["book.remove"]
    assert notes == {"stamp a": "", "b": "bread"}


async def test_a_tool_that_would_refuse_is_asked_before_it_is_promised(lab: GatewayLab, session: str) -> None:
    notes.update(a="1", b="2")
    for name in ("a", "b"):
        await call(lab, "close", session, name=name)
    assert list_verdicts(await plan(lab, session=session)) == [("close", "ready", None)] * 2
    del notes["closed b"]
    planned = await plan(lab, session=session)
    assert list_verdicts(planned) == [("close", "blocked", "would_fail"), ("close", "ready", None)]
    assert planned["steps"][0]["detail"] == "not met: kept: its text was not kept"
    # Whoever cannot undo asks no tool.
    reader = await lab.make_caller(scopes=("book:write",))
    assert (await plan(lab, reader, session=session))["ready"] == 2
    assert [each["state"] for each in (await undo(lab, session=session))["made"]] == ["succeeded"]
    assert notes == {"a": "1"}


async def test_a_step_below_another_one_is_not_asked_before_its_turn(lab: GatewayLab, session: str) -> None:
    notes["a"] = "1"
    await call(lab, "close", session, name="a")
    ana = await lab.make_caller(scopes=("book:write",))
    await call(lab, "reopen", session, by=ana, name="a")
    planned = await plan(lab, session=session)
    assert list_verdicts(planned) == [("reopen", "ready", None), ("close", "ready", None)]
    assert [each["state"] for each in (await undo(lab, session=session))["made"]] == ["succeeded"] * 2
    assert notes == {"a": "1"}


async def test_after_the_window_and_without_its_tool_nothing_is_taken_back(lab: GatewayLab, session: str) -> None:
    added = await call(lab, "add", session, name="a", text="milk")
    pinned = await call(lab, "pin", session, name="a", text="top")
    await lab.db.execute("update deputize.journal set undo_until = now() - interval '1 s' where call_id = $1", added)
    tools = (await lab.runtime.authority.load_tenant("dev")).tools
    version = tools.resolve_version("book.unpin").contract.version
    await lab.gateway.commands.set_state(await lab.make_admin(), "book.unpin", version, LifecycleState.RETIRED)
    reasons = [(await plan(lab, call_id=each))["steps"][0]["reason"] for each in (added, pinned)]
    assert reasons == ["window_over", "no_tool"]


async def test_an_unknown_outcome_is_settled_first(lab: GatewayLab, session: str) -> None:
    failures["a"] = ConnectionError("reset")
    added = await call(lab, "add", session, name="a", text="milk")
    assert await lab.fetch_state(added) == State.UNKNOWN
    assert list_verdicts(await plan(lab, call_id=added)) == [("add", "blocked", "uncertain")]


async def test_an_agents_calls_are_chosen_by_name_and_time(lab: GatewayLab, session: str) -> None:
    before = datetime.now(UTC)
    await call(lab, "add", session, name="a", text="milk")
    await call(lab, "add", session, by=await lab.make_caller(scopes=("book:write",)), name="b", text="bread")
    planned = await plan(lab, agent="bot", since=before)
    assert [each["effects"][0]["scope"] for each in planned["steps"]] == ["a"]
    later = before + timedelta(hours=1)
    assert (await plan(lab, agent="bot", since=later))["steps"] == []
    assert (await plan(lab, session=session, since=later))["steps"] == []
    for wrong in ({}, {"agent": "bot"}, {"call_id": "no"}, {"call_id": lab.runtime.clock.new_id(), "session": "s"}):
        with pytest.raises(MalformedRequest):
            UndoSelection(**wrong)  # type: ignore[arg-type]


async def test_two_people_take_the_same_call_back_once(lab: GatewayLab, session: str) -> None:
    added = await call(lab, "add", session, name="a", text="milk")
    admin = await lab.make_caller("root", scopes=("deputize:admin", "book:write", UNDO_SCOPE))
    planned = await plan(lab, call_id=added)
    seen = await plan(lab, admin, call_id=added)
    selection = UndoSelection(call_id=added)
    # As if the second had planned before the first was done.
    (first,) = (await lab.gateway.undo.execute_undo(await make_person(lab), selection, planned["digest"]))["made"]
    with pytest.raises(UndoPlanChanged):
        await lab.gateway.undo.execute_undo(admin, selection, seen["digest"])
    step = {"entry_id": first["entry_id"], "tool": "book.remove"}
    request = CallRequest(
        tool="book.remove", arguments={"name": "a"}, undoes=step["entry_id"],
        idempotency_key=f"undo:{step['entry_id']}:0",
    )  # fmt: skip
    assert (await lab.gateway.run_call(admin, request)).call_id == first["call_id"]


async def test_what_was_created_under_its_own_number_is_taken_back_beside_later_ones(
    lab: GatewayLab, session: str
) -> None:
    first = await call(lab, "append", session, text="a")
    await call(lab, "append", session, text="b")
    answer = await undo(lab, call_id=first)
    assert [each["state"] for each in answer["made"]] == ["succeeded"]
    assert notes == {"line 1": "b"}


async def test_a_tool_that_takes_back_itself_is_not_repeated(lab: GatewayLab, session: str) -> None:
    await call(lab, "title", session, name="a", text="b")
    assert list_verdicts(await plan(lab, session=session)) == [("title", "blocked", "not_bound")]


async def test_a_flow_is_taken_back_by_its_steps(lab: GatewayLab, session: str) -> None:
    flow_id, caller = lab.runtime.clock.new_id(), await make_person(lab)
    for name in ("a", "b"):
        request = CallRequest(
            tool="book.add", arguments={"name": name, "text": "x"}, idempotency_key=f"{session}-{name}",
            origin=CallOrigin(parent_call_id=flow_id, flow_id=flow_id), flow_depth=1,
        )  # fmt: skip
        await lab.gateway.run_call(caller, request)
    answer = await undo(lab, caller, call_id=flow_id)
    assert [each["state"] for each in answer["made"]] == ["succeeded", "succeeded"]
    assert notes == {}


async def find_entry(lab: GatewayLab, changed: str) -> Any:
    return await lab.db.fetchval("select id from deputize.journal where call_id = $1", changed)


async def take_back(lab: GatewayLab, entry_id: Any, name: str, **request: Any) -> Outcome:
    """Make the call that takes back a change of a note, as an undo makes it."""
    step = CallRequest(
        tool="book.change", arguments={"name": name, "text": "1"}, undoes=str(entry_id), **request,
    )  # fmt: skip
    return await lab.gateway.run_call(await make_person(lab), step)


async def run_worker_once(lab: GatewayLab, call_id: str) -> None:
    with contextlib.suppress(ChangedSince):
        await get_lifecycle(lab.gateway).resume_run("dev", call_id, ActiveRuns(lab.runtime))


async def test_an_undo_that_waited_overwrites_nothing_that_was_changed_meanwhile(lab: GatewayLab, session: str) -> None:
    notes.update(x="1", y="1")
    changed = [await call(lab, "change", session, name=name, text="2") for name in ("x", "y")]
    entries = dict(zip(("x", "y"), [await find_entry(lab, each) for each in changed], strict=True))
    late, free = [(await take_back(lab, entries[name], name, mode="async")).call_id for name in ("x", "y")]
    other = await call(lab, "change", "of bot", name="x", text="3")
    for each in (late, free):
        assert await lab.fetch_state(each) == "queued"
        await run_worker_once(lab, each)
    assert notes == {"x": "3", "y": "1"}
    assert await lab.fetch_state(free) == "succeeded"
    refused = (await lab.gateway.calls.show_call(await make_person(lab), late)).envelope
    # One that begins at once is refused alike.
    at_once = await take_back(lab, entries["x"], "x")
    for error in (orjson.loads(refused.body)["error"], parse_body(at_once)["error"]):
        why = f"bot for ana changed the same later, with book.change in call {other}: undo that first"
        assert (error["slug"], error["message"]) == ("changed-since", why)
    for each in (late, at_once.call_id):
        ended = await lab.fetch_call(each)
        assert (ended["state"], ended["nothing_happened"]) == ("failed", True)
    # Once the later one is taken back, the same undo goes through.
    await undo(lab, call_id=other)
    await undo(lab, session=session)
    assert notes == {"x": "1", "y": "1"}


async def test_an_auditor_sees_what_a_call_of_others_changed_as_its_contract_declares_it(
    lab: GatewayLab, session: str
) -> None:
    added = await call(lab, "add", session, name="eva-maria-braun", text="milk")
    auditor, root = await lab.make_caller("eve", scopes=(AUDIT_SCOPE,)), await lab.make_admin()
    for by, scope in ((auditor, "{name}"), (root, "eva-maria-braun"), (await make_person(lab), "eva-maria-braun")):
        for selection in ({"call_id": added}, {"session": session}):
            (step,) = (await plan(lab, by, **selection))["steps"]
            assert [each["scope"] for each in step["effects"]] == [scope]
            assert ("eva-maria-braun" in str(step)) is (by is not auditor)


async def test_a_token_that_lists_tools_sees_no_others_in_a_plan(lab: GatewayLab, session: str) -> None:
    notes["b"] = "1"
    added = await call(lab, "add", session, name="a", text="milk")
    await call(lab, "change", session, name="b", text="2")
    await call(lab, "remove", "of bot", name="b")
    for scopes in ((AUDIT_SCOPE,), ("book:write", UNDO_SCOPE)):
        other = await lab.make_caller(scopes=scopes, tools={"book.mail": "*"})
        assert (await plan(lab, other, session=session))["steps"] == []
        one = await lab.make_caller(scopes=scopes, tools={"book.add": "*", "book.change": "*"})
        planned = await plan(lab, one, session=session)
        assert [each["tool"] for each in planned["steps"]] == ["book.change", "book.add"]
        # Neither the one that takes it back, nor the one that changed it later.
        assert "book.remove" not in str(planned)
        assert planned["steps"][0]["detail"] == "another caller changed the same later"
    assert list_verdicts(await plan(lab, one, call_id=added)) == [("add", "blocked", "not_allowed")]
    # An agent asks for it all the same: its person may call that tool.
    bot = await lab.make_caller(agent="bot", scopes=("book:write",), tools={"book.add": "*"})
    asked = await lab.gateway.undo.requests.request_undo(bot, added)
    assert asked["task_id"] is not None
    assert "book.remove" not in str(asked)


BOT_ADDS_NOTHING = PolicyFile(
    path="words.cedar",
    text="""@id("bot-adds-nothing") forbid (principal, action, resource == Tool::"book.add")
    when {
      context.agents.contains(Agent::"bot") || (context has undoes && context.undoes.agents.contains(Agent::"bot"))
    };
    """,
)


@contextlib.asynccontextmanager
async def forbidden_words(lab: GatewayLab) -> AsyncIterator[None]:
    admin = await lab.make_admin()
    await lab.gateway.commands.put_policies(admin, [*OPEN_FILES, BOT_ADDS_NOTHING])
    try:
        yield
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


async def test_what_an_agent_may_not_do_it_gets_done_by_no_undo(lab: GatewayLab, session: str) -> None:
    notes.update(a="1", b="2")
    ana = await make_person(lab)
    removed = await call(lab, "remove", session, name="a")
    own = await call(lab, "remove", session, by=ana, name="b")
    async with forbidden_words(lab):
        (step,) = (await undo(lab, call_id=removed))["made"]
        assert (step["state"], step["error"]) == ("denied", "permission-denied")
        # The agent's words, also where a person has sent them in between.
        (step,) = (await undo(lab, call_id=own))["made"]
        assert (step["state"], notes) == ("succeeded", {"b": "2"})
    added = await call(lab, "add", session, name="c", text="3")
    (taken_back,) = (await undo(lab, call_id=added))["made"]
    async with forbidden_words(lab):
        (step,) = (await undo(lab, call_id=taken_back["call_id"]))["made"]
    assert (step["state"], notes) == ("denied", {"b": "2"})


async def test_rules_on_undone_calls_hold_for_an_undo_that_waited(lab: GatewayLab, session: str) -> None:
    notes["a"] = "1"
    removed = await call(lab, "remove", session, name="a")
    request = CallRequest(
        tool="book.add", arguments={"name": "a", "text": "1"}, undoes=str(await find_entry(lab, removed)), mode="async",
        idempotency_key=lab.runtime.clock.new_id(),
    )  # fmt: skip
    queued = (await lab.gateway.run_call(await make_person(lab), request)).call_id
    async with forbidden_words(lab):
        await run_worker_once(lab, queued)
    assert (await lab.fetch_state(queued), notes) == ("denied", {})
    # Without what it takes back, the rules cannot be read.
    forgotten = replace(request, undoes=lab.runtime.clock.new_id(), idempotency_key=lab.runtime.clock.new_id())
    refused = await lab.gateway.run_call(await make_person(lab), forgotten)
    assert parse_body(refused)["error"]["slug"] == "policy-failed"


async def test_a_plan_shows_what_it_sends_and_whose_words_these_are(lab: GatewayLab, session: str) -> None:
    notes["a"] = "the state before"
    removed = await call(lab, "remove", session, name="a")
    (step,) = (await plan(lab, call_id=removed))["steps"]
    assert step["arguments"] == {"name": "a", "text": "the state before"}
    assert step["origins"] == {"name": "arguments", "text": "before"}
    assert step["source_agents"] == ["bot"]
    # An agent that may change a note may not be allowed to read what others wrote.
    bot = await lab.make_caller(agent="bot", scopes=("book:write",))
    asked = (await lab.gateway.undo.requests.request_undo(bot, removed))["plan"]["steps"][0]
    assert asked["arguments"] == {"name": "a", "text": "[redacted]"}
    # The words of an agent stay its words, whoever sends them in between.
    added = await call(lab, "add", session, name="b", text="1")
    (taken_back,) = (await undo(lab, call_id=added))["made"]
    (step,) = (await plan(lab, call_id=taken_back["call_id"]))["steps"]
    assert (step["agents"], step["source_agents"]) == ([], ["bot"])


async def test_the_digest_covers_what_was_shown(lab: GatewayLab, session: str) -> None:
    notes["a"] = "1"
    removed = await call(lab, "remove", session, name="a")
    reader = await lab.make_caller(scopes=("book:write",))
    seen, redacted = await plan(lab, call_id=removed), await plan(lab, reader, call_id=removed)
    assert redacted["steps"][0]["arguments"] == {"name": "a", "text": "[redacted]"}
    with pytest.raises(UndoPlanChanged):
        await lab.gateway.undo.execute_undo(await make_person(lab), UndoSelection(call_id=removed), redacted["digest"])
    await lab.gateway.undo.execute_undo(await make_person(lab), UndoSelection(call_id=removed), seen["digest"])
    assert notes == {"a": "1"}


async def test_of_what_an_earlier_release_kept_it_is_unknown_where_it_is_from(lab: GatewayLab, session: str) -> None:
    added = await call(lab, "add", session, name="a", text="1")
    (row,) = await lab.db.fetch("select id, sealed from deputize.journal where call_id = $1", added)
    keys = await lab.runtime.keys.get("dev")
    kept = orjson.loads(keys.unseal(str(row["id"]), "journal", row["sealed"]))
    del kept["origins"]
    sealed = keys.seal(str(row["id"]), "journal", orjson.dumps(kept))
    await lab.db.execute("update deputize.journal set sealed = $2 where id = $1", row["id"], sealed)
    (step,) = (await plan(lab, call_id=added))["steps"]
    assert (step["arguments"], step["origins"]) == ({"name": "a"}, {"name": "unknown"})
    assert (await undo(lab, call_id=added))["made"][0]["state"] == "succeeded"
