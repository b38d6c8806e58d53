"""A flow makes the calls of its steps, each once, and its outcome names them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from deputize.core.contract.tools import FlowTool
from deputize.core.errors import CallNotFound, MalformedRequest, ToolFailed, ToolPrecondition
from deputize.lifecycle.durable.flow_steps import load_flow_steps
from tests.integration.operations.background.test_worker import begin_run, expire_lease, open_worker_lab
from tests.support.approval_lab import open_approval_lab
from tests.support.flows import call_step, make_flow_tool
from tests.support.gateway_lab import GatewayLab, open_lab, wait_until
from tests.support.scripted_tools import TOOLS, Gate, list_effects, raise_error, set_behaviour

# Each starts a gateway of its own. What follows from which records is tested quickly in tests/unit/runs.
pytestmark = pytest.mark.requirement("RES-3")

VERSION = TOOLS[0].contract.version


@asynccontextmanager
async def open_flow_lab(dsn: str, folder: Path, *flows: FlowTool) -> AsyncIterator[GatewayLab]:
    async with open_worker_lab(dsn, folder, tools=(*TOOLS, *flows)) as (lab, _):
        yield lab


async def start_flow(lab: GatewayLab, name: str, tag: str = "t", **request: Any) -> str:
    outcome = await lab.call(name, tag, key=f"{name}-{tag}", **request)
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def load_envelope(lab: GatewayLab, call_id: str) -> dict[str, Any]:
    view = await lab.gateway.calls.show_call(await lab.make_caller(), call_id)
    fields: dict[str, Any] = orjson.loads(view.envelope.body)
    return fields


async def run_flow(lab: GatewayLab, name: str, tag: str = "t", state: str = "succeeded") -> dict[str, Any]:
    call_id = await start_flow(lab, name, tag)
    await wait_for_end(lab, call_id)
    envelope = await load_envelope(lab, call_id)
    assert envelope["state"] == state, envelope
    return envelope


async def wait_for_end(lab: GatewayLab, call_id: str) -> None:
    async def has_ended() -> bool:
        return (await lab.fetch_call(call_id))["ended_at"] is not None

    await wait_until(has_ended)


async def list_paths(lab: GatewayLab, call_id: str) -> dict[str, str]:
    steps = await load_flow_steps(lab.runtime, "dev", call_id)
    return {path: str(each.record.state) for path, each in steps.calls.items()}


def answer(value: Any) -> Any:
    return lambda _: {"value": value}


async def test_the_result_of_a_step_is_the_argument_of_a_later_one(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool(
        "chain",
        call_step("first", "look", "/input/tag", version=VERSION),
        call_step("second", "put", "/steps/first/value"),
        output={"last": "/steps/second/value"},
    )
    set_behaviour("chain-in", answer("chain-middle"))
    set_behaviour("chain-middle", answer("chain-out"))
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        envelope = await run_flow(lab, "chain", "chain-in")
        assert envelope["result"] == {"last": "chain-out"}
        steps = await load_flow_steps(lab.runtime, "dev", envelope["call_id"])
        for path, each in steps.calls.items():
            entry = (await lab.fetch_entries(each.call_id))[0]
            assert (entry["flow"], entry["parent"]) == (envelope["call_id"], envelope["call_id"]), path
        row = await lab.fetch_call(steps.calls["second"].call_id)
        assert (row["caller_user"], str(row["flow_id"])) == ("ana", envelope["call_id"])


async def test_a_failure_names_the_step_what_was_done_and_its_results(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool(
        "failing",
        call_step("done", "put", "fail-done"),
        call_step("broken", "put", "fail-broken"),
        call_step("never", "put", "fail-never"),
    )
    set_behaviour("fail-done", answer("kept"))
    set_behaviour("fail-broken", raise_error(ToolFailed("no such account")))
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        envelope = await run_flow(lab, "failing", state="failed")
        assert envelope["type"] == "urn:deputize:problem:composite-partial-failure"
        assert "the step broken failed: no such account" in envelope["detail"]
        details = envelope["error"]["details"]
        assert details["failed_step"] == "broken"
        assert [each["step"] for each in details["completed_steps"]] == ["done"]
        assert details["partial_results"] == {"done": {"value": "kept"}}
        assert list_effects("fail-never") == []


@pytest.mark.nightly
async def test_a_condition_chooses_between_steps(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool(
        "branching",
        call_step("asked", "look", "/input/tag"),
        {
            "name": "large",
            "when": "/steps/asked/value >= 100",
            "steps": [call_step("big", "put", "branch-big")],
            "otherwise": [call_step("small", "put", "branch-small")],
        },
        output={"big": "/steps/big/value", "small": "/steps/small/value"},
    )
    for tag in ("branch-big", "branch-small"):
        set_behaviour(tag, answer(tag))
    set_behaviour("branch-100", answer(100))
    set_behaviour("branch-99", answer(99))
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        assert (await run_flow(lab, "branching", "branch-100"))["result"] == {"big": "branch-big"}
        assert (await run_flow(lab, "branching", "branch-99"))["result"] == {"small": "branch-small"}


async def test_parallel_steps_run_beside_each_other(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool(
        "side_by_side",
        {"name": "both", "parallel": [call_step("left", "look", "par-left"), call_step("right", "look", "par-right")]},
        output={"all": "/steps/both", "left": "/steps/left/value"},
    )
    gates = {"par-left": Gate({"value": 1}), "par-right": Gate({"value": 2})}
    for tag, gate in gates.items():
        set_behaviour(tag, gate)
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        call_id = await start_flow(lab, "side_by_side")
        for gate in gates.values():
            await gate.began.wait()
        for gate in gates.values():
            gate.open.set()
        await lab.wait_for_state(call_id, "succeeded")
        assert (await load_envelope(lab, call_id))["result"] == {"all": [{"value": 1}, {"value": 2}], "left": 1}


@pytest.mark.nightly
async def test_the_first_success_counts_and_the_others_are_canceled(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool(
        "race",
        {
            "name": "any",
            "join": "first",
            "parallel": [call_step("slow", "look", "race-slow"), call_step("quick", "look", "race-quick")],
        },
    )
    gate = Gate()
    set_behaviour("race-slow", gate)
    set_behaviour("race-quick", answer("won"))
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        envelope = await run_flow(lab, "race")
        assert envelope["result"] == {"value": "won"}
        assert await list_paths(lab, envelope["call_id"]) == {"slow": "canceled", "quick": "succeeded"}


@pytest.mark.nightly
async def test_a_fallback_is_called_only_if_nothing_happened(fresh_database: str, tmp_path: Path) -> None:
    def flow(name: str, tag: str) -> FlowTool:
        return make_flow_tool(
            name,
            call_step(
                "one",
                "note",
                tag,
                fallback=[
                    {"tool": "lab.note", "version": VERSION, "bind": {"tag": "/input/tag"}, "constants": {"count": 2}},
                ],
            ),
        )

    set_behaviour("fall-refused", raise_error(ToolPrecondition("closed today")))
    set_behaviour("fall-broken", raise_error(ToolFailed("half done")))
    set_behaviour("fall-other", answer("other"))
    async with open_flow_lab(
        fresh_database, tmp_path, flow("falls", "fall-refused"), flow("fails", "fall-broken")
    ) as lab:
        assert (await run_flow(lab, "falls", "fall-other"))["result"] == {"value": "other"}
        envelope = await run_flow(lab, "fails", "fall-other", state="failed")
        assert envelope["error"]["details"]["failed_step"] == "one"
        assert len(list_effects("fall-other")) == 1


@pytest.mark.nightly
async def test_a_list_is_mapped_and_a_call_is_repeated_until_its_condition_holds(
    fresh_database: str, tmp_path: Path
) -> None:
    flow = make_flow_tool(
        "repeating",
        call_step("tags", "look", "/input/tag"),
        {
            "name": "each",
            "tool": "lab.look",
            "bind": {"tag": "/item"},
            "map": {"over": "/steps/tags/value", "max_items": 5},
        },
        call_step("poll", "look", "repeat-poll", loop={"until": '/steps/poll/value == "ready"', "max_rounds": 5}),
        output={"each": "/steps/each", "poll": "/steps/poll/value"},
    )
    answers = iter(("no", "no", "ready"))
    set_behaviour("repeat-in", answer(["repeat-a", "repeat-b"]))
    set_behaviour("repeat-a", answer("A"))
    set_behaviour("repeat-b", answer("B"))
    set_behaviour("repeat-poll", lambda _: {"value": next(answers)})
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        envelope = await run_flow(lab, "repeating", "repeat-in")
        assert envelope["result"] == {"each": [{"value": "A"}, {"value": "B"}], "poll": "ready"}
        paths = await list_paths(lab, envelope["call_id"])
        assert list(paths) == ["tags", "each/0", "each/1", "poll/1", "poll/2", "poll/3"]


async def test_a_step_can_be_a_flow(fresh_database: str, tmp_path: Path) -> None:
    inner = make_flow_tool("inner", call_step("put", "put", "/input/tag"))
    outer = make_flow_tool("outer", call_step("nested", "inner", "/input/tag"), timeout=72_000)
    set_behaviour("nest", answer("deep"))
    # The outer one is registered after the one that it names, in whichever order they are given.
    async with open_flow_lab(fresh_database, tmp_path, outer, inner) as lab:
        envelope = await run_flow(lab, "outer", "nest")
        assert envelope["result"] == {"value": "deep"}
        # What the inner step changed is in the journal of the flow that was called, and nothing else is.
        rows = await lab.db.fetch("select tool, flow_id from deputize.journal where tenant = 'dev'")
        assert [tuple(row) for row in rows] == [("lab.put", envelope["call_id"])]


@pytest.mark.nightly
async def test_canceling_a_flow_cancels_its_open_steps(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("stopped", call_step("begun", "look", "stop-gate"), call_step("later", "put", "stop-later"))
    gate = Gate()
    set_behaviour("stop-gate", gate)
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        call_id = await start_flow(lab, "stopped")
        await gate.began.wait()
        reply = await lab.gateway.cancellations.cancel_call(await lab.make_caller(), call_id)
        assert reply["cancel"] == "asked"
        await lab.wait_for_state(call_id, "canceled")
        assert await list_paths(lab, call_id) == {"begun": "canceled"}
        assert list_effects("stop-later") == []


@pytest.mark.nightly
async def test_a_flow_that_waits_occupies_no_worker(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("parked", call_step("one", "look", "/input/tag"), call_step("two", "look", "/input/tag"))
    set_behaviour("parked", answer("x"))
    async with open_worker_lab(fresh_database, tmp_path, tools=(*TOOLS, flow), runs={"at_once": 1}) as (lab, _):
        # With one slot, a flow whose step runs leaves that slot to the step.
        await run_flow(lab, "parked", "parked")


async def test_a_step_of_a_dead_worker_is_found_again_and_not_repeated(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("survives", call_step("one", "note", "/input/tag"), call_step("two", "note", "survive-2"))
    gate = Gate()
    set_behaviour("survive-1", answer("a"))
    set_behaviour("survive-2", gate)
    async with open_lab(fresh_database, tmp_path, tools=(*TOOLS, flow)) as dead:
        call_id = await start_flow(dead, "survives", "survive-1")
        # It began the flow, and was killed before it put it back.
        await begin_run(dead, call_id)
        await expire_lease(dead, dead)
        async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
            await gate.began.wait()
            # Another worker advances it at the same moment: nothing is called twice.
            await lab.db.execute("select deputize.reschedule_run('dev', $1, 0, false)", call_id)
            await asyncio.sleep(0)
            gate.open.set()
            await lab.wait_for_state(call_id, "succeeded")
            assert (len(list_effects("survive-1")), len(list_effects("survive-2"))) == (1, 1)


async def test_no_step_has_more_authority_than_the_caller(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("reaching", call_step("one", "put", "/input/tag"), auth={"scopes": ["lab:flows"]})
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        caller = await lab.make_caller("eve", scopes=("lab:flows",))
        outcome = await lab.call("reaching", "reach", key="k", by=caller)
        await lab.wait_for_state(outcome.call_id, "failed")
        steps = await load_flow_steps(lab.runtime, "dev", outcome.call_id)
        assert [each.record.state for each in steps.calls.values()] == ["denied"]
        assert list_effects("reach") == []


async def test_a_flow_waits_as_a_row_while_people_decide_about_a_step(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("deciding", call_step("one", "put", "/input/tag"))
    set_behaviour("decide", answer("agreed"))
    async with open_approval_lab(fresh_database, tmp_path, tools=(*TOOLS, flow)) as approving:
        lab = approving.lab
        call_id = await start_flow(lab, "deciding", "decide")

        async def is_waiting() -> bool:
            return await list_paths(lab, call_id) == {"one": "awaiting_approval"}

        await wait_until(is_waiting)
        assert approving.worker is not None
        assert approving.worker.active_run_count == 0
        view = await lab.gateway.flows.show_flow(await lab.make_caller(), call_id)
        assert (view["state"], [each["status"] for each in view["steps"]]) == ("queued", ["running"])
        request_id = await lab.db.fetchval(
            "select id from deputize.approvals where call_id = $1", view["steps"][0]["calls"][0]["call_id"]
        )
        await approving.approve(await approving.make_approver("ada"), str(request_id))
        await lab.wait_for_state(call_id, "succeeded")
        with pytest.raises(CallNotFound):
            await lab.gateway.flows.show_flow(await lab.make_caller("eve"), call_id)
        step_id = view["steps"][0]["calls"][0]["call_id"]
        with pytest.raises(MalformedRequest, match=r"which is not a flow"):
            await lab.gateway.flows.show_flow(await lab.make_caller(), step_id)
        with pytest.raises(CallNotFound):
            await lab.gateway.flows.show_flow(await lab.make_caller("eve"), step_id)


@pytest.mark.nightly
async def test_a_flow_that_takes_too_long_stops_its_steps(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("overdue", call_step("one", "brief_look", "/input/tag"), timeout=3600)
    gate = Gate()
    set_behaviour("overdue", gate)
    async with open_flow_lab(fresh_database, tmp_path, flow) as lab:
        call_id = await start_flow(lab, "overdue", "overdue")
        await gate.began.wait()
        await lab.db.execute("update deputize.runs set started_at = now() - interval '2 hours' where id = $1", call_id)
        await lab.db.execute("select deputize.reschedule_run('dev', $1, 0, false)", call_id)
        await lab.wait_for_state(call_id, "timed_out")
        view = await lab.gateway.flows.show_flow(await lab.make_caller(), call_id)
        assert view["steps"][0]["calls"][0]["state"] in ("canceled", "timed_out")
