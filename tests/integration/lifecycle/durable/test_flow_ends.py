"""What a flow has done is never lost, whatever ends it and whenever its worker dies.

No worker runs here: the tests resume each run themselves, so that anything can happen between two steps of a worker.
"""

from pathlib import Path
from typing import Any

import pytest

from deputize.core.errors import MalformedRequest, NotRetryable
from deputize.core.outcome import Outcome
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.interfaces.call_request import parse_idempotency_key
from deputize.lifecycle.durable import flow_steps
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.flow_run import _build_request
from deputize.lifecycle.durable.flow_steps import build_step_key, load_flow_steps, plan_calls, save_calls
from deputize.lifecycle.durable.resume import PendingRun, RunNotReady, load_pending_run
from deputize.runs.flow_state import WITHHELD, ReadyCall
from tests.integration.lifecycle.durable.test_flow_run import list_paths, load_envelope, start_flow
from tests.integration.operations.background.test_worker import begin_run, expire_lease
from tests.support.approval_lab import open_approval_lab
from tests.support.flows import call_step, make_flow_tool
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import GatewayLab, open_lab
from tests.support.scripted_tools import TOOLS, list_effects

pytestmark = pytest.mark.requirement("RES-3")

_STEPS = (call_step("one", "put", "/input/tag"), call_step("other", "put", "/input/tag"))
_FLOW = make_flow_tool("two", *_STEPS, on_failure="keep")
_FALLING = make_flow_tool(
    "falling",
    call_step("one", "note", "/input/tag", fallback=[{"tool": "lab.put", "bind": {"tag": "/input/tag"}}]),
)
_ASKING = """
@id("open")
permit (principal, action, resource) unless { resource == Tool::"lab.asking" };

@id("somebody-agrees")
@decision("ask")
permit (principal, action, resource == Tool::"lab.asking");
"""
_RULES = """
@id("no-notes")
permit (principal, action, resource) unless { resource == Tool::"lab.note" };
"""


async def resume(lab: GatewayLab, call_id: str) -> None:
    await get_lifecycle(lab.gateway).resume_run("dev", call_id, ActiveRuns(lab.runtime))


async def make_step(lab: GatewayLab, flow_id: str) -> str:
    """Let a worker go on with the flow, and return the call that it made."""
    await resume(lab, flow_id)
    steps = await load_flow_steps(lab.runtime, "dev", flow_id)
    return list(steps.calls.values())[-1].call_id


async def run_step(lab: GatewayLab, flow_id: str) -> None:
    await resume(lab, await make_step(lab, flow_id))


async def start_two(lab: GatewayLab, tag: str) -> str:
    """Start a flow, and let its first step succeed."""
    flow_id = await start_flow(lab, "two", tag)
    await resume(lab, flow_id)
    await run_step(lab, flow_id)
    return flow_id


async def end_grant(lab: GatewayLab, flow_id: str) -> None:
    await lab.db.execute("update deputize.runs set not_after = now() - interval '1 second' where id = $1", flow_id)


def list_done(envelope: dict[str, Any]) -> list[str]:
    return [each["step"] for each in envelope["error"]["details"]["completed_steps"]]


