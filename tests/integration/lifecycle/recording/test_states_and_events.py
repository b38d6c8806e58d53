"""Every state and event of the tool standard is emitted by real calls, where the table says so and nowhere else."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize import ToolContext
from deputize.core.call import CallOrigin
from deputize.core.canonical import canonicalize
from deputize.core.errors import CallNotFound, ToolFailed
from deputize.core.hooks import HookCall, LoadedHook
from deputize.core.mcp.elicitation import InputRequests
from deputize.core.states import State, ToolEvent, require_path
from deputize.evidence.agent_tool_events import EVENT_EMISSIONS, STATE_EMISSIONS, list_events
from deputize.evidence.entry_fields import ENTRY_FIELDS
from tests.support.approval_lab import ApprovalLab, open_approval_lab
from tests.support.gateway_lab import GatewayLab
from tests.support.scripted_tools import Gate, raise_error, set_behaviour

pytestmark = [pytest.mark.requirement("INV-2"), pytest.mark.requirement("GOV-5")]


async def _say_nothing(call: HookCall, *end: Any) -> None:
    return None


PARENT_ID = "0198c0de-0000-7000-8000-000000000001"
ORIGIN = CallOrigin(native_call_id="toolu_1", parent_call_id=PARENT_ID, flow_id="f-1")
QUESTION = {
    "mode": "form",
    "message": "Which one?",
    "requestedSchema": {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]},
}
HOOKS = tuple(
    LoadedHook(name=moment, moment=moment, function=_say_nothing, is_async=True, tools="lab.assign", seconds=60.0)
    for moment in ("before", "after")
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApprovalLab]:
    async with open_approval_lab(module_database, tmp_path_factory.mktemp("house"), hooks=HOOKS) as opened:
        yield opened


async def _refuse_and_fail(lab: GatewayLab) -> None:
    assert (await lab.call("nowhere", "x")).state is State.BLOCKED
    assert (await lab.call("brief_look", {"tag": 7, "other": 1})).state is State.VALIDATION_FAILED
    assert (await lab.call("brief_look", {"tag": 2**60})).state is State.SCHEMA_PARSE_FAILED
    set_behaviour("events-fail", raise_error(ToolFailed("no")))
    assert (await lab.call("assign", "events-fail")).state is State.FAILED
    for tool, state in (("brief_look", State.TIMED_OUT), ("brief_note", State.UNKNOWN)):
        set_behaviour("events-slow", Gate())
        assert (await lab.call(tool, "events-slow", key="events-slow")).state is state
    set_behaviour(
        "events-ask",
        lambda _: InputRequests(
            server="crm",
            requests={"q": {"method": "elicitation/create", "params": QUESTION}},
        ),
    )
    assert (await lab.call("brief_look", "events-ask")).state is State.NEEDS_INPUT


async def _decide(approval_lab: ApprovalLab) -> None:
    call_id, request_id = await approval_lab.request_approval("put", "events-approved")
    await approval_lab.approve(await approval_lab.make_approver("bo"), request_id)
    await approval_lab.lab.wait_for_state(call_id, "succeeded")
    _, request_id = await approval_lab.request_approval("note", "events-denied")
    await approval_lab.approvals.deny(await approval_lab.make_approver("bo"), request_id, reason="no")
    call_id, _ = await approval_lab.request_approval("put", "events-canceled")
    await approval_lab.lab.gateway.cancellations.cancel_call(await approval_lab.lab.make_caller(), call_id)


async def _run_durably(lab: GatewayLab) -> set[ToolEvent]:
    """Make a run that reports, and a call that outlasts its caller; return the events of the run's stream."""

    async def report(context: ToolContext) -> dict[str, str]:
        context.progress(1, 2, "half")
        context.partial({"value": "half"})
        return {"value": "all"}

    set_behaviour("events-run", report)
    run = await lab.call("assign", "events-run", key="events-run", mode="async")
    gate = Gate()
    set_behaviour("events-yield", gate)
    late = await lab.call("assign", "events-yield", key="events-yield", deadline_ms=4000, may_continue=True)
    assert late.is_accepted
    gate.open.set()
    stream = await lab.gateway.calls.follow_call(await lab.make_caller(), run.call_id)
    events = {each.event async for each in stream}
    await lab.wait_for_state(late.call_id, "succeeded")
    return events


