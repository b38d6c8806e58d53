"""What one call does is done once: by whichever key it is made, retried or taken back, and however long ago."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.call import CallOrigin, CallRequest
from deputize.core.caller import UNDO_SCOPE, Caller, Epochs
from deputize.core.decision import Decision
from deputize.core.errors import NotRetryable, ToolPrecondition
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.flow_steps import load_flow_steps
from deputize.lifecycle.recording.settlement import Settlement, load_unknown_call, settle_unknown_call
from deputize.operations.gateway import UndoSelection
from deputize.store.queries import load_statements
from tests.support import notebook_tools
from tests.support.flows import call_step, make_flow_tool
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body, wait_until
from tests.support.notebook_tools import failures, gates, notes
from tests.support.scripted_tools import TOOLS, list_effects, raise_error, set_behaviour

_RECONCILIATION = load_statements("reconciliation")
_FLOW = make_flow_tool("once", call_step("one", "note", "/input/tag"), call_step("two", "note", "/input/tag"))
_TOOLS = [*TOOLS, *notebook_tools.TOOLS, _FLOW]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab"), tools=_TOOLS) as lab:
        yield lab


@pytest.fixture(autouse=True)
def book() -> None:
    notes.clear()
    failures.clear()


async def make_person(lab: GatewayLab, user: str = "ana") -> Caller:
    return await lab.make_caller(user, scopes=("book:write", "lab:write", UNDO_SCOPE))


async def make_agent(lab: GatewayLab) -> Caller:
    return await lab.make_caller(agent="bot", scopes=("book:write", "lab:write"))


async def change(lab: GatewayLab, name: str) -> str:
    """Let an agent change a note; return its call."""
    notes[name] = "1"
    request = CallRequest(
        tool="book.change", arguments={"name": name, "text": "2"}, idempotency_key=lab.runtime.clock.new_id()
    )
    return (await lab.gateway.run_call(await make_agent(lab), request)).call_id


async def take_back(lab: GatewayLab, changed: str, name: str, by: Caller | None = None, **request: Any) -> Outcome:
    entry_id = await lab.db.fetchval("select id from deputize.journal where call_id = $1", changed)
    step = CallRequest(tool="book.change", arguments={"name": name, "text": "1"}, undoes=str(entry_id), **request)
    return await lab.gateway.run_call(by or await make_person(lab), step)


async def plan(lab: GatewayLab, call_id: str) -> tuple[str, str | None]:
    (step,) = (await lab.gateway.undo.plan_undo(await make_person(lab), UndoSelection(call_id=call_id)))["steps"]
    return step["verdict"], step["reason"]


async def run_worker_once(lab: GatewayLab, call_id: str) -> None:
    await get_lifecycle(lab.gateway).resume_run("dev", call_id, ActiveRuns(lab.runtime))


async def end_windows(lab: GatewayLab) -> None:
    """As if the time of every key were over."""
    await lab.db.execute("update deputize.calls set window_ends = now() - interval '1 second' where ended_at < now()")


async def count_undos(lab: GatewayLab, changed: str) -> int:
    return int(
        await lab.db.fetchval(
            """select count(*) from deputize.journal u join deputize.journal e on e.id = u.undoes
               where e.call_id = $1 and u.number = 0 and u.certainty = 'happened'""",
            changed,
        )
    )


@pytest.mark.parametrize("first", ["retry", "undo"])
async def test_a_retried_undo_and_another_one_are_one(lab: GatewayLab, first: str) -> None:
    changed, ana, retry = await change(lab, first), await make_person(lab), lab.gateway.retry_call
    canceled = (await take_back(lab, changed, first, mode="async")).call_id
    await lab.gateway.cancellations.cancel_call(ana, canceled)
    bob = await lab.make_caller("bob", scopes=("book:write", UNDO_SCOPE))
    if first == "retry":
        made = await retry(ana, canceled)
        other = await take_back(lab, changed, first, by=bob, mode="async")
    else:
        made = await take_back(lab, changed, first, by=bob, mode="async")
        other = await retry(ana, canceled)
    assert made.call_id == other.call_id != canceled
    # One that does not wait is told that the other is on its way.
    at_once = await take_back(lab, changed, first)
    assert (error_slug(at_once), parse_body(at_once)["error"]["details"]["call_id"]) == ("in-flight", made.call_id)
    await run_worker_once(lab, made.call_id)
    await end_windows(lab)
    replayed = [await take_back(lab, changed, first), await retry(ana, canceled)]
    assert [each.call_id for each in replayed] == [made.call_id] * 2
    assert (await count_undos(lab, changed), notes[first]) == (1, "1")


@pytest.mark.parametrize("settled", [True, False])
async def test_an_undo_whose_gateway_died_stays_an_undo(lab: GatewayLab, settled: bool) -> None:
    name = f"lost-{settled}"
    changed = await change(lab, name)
    async with open_lab(lab.dsn, lab.folder, tools=_TOOLS) as dead_lab:
        gates[name] = gate = threading.Event()
        running = asyncio.create_task(take_back(dead_lab, changed, name))
        try:
            lost: str | None = None

            async def has_begun() -> bool:
                nonlocal lost
                lost = await lab.db.fetchval("select id::text from deputize.calls where state = 'running'")
                return lost is not None and name not in gates

            await wait_until(has_begun)
            assert lost is not None
            await lab.expire_lease(dead_lab, lost)
            assert await lab.run_sweeper() == 1
            assert await plan(lab, changed) == ("blocked", "undo_uncertain")
            if settled:
                await settle(lab, lost)
                assert await plan(lab, changed) == ("done", "already_undone")
            await end_windows(lab)
            again = await take_back(lab, changed, name)
            assert (again.call_id, again.state) == (lost, State.SUCCEEDED if settled else State.UNKNOWN)
        finally:
            gate.set()
            await running


async def settle(lab: GatewayLab, call_id: str) -> None:
    """Settle an unknown call: it happened."""
    runtime = lab.runtime
    async with runtime.store.write_transaction() as connection:
        row = await connection.fetchrow(_RECONCILIATION["load_unknown_call"], "dev", call_id)
        assert row is not None
        settlement = Settlement(
            actual_outcome="happened", by=Caller(tenant="dev", user=""), source="a test", summary="it happened",
            decision=Decision(rules=("test",), epochs=Epochs()),
        )  # fmt: skip
        assert await settle_unknown_call(runtime, connection, await load_unknown_call(runtime, "dev", row), settlement)


async def test_a_repeated_key_and_a_retry_make_one_effect(lab: GatewayLab) -> None:
    agent, person = await make_agent(lab), await make_person(lab)
    set_behaviour("order", raise_error(ToolPrecondition("the bank is closed")))
    failed = await lab.call("note", "order", key="order", by=agent, mode="async")
    await run_worker_once(lab, failed.call_id)
    set_behaviour("order", lambda _: {"value": "done"})
    repeated = await lab.call("note", "order", key="order", by=agent, mode="async")
    assert repeated.call_id != failed.call_id
    retried = await lab.gateway.retry_call(person, failed.call_id)
    await run_worker_once(lab, repeated.call_id)
    await end_windows(lab)
    later = await lab.gateway.retry_call(person, failed.call_id)
    assert [retried.call_id, later.call_id] == [repeated.call_id] * 2
    assert (later.state, later.is_replay) == (State.SUCCEEDED, True)
    assert len(list_effects("order")) == 2


async def test_a_retry_has_the_key_that_its_agent_repeats(lab: GatewayLab) -> None:
    agent = await make_agent(lab)
    canceled = await lab.call("note", "again", key="again", by=agent, mode="async")
    await lab.gateway.cancellations.cancel_call(agent, canceled.call_id)
    retried = await lab.gateway.retry_call(await make_person(lab), canceled.call_id)
    assert retried.call_id != canceled.call_id
    assert (await lab.call("note", "again", key="again", by=agent, mode="async")).call_id == retried.call_id


async def test_an_agent_retries_no_undo_and_nobody_a_step_of_a_flow_that_goes_on(lab: GatewayLab) -> None:
    agent, person = await make_agent(lab), await make_person(lab)
    changed = await change(lab, "agent")
    canceled = (await take_back(lab, changed, "agent", by=agent, mode="async")).call_id
    await lab.gateway.cancellations.cancel_call(agent, canceled)
    with pytest.raises(NotRetryable, match="ask the person it acts for"):
        await lab.gateway.retry_call(agent, canceled)
    flow = (await lab.call("once", "flow", key="flow", by=person)).call_id
    await run_worker_once(lab, flow)
    await run_worker_once(lab, flow)
    (step,) = (await load_flow_steps(lab.runtime, "dev", flow)).calls.values()
    await lab.gateway.cancellations.cancel_call(person, step.call_id)
    with pytest.raises(NotRetryable, match="a flow that has not ended"):
        await lab.gateway.retry_call(person, step.call_id)


async def test_a_call_that_names_a_flow_is_none_of_its_steps(lab: GatewayLab) -> None:
    flow_id, eve = lab.runtime.clock.new_id(), await lab.make_caller("eve", scopes=("book:write",))
    request = CallRequest(
        tool="book.add", arguments={"name": "eve's", "text": "x"}, idempotency_key="eve", step="b",
        origin=CallOrigin(parent_call_id=flow_id, flow_id=flow_id),
    )  # fmt: skip
    made = await lab.gateway.run_call(eve, request)
    planned = await lab.gateway.undo.plan_undo(await lab.make_admin(), UndoSelection(call_id=flow_id))
    assert planned["steps"] == []
    # It stays in the audit entry.
    assert (await lab.fetch_entries(made.call_id))[0]["parent"] == flow_id