async def test_whatever_ends_a_flow_its_outcome_names_what_was_done_and_no_step_outlives_it(
    fresh_database: str, tmp_path: Path
) -> None:
    asking = make_flow_tool("asking", *_STEPS, on_failure="keep")
    async with open_approval_lab(
        fresh_database, tmp_path, with_worker=False, rules=_ASKING, tools=(*TOOLS, _FLOW, asking)
    ) as approving:
        lab = approving.lab
        # Its authority ends between two steps.
        ungranted = await start_two(lab, "ends-ungranted")
        await end_grant(lab, ungranted)
        # Its definition is replaced, or its input deleted, while a step is open.
        replaced, deleted = await start_two(lab, "ends-replaced"), await start_two(lab, "ends-deleted")
        unable = "select unable_since from deputize.runs where id = $1"
        for flow_id in (replaced, deleted):
            # Some other worker could not; that this one can counts more.
            await lab.db.execute("update deputize.runs set unable_since = now() where id = $1", flow_id)
            await make_step(lab, flow_id)
            assert await lab.db.fetchval(unable, flow_id) is None
        await lab.db.execute("update deputize.calls set tool_digest = 'sha256:other' where id = $1", replaced)
        await lab.db.execute("delete from deputize.sealed_payloads where id = $1 and kind = 'input'", deleted)
        # Nobody can read what was recorded of this one, either.
        emptied = await start_two(lab, "ends-emptied")
        await make_step(lab, emptied)
        await lab.db.execute("delete from deputize.sealed_payloads where id = $1", emptied)
        for flow_id, slug in (
            (ungranted, "grant-ended"),
            (replaced, "tool-not-found"),
            (deleted, "seal-broken"),
            (emptied, "seal-broken"),
        ):
            await resume(lab, flow_id)
            envelope = await load_envelope(lab, flow_id)
            assert (envelope["state"], envelope["type"]) == ("failed", f"urn:deputize:problem:{slug}"), envelope
            done = list_done(envelope)
            assert (done == ["one"]) if flow_id != emptied else (len(done) == 1)
            # A repeated key must not run the steps again.
            assert await lab.has_claim(flow_id)
            rows = await lab.db.fetch("select state from deputize.calls where flow_id = $1 order by id", flow_id)
            assert [row["state"] for row in rows] in (["succeeded"], ["succeeded", "canceled"])
        # Nothing can take back that all of its steps have succeeded: neither the end of its authority, nor that it
        # would have to be approved anew.
        completed = await start_two(lab, "ends-completed")
        approved, request_id = await approving.request_approval("asking", "ends-approved")
        await approving.approve(await approving.make_approver("ada"), request_id)
        await resume(lab, approved)
        await run_step(lab, approved)
        for flow_id in (completed, approved):
            await run_step(lab, flow_id)
        await end_grant(lab, completed)
        await approving.put_policies(_ASKING.replace("somebody", "two-people"))
        await lab.db.execute(
            "update deputize.approvals set expires_at = now() - interval '1 minute' where call_id = $1", approved
        )
        for flow_id in (completed, approved):
            await resume(lab, flow_id)
            assert (await load_envelope(lab, flow_id))["state"] == "succeeded"
        # Unless it kills those who record it.
        killing = await start_two(lab, "ends-killing")
        await run_step(lab, killing)
        await begin_run(lab, killing)
        await expire_lease(lab, lab)
        await lab.db.execute("update deputize.runs set takeovers = 100 where id = $1", killing)
        async with open_lab(fresh_database, tmp_path, tools=(*TOOLS, _FLOW, asking)) as other:
            await resume(other, killing)
            envelope = await load_envelope(other, killing)
            assert (envelope["state"], list_done(envelope)) == ("failed", ["one", "other"])


async def test_a_canceled_flow_is_run_again_only_if_it_did_nothing(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path, tools=(*TOOLS, _FLOW)) as lab:
        caller, lifecycle = await lab.make_caller(), get_lifecycle(lab.gateway)
        acted = await start_two(lab, "cancel-acted")
        idle = await start_flow(lab, "two", "cancel-idle")
        await resume(lab, idle)
        for flow_id in (acted, idle):
            await make_step(lab, flow_id)
            await lab.gateway.cancellations.cancel_call(caller, flow_id)
            await resume(lab, flow_id)
            assert await lab.fetch_state(flow_id) == "canceled"
        with pytest.raises(NotRetryable):
            await lifecycle.retry_call(caller, acted)
        assert (await lifecycle.retry_call(caller, idle)).is_accepted
        assert (await list_paths(lab, acted), len(list_effects("cancel-acted"))) == (
            {"one": "succeeded", "other": "canceled"},
            1,
        )


async def plan_step(lab: GatewayLab, tag: str) -> PendingRun:
    """As a worker that is about to make the call of a flow, and gets no further."""
    flow_id = await start_flow(lab, "falling", tag)
    await resume(lab, flow_id)
    run = await load_pending_run(lab.runtime, "dev", flow_id)
    assert run is not None
    assert await plan_calls(lab.runtime, run.validated.call, run.epoch, "other", {"one": "lab.note"})
    return run