async def test_what_is_emitted_is_what_the_table_says(approval_lab: ApprovalLab) -> None:
    lab = approval_lab.lab
    set_behaviour("events-enrol", lambda _: {"value": "ok", "access_token": "tok-9f8e7d"})
    arguments = {"tag": "events-enrol", "email": "ana@secret.example", "password": "hunter2"}
    assert (await lab.call("enrol", arguments, key="events-enrol")).state is State.SUCCEEDED
    async with asyncio.timeout(120):
        await _refuse_and_fail(lab)
        await _decide(approval_lab)
        streamed = await _run_durably(lab)
    rows = await lab.db.fetch("select entry from deputize.audit_entries order by id")
    entries = [orjson.loads(row["entry"]) for row in rows]
    assert all(canonicalize(entry) == row["entry"] for entry, row in zip(entries, rows, strict=True))
    assert {name for entry in entries for name in entry} <= ENTRY_FIELDS.keys()
    assert {state for entry in entries for state in entry.get("states", ())} == set(STATE_EMISSIONS)
    recorded = {event for entry in entries for event in list_events(entry)}
    assert recorded == {event for event, each in EVENT_EMISSIONS.items() if each.source == "audit entry"}
    assert {event for event, each in EVENT_EMISSIONS.items() if each.source == "event stream"} <= streamed
    _check_paths(entries)


def _check_paths(entries: list[dict[str, Any]]) -> None:
    """The entries of a call, one after the other, are one path from its request to its end."""
    paths: dict[str, list[State]] = defaultdict(list)
    for entry in entries:
        if "call" in entry:
            paths[entry["call"]] += [State(each) for each in entry.get("states", ())]
    assert len(paths) > 10
    for path in paths.values():
        assert path[0] is State.PLANNED
        require_path(None, path)


async def test_an_approved_write_names_its_approval_and_how_it_was_executed(approval_lab: ApprovalLab) -> None:
    call_id, request_id = await approval_lab.request_approval("put", "named")
    await approval_lab.approve(await approval_lab.make_approver("bo"), request_id)
    await approval_lab.lab.wait_for_state(call_id, "succeeded")
    entries = await approval_lab.lab.fetch_entries(call_id)
    assert {entry["approval"] for entry in entries} == {request_id}
    begun, end = entries[2], entries[3]
    assert (begun["mutation_class"], begun["scopes"]) == ("write-reversible", ["update lab.values {tag}"])
    assert begun["operation"] == "tests.support.scripted_tools:put"
    assert (end["attempts"], end["summary"]) == (1, {"bytes": len('{"value":"named"}'), "items": 1, "type": "object"})
    assert 0 <= end["latency_us"] < 60_000_000


async def test_an_entry_of_the_previous_release_is_read_like_any_other(approval_lab: ApprovalLab) -> None:
    lab = approval_lab.lab
    caller, call_id = await lab.make_caller(), lab.runtime.clock.new_id()
    entry = {
        "arguments": "5f", "call": call_id, "caller": list(caller.pseudonyms), "id": call_id, "kind": "read",
        "outcome": "succeeded", "result": "6a", "rules": ["open"], "tenant": "dev", "time": "2026-01-01T00:00:00.000Z",
        "tool": "lab.brief_look", "trace": "0" * 32, "v": 1, "version": "1.0.0",
    }  # fmt: skip
    await lab.db.execute(
        "insert into deputize.audit_entries (tenant, id, call_id, entry) values ('dev', $1, $1, $2)",
        call_id,
        canonicalize(entry),
    )
    shown = (await lab.gateway.calls.show_call(caller, call_id)).envelope.fields
    assert (shown["state"], shown["tool"]["name"]) == ("succeeded", "lab.brief_look")
    explained = await lab.gateway.explanations.explain_decision(caller, call_id)
    assert [rule["id"] for rule in explained["rules"]] == ["open"]
    [listed] = await lab.gateway.calls.describe_entries(caller, call_id)
    assert (listed["events"], listed["entry"]) == ((ToolEvent.RESULT_CREATED, ToolEvent.SUCCEEDED), entry)
    assert (listed["user"], listed["agents"]) == ("ana", [])


async def test_the_entries_of_a_call_are_for_its_maker_and_administrators(approval_lab: ApprovalLab) -> None:
    lab = approval_lab.lab
    call_id = (await lab.call("assign", "listed", key="listed", origin=ORIGIN)).call_id
    for reader in (await lab.make_caller(), await lab.make_admin()):
        listed = await lab.gateway.calls.describe_entries(reader, call_id)
        assert [each["entry"]["kind"] for each in listed] == ["intent", "outcome"]
        assert listed[1]["events"][-1] is ToolEvent.SUCCEEDED
        for each in listed:
            entry = each["entry"]
            assert (entry["native_call"], entry["parent"], entry["flow"]) == ("toolu_1", PARENT_ID, "f-1")
    for stranger, wanted in ((await lab.make_caller("eve"), call_id), (await lab.make_caller(), PARENT_ID)):
        with pytest.raises(CallNotFound):
            await lab.gateway.calls.describe_entries(stranger, wanted)