async def make_planned_call(lab: GatewayLab, run: PendingRun) -> Outcome:
    """As that worker makes it, and dies before it has recorded it; the call itself goes on."""
    flow, call = run.validated.contract.flow, run.validated.call
    assert flow is not None
    step = flow.steps[0]
    ready = ReadyCall(path="one", step="one", call=step.calls[0], arguments=call.request.arguments, time_share=1.0)
    made = await lab.runtime.run_call(lab.runtime, call.caller, _build_request(run, ready))
    if made.is_accepted:
        await resume(lab, made.call_id)
    return made


async def test_a_call_of_a_worker_that_died_before_it_recorded_it_counts_more_than_a_refusal(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(fresh_database, tmp_path, tools=(*TOOLS, _FALLING)) as lab:
        stopped, refused = await plan_step(lab, "lost-stopped"), await plan_step(lab, "lost-refused")
        late, unmade = await plan_step(lab, "lost-late"), await plan_step(lab, "lost-unmade")
        ids = [each.validated.call.call_id for each in (stopped, refused, late, unmade)]
        for run in (stopped, refused):
            await make_planned_call(lab, run)
        # It has to stop, but the call is found by its key, and was all there was to do.
        await end_grant(lab, ids[0])
        await resume(lab, ids[0])
        assert (await load_envelope(lab, ids[0]))["state"] == "succeeded"
        # As long as a worker may be making a call, no refusal is recorded, and the flow does not end.
        await end_grant(lab, ids[3])
        with pytest.raises(RunNotReady):
            await resume(lab, ids[3])
        with monkeypatch.context() as patch:
            patch.setattr(flow_steps, "PLAN_SECONDS", 0.0)
            await resume(lab, ids[3])
        assert await lab.fetch_state(ids[3]) == "denied"
        # Whoever comes too late makes no call of a flow that has ended.
        assert not await plan_calls(lab.runtime, unmade.validated.call, unmade.epoch, "late", {"one": "lab.note"})
        # Also if it stood still since it planned that call.
        too_late = await make_planned_call(lab, unmade)
        assert (await lab.fetch_state(too_late.call_id), list_effects("lost-unmade")) == ("canceled", [])
        twice = await plan_step(lab, "lost-twice")
        await lab.gateway.commands.put_policies(await lab.make_admin(), [PolicyFile(path="rules.cedar", text=_RULES)])
        with pytest.raises(RunNotReady):
            await resume(lab, ids[2])
        assert await list_paths(lab, ids[2]) == {}
        # Now nobody may make that call any more, but it was made: there is no fallback.
        await resume(lab, ids[1])
        await resume(lab, ids[1])
        assert (await load_envelope(lab, ids[1]))["state"] == "succeeded"
        assert [each.tool for each in list_effects("lost-refused")] == ["note"]
        # What one worker plans after another one was refused keeps the flow open, too.
        call, tools = twice.validated.call, {"one": "lab.note"}
        refusal = await make_planned_call(lab, twice)
        assert await save_calls(lab.runtime, call, "other", tools, {"one": refusal}, ())
        assert await plan_calls(lab.runtime, call, twice.epoch, "another", tools)
        steps = await load_flow_steps(lab.runtime, "dev", call.call_id)
        assert (await list_paths(lab, call.call_id), steps.plans) == ({"one": "denied"}, tools)


def test_no_client_can_make_the_call_of_a_step() -> None:
    with pytest.raises(MalformedRequest):
        parse_idempotency_key(build_step_key("01890000-0000-7000-8000-000000000000", "one"))


async def test_what_a_step_returned_is_decrypted_once_and_unknown_once_it_is_erased(
    module_database: str, tmp_path: Path
) -> None:
    async with open_lab(module_database, tmp_path, tools=[*TOOLS, _FLOW]) as lab:
        flow_id = await start_two(lab, "opened-once")
        (before,) = (await load_flow_steps(lab.runtime, "dev", flow_id)).calls.values()
        assert before.record.result is not WITHHELD
        stored = "update deputize.sealed_payloads set ciphertext = '\\x00' where id = $1 and kind = 'outcome'"
        await lab.db.execute(stored, before.call_id)
        (again,) = (await load_flow_steps(lab.runtime, "dev", flow_id)).calls.values()
        assert again.record == before.record
        await lab.db.execute("delete from deputize.sealed_payloads where id = $1", before.call_id)
        (erased,) = (await load_flow_steps(lab.runtime, "dev", flow_id)).calls.values()
        assert erased.record.result is WITHHELD
