"""A failed flow takes back what it did, or says exactly what is left: whatever fails, and whenever its worker dies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from deputize.core.call import CallRequest
from deputize.core.caller import UNDO_SCOPE, Caller
from deputize.core.contract.tools import FlowTool
from deputize.core.errors import Problem, ToolFailed, ToolPrecondition
from deputize.govern.identity.dev_issuer import mint_dev_token
from deputize.lifecycle.durable import flow_compensation, flow_run
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.flow_steps import load_flow_steps
from deputize.lifecycle.durable.resume import RunNotReady
from deputize.operations.gateway import UndoSelection
from tests.integration.operations.background.test_worker import begin_run, expire_lease, open_worker_lab
from tests.support import notebook_tools
from tests.support.approval_lab import open_approval_lab
from tests.support.flows import call_step, make_flow_tool
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import GatewayLab, open_lab, wait_until
from tests.support.notebook_tools import failures, mails, notes
from tests.support.scripted_tools import TOOLS, Gate, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("RES-4")

SCOPES = ("lab:write", "book:write", UNDO_SCOPE)


@pytest.fixture(autouse=True)
def book() -> None:
    notes.clear()
    failures.clear()
    mails.clear()
    notes.update(old="o", kept="k")


def book_step(step: str, tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": step, "tool": f"book.{tool}", "constants": arguments}


FAILING = call_step("broken", "look", "comp-broken")
CHANGES = (
    book_step("one", "add", name="new", text="n"),
    book_step("two", "change", name="old", text="o2"),
    book_step("three", "remove", name="kept"),
)
FLOW = make_flow_tool("order", *CHANGES, FAILING, book_step("never", "add", name="late", text="l"))


@asynccontextmanager
async def open_saga_lab(
    dsn: str, folder: Path, *flows: FlowTool, with_worker: bool = True
) -> AsyncIterator[GatewayLab]:
    set_behaviour("comp-broken", raise_error(ToolFailed("no such account")))
    tools = (*TOOLS, *notebook_tools.TOOLS, *flows)
    if with_worker:
        async with open_worker_lab(dsn, folder, tools=tools) as (lab, _):
            yield lab
    else:
        async with open_lab(dsn, folder, tools=tools) as lab:
            yield lab


async def make_person(lab: GatewayLab, user: str = "ana") -> Caller:
    return await lab.make_caller(user, scopes=SCOPES)


async def start(lab: GatewayLab, name: str, tag: str = "t", by: Caller | None = None) -> str:
    outcome = await lab.call(name, tag, key=f"{name}-{tag}", by=by or await make_person(lab))
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def load_envelope(lab: GatewayLab, call_id: str) -> dict[str, Any]:
    view = await lab.gateway.calls.show_call(await make_person(lab), call_id)
    fields: dict[str, Any] = orjson.loads(view.envelope.body)
    return fields


async def wait_for_report(lab: GatewayLab, call_id: str, state: str = "failed") -> dict[str, Any]:
    await lab.wait_for_state(call_id, state)
    report: dict[str, Any] = (await load_envelope(lab, call_id))["error"]["details"]["compensation"]
    return report


async def load_tasks(lab: GatewayLab, call_id: str) -> Sequence[dict[str, Any]]:
    rows = await lab.db.fetch(
        "select id, question from deputize.human_tasks where call_id = $1 and kind = 'compensate' and state = 'open'",
        call_id,
    )
    return [{"id": str(row["id"]), **orjson.loads(row["question"])} for row in rows]


def list_steps(items: Sequence[dict[str, Any]]) -> list[str]:
    return [each["step"] for each in items]


def list_reasons(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["step"], each["reason"]) for each in report["left"]]


async def count_undos(lab: GatewayLab) -> int:
    return int(await lab.db.fetchval("select count(*) from deputize.journal where undoes is not null"))


async def test_a_change_that_fails_at_step_four_leaves_nothing(fresh_database: str, tmp_path: Path) -> None:
    async with open_saga_lab(fresh_database, tmp_path, FLOW) as lab:
        flow_id = await start(lab, "order")
        report = await wait_for_report(lab, flow_id)
        assert notes == {"old": "o", "kept": "k"}
        assert (report["state"], report["left"], report["task_id"]) == ("compensated", [], None)
        assert list_steps(report["compensated"]) == ["three", "two", "one"]
        envelope = await load_envelope(lab, flow_id)
        assert envelope["type"] == "urn:deputize:problem:composite-partial-failure"
        assert (envelope["error"]["details"]["failed_step"], await load_tasks(lab, flow_id)) == ("broken", [])
        # It has happened, and a repeated key must not do it again unseen.
        assert await lab.has_claim(flow_id)
        # Each is a call of the flow's caller, and names the flow.
        for each in report["compensated"]:
            row = await lab.db.fetchrow("select * from deputize.journal where call_id = $1", each["undo_call_id"])
            assert row is not None
            assert (str(row["undoes"]), row["caller_user"], row["flow_id"]) == (each["entry_id"], "ana", flow_id)
        # A person who undoes it finds nothing to do.
        plan = await lab.gateway.undo.plan_undo(await make_person(lab), UndoSelection(call_id=flow_id))
        assert (plan["ready"], plan["blocked"]) == (0, 0)
        assert {each["reason"] for each in plan["steps"]} == {"already_undone", "is_undo"}
        view = await lab.gateway.flows.show_flow(await make_person(lab), flow_id)
        assert [each["status"] for each in view["steps"]] == [*["compensated"] * 3, "failed", "discarded"]
        assert view["compensation"]["state"] == "compensated"


async def test_what_a_flow_keeps_stays_as_it_is(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("keeping", *CHANGES, FAILING, on_failure="keep")
    async with open_saga_lab(fresh_database, tmp_path, flow) as lab:
        flow_id = await start(lab, "keeping")
        await lab.wait_for_state(flow_id, "failed")
        assert "compensation" not in (await load_envelope(lab, flow_id))["error"]["details"]
        assert notes == {"new": "n", "old": "o2"}


async def test_a_compensation_that_fails_stops_there_and_a_person_gets_the_exact_remainder(
    fresh_database: str, tmp_path: Path
) -> None:
    flow = make_flow_tool(
        "stuck", CHANGES[0], book_step("two", "add", name="b", text="b"), book_step("three", "add", name="c", text="c"),
        FAILING,
    )  # fmt: skip
    async with open_saga_lab(fresh_database, tmp_path, flow) as lab:
        gate = Gate(ToolFailed("no such account"))
        set_behaviour("comp-broken", gate)
        flow_id = await start(lab, "stuck")
        await gate.began.wait()
        failures["b"] = ToolPrecondition("the shelf is locked")
        gate.open.set()
        report = await wait_for_report(lab, flow_id)
        assert report["state"] == "incomplete"
        assert list_steps(report["compensated"]) == ["three"]
        assert list_reasons(report) == [("two", "compensation_failed"), ("one", "not_tried")]
        assert notes == {"old": "o", "kept": "k", "new": "n", "b": "b"}
        (task,) = await load_tasks(lab, flow_id)
        assert (task["id"], task["left"], task["compensated"]) == (
            report["task_id"], report["left"], report["compensated"],
        )  # fmt: skip
        assert "the shelf is locked" not in str(task)
        # The person takes back the rest.
        person, selection = await make_person(lab), UndoSelection(call_id=flow_id)
        plan = await lab.gateway.undo.plan_undo(person, selection)
        await lab.gateway.undo.execute_undo(person, selection, plan["digest"])
        assert notes == {"old": "o", "kept": "k"}


async def test_what_cannot_be_taken_back_is_left_with_the_reason(fresh_database: str, tmp_path: Path) -> None:
    mailing = make_flow_tool(
        "mailing", CHANGES[0], book_step("sent", "mail", name="new"), FAILING, effects="destructive"
    )
    unsure = make_flow_tool("unsure", CHANGES[1], book_step("doubtful", "add", name="d", text="d"))
    async with open_saga_lab(fresh_database, tmp_path, mailing, unsure) as lab:
        report = await wait_for_report(lab, await start(lab, "mailing"))
        assert list_reasons(report) == [("sent", "irreversible"), ("one", "not_tried")]
        # A step that may have acted is not passed over in silence.
        failures["d"] = ConnectionError("reset")
        flow_id = await start(lab, "unsure")
        report = await wait_for_report(lab, flow_id)
        assert list_reasons(report) == [("doubtful", "uncertain"), ("two", "not_tried")]
        assert len(await load_tasks(lab, flow_id)) == 1


async def test_a_flow_whose_result_breaks_its_contract_is_taken_back(fresh_database: str, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 1}}, "required": ["name"]}
    flow = make_flow_tool("long", *CHANGES, output={"name": "/steps/one/name"}, output_schema=schema)
    async with open_saga_lab(fresh_database, tmp_path, flow) as lab:
        flow_id = await start(lab, "long")
        report = await wait_for_report(lab, flow_id)
        assert (report["state"], list_steps(report["compensated"])) == ("compensated", ["three", "two", "one"])
        assert (await load_envelope(lab, flow_id))["type"] == "urn:deputize:problem:result-invalid"
        assert notes == {"old": "o", "kept": "k"}


async def test_what_someone_changed_since_is_never_overwritten(fresh_database: str, tmp_path: Path) -> None:
    gate = Gate(ToolFailed("no such account"))
    async with open_saga_lab(fresh_database, tmp_path, FLOW) as lab:
        set_behaviour("comp-broken", gate)
        flow_id = await start(lab, "order")
        await gate.began.wait()
        request = CallRequest(tool="book.change", arguments={"name": "old", "text": "bob"}, idempotency_key="b")
        await lab.gateway.run_call(await make_person(lab, "bob"), request)
        gate.open.set()
        report = await wait_for_report(lab, flow_id)
        assert list_reasons(report) == [("two", "changed_since"), ("one", "not_tried")]
        assert notes["old"] == "bob"


async def test_what_was_taken_back_and_done_again_is_left(fresh_database: str, tmp_path: Path) -> None:
    gate = Gate(ToolFailed("no such account"))
    async with open_saga_lab(fresh_database, tmp_path, make_flow_tool("again", CHANGES[1], FAILING)) as lab:
        set_behaviour("comp-broken", gate)
        flow_id = await start(lab, "again")
        await gate.began.wait()
        person, undo = await make_person(lab), lab.gateway.undo
        call_id = str(await lab.db.fetchval("select call_id from deputize.journal where undoes is null"))
        for _ in range(2):
            selection = UndoSelection(call_id=call_id)
            planned = await undo.plan_undo(person, selection)
            (made,) = (await undo.execute_undo(person, selection, planned["digest"]))["made"]
            call_id = made["call_id"]
        assert notes["old"] == "o2"
        gate.open.set()
        report = await wait_for_report(lab, flow_id)
        assert (report["state"], list_reasons(report)) == ("incomplete", [("two", "already_undone")])
        assert "was itself taken back since" in report["left"][0]["detail"]
        assert len(await load_tasks(lab, flow_id)) == 1


async def test_nothing_is_taken_back_with_more_authority_than_the_caller_has(
    fresh_database: str, tmp_path: Path
) -> None:
    gate = Gate(ToolFailed("no such account"))
    stamping = make_flow_tool("stamping", CHANGES[0], book_step("stamped", "stamp", name="x"), FAILING)
    async with open_saga_lab(fresh_database, tmp_path, FLOW, stamping) as lab:
        report = await wait_for_report(lab, await start(lab, "stamping"))
        assert list_reasons(report) == [("stamped", "compensation_refused"), ("one", "not_tried")]
        assert "scope" in report["left"][0]["detail"]
        set_behaviour("comp-broken", gate)
        flow_id = await start(lab, "order")
        await gate.began.wait()
        await lab.gateway.commands.revoke(await lab.make_admin(), "user", "ana", reason="left")
        gate.open.set()
        await lab.wait_for_state(flow_id, "failed")
        (task,) = await load_tasks(lab, flow_id)
        assert list_reasons(task) == [
            ("three", "compensation_refused"), ("two", "not_tried"), ("one", "not_tried"),
        ]  # fmt: skip


async def test_parallel_steps_flows_within_and_a_cancellation(fresh_database: str, tmp_path: Path) -> None:
    inner = make_flow_tool("inner", *CHANGES[:2])
    outer = make_flow_tool(
        "outer", call_step("nested", "inner", "/input/tag"),
        {"name": "both", "parallel": [book_step("p", "add", name="p", text="p"), CHANGES[2]]},
        FAILING, timeout=72_000,
    )  # fmt: skip
    broken = make_flow_tool("broken", CHANGES[0], FAILING)
    around = make_flow_tool("around", CHANGES[1], call_step("within", "broken", "/input/tag"), timeout=72_000)
    gate = Gate()
    stopped = make_flow_tool("stopped", *CHANGES, call_step("begun", "look", "comp-gate"))
    set_behaviour("comp-gate", gate)
    async with open_saga_lab(fresh_database, tmp_path, inner, outer, broken, around, stopped) as lab:
        report = await wait_for_report(lab, await start(lab, "outer"))
        assert report["state"] == "compensated", report
        assert sorted(list_steps(report["compensated"])) == ["nested.one", "nested.two", "p", "three"]
        assert notes == {"old": "o", "kept": "k"}
        # What a flow within has taken back itself is not taken back again.
        before = await count_undos(lab)
        report = await wait_for_report(lab, await start(lab, "around"))
        assert (report["state"], list_steps(report["compensated"])) == ("compensated", ["within.one", "two"])
        assert (notes, await count_undos(lab)) == ({"old": "o", "kept": "k"}, before + 2)
        flow_id = await start(lab, "stopped")
        await gate.began.wait()
        await lab.gateway.cancellations.cancel_call(await make_person(lab), flow_id)
        report = await wait_for_report(lab, flow_id, "canceled")
        assert (report["state"], notes) == ("compensated", {"old": "o", "kept": "k"})


async def resume(lab: GatewayLab, call_id: str) -> None:
    await get_lifecycle(lab.gateway).resume_run("dev", call_id, ActiveRuns(lab.runtime))


async def list_open(lab: GatewayLab) -> list[str]:
    rows = await lab.db.fetch(
        "select id from deputize.calls where state = 'queued' and flow_id is not null order by id"
    )
    return [str(row["id"]) for row in rows]


async def drive(lab: GatewayLab, flow_id: str) -> None:
    """Do what workers would, until the flow has ended."""
    for _ in range(60):
        if await lab.fetch_state(flow_id) not in ("queued", "running"):
            return
        for call_id in (flow_id, *await list_open(lab)):
            try:
                await resume(lab, call_id)
            except RunNotReady:
                await asyncio.sleep(0.05)
    raise AssertionError("it does not end")


class Killed(BaseException):
    """The worker dies here."""


# The functions after or before which a worker may die while it takes something back.
_POINTS = ("save_ending", "_plan_call", "_save_call", "_name_flow", "_save_taken_back", "save_report")


async def test_a_worker_that_dies_at_any_point_takes_nothing_back_twice_and_leaves_nothing(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_saga_lab(fresh_database, tmp_path, FLOW, with_worker=False) as lab:
        for point in _POINTS:
            for is_after in (False, True):
                undo_count = await count_undos(lab)
                flow_id = await start(lab, "order", f"{point} {is_after}")
                with pytest.MonkeyPatch.context() as patch:
                    deaths = plant_deaths(patch, point, is_after=is_after)
                    for _ in range(3):
                        with contextlib.suppress(Killed):
                            await drive(lab, flow_id)
                assert deaths["left"] < 2, point
                report = (await load_envelope(lab, flow_id))["error"]["details"]["compensation"]
                assert (report["state"], list_steps(report["compensated"])) == ("compensated", ["three", "two", "one"])
                assert (notes, await count_undos(lab)) == ({"old": "o", "kept": "k"}, undo_count + 3)


def plant_deaths(patch: pytest.MonkeyPatch, point: str, *, is_after: bool) -> dict[str, int]:
    """Let the worker die twice at a point, if it comes there twice."""
    owners: list[Any] = [each for each in (flow_run, flow_compensation) if hasattr(each, point)]
    owners = owners or [flow_compensation._Compensator]
    genuine, deaths = getattr(owners[0], point), {"left": 2}

    async def die(*args: Any, **more: Any) -> Any:
        deaths["left"] -= 1
        if deaths["left"] >= 0 and not is_after:
            raise Killed
        found = await genuine(*args, **more)
        if deaths["left"] >= 0:
            raise Killed
        return found

    for owner in owners:
        patch.setattr(owner, point, die)
    return deaths


async def test_two_workers_and_a_person_take_each_effect_back_once(fresh_database: str, tmp_path: Path) -> None:
    async with (
        open_saga_lab(fresh_database, tmp_path, FLOW, with_worker=False) as lab,
        open_saga_lab(fresh_database, tmp_path, FLOW, with_worker=False) as other,
    ):
        flow_id = await start(lab, "order")
        while (await load_flow_steps(lab.runtime, "dev", flow_id)).ending is None:
            for call_id in (flow_id, *await list_open(lab)):
                await resume(lab, call_id)
        person = await make_person(lab)

        async def undo() -> None:
            plan = await lab.gateway.undo.plan_undo(person, UndoSelection(call_id=flow_id))
            await lab.gateway.undo.execute_undo(person, UndoSelection(call_id=flow_id), plan["digest"])

        await asyncio.gather(drive(lab, flow_id), drive(other, flow_id), undo(), return_exceptions=True)
        await drive(lab, flow_id)
        report = (await load_envelope(lab, flow_id))["error"]["details"]["compensation"]
        assert (report["state"], report["left"]) == ("compensated", [])
        assert (notes, await count_undos(lab)) == ({"old": "o", "kept": "k"}, 3)


async def test_a_flow_that_cannot_go_on_flags_all_that_it_did(fresh_database: str, tmp_path: Path) -> None:
    async with open_saga_lab(fresh_database, tmp_path, FLOW, with_worker=False) as lab:
        flow_id = await start(lab, "order")
        while notes.get("old") != "o2":
            for call_id in (flow_id, *await list_open(lab)):
                await resume(lab, call_id)
        await resume(lab, flow_id)
        await lab.db.execute("update deputize.calls set tool_digest = 'sha256:other' where id = $1", flow_id)
        await drive(lab, flow_id)
        report = (await load_envelope(lab, flow_id))["error"]["details"]["compensation"]
        assert (report["state"], list_reasons(report)) == ("incomplete", [("two", "not_tried"), ("one", "not_tried")])
        (task,) = await load_tasks(lab, flow_id)
        assert (task["id"], task["why"]) == (report["task_id"], "tool-not-found")


_ASKING = """
@id("open")
permit (principal, action, resource) unless { resource == Tool::"book.remove" };

@id("removing-asks")
@decision("ask")
permit (principal, action, resource == Tool::"book.remove");
"""


async def test_taking_back_waits_for_approval_where_policy_wants_it(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("asking", CHANGES[0], FAILING)
    set_behaviour("comp-broken", raise_error(ToolFailed("no such account")))
    tools = (*TOOLS, *notebook_tools.TOOLS, flow)
    async with open_approval_lab(fresh_database, tmp_path, rules=_ASKING, tools=tools) as approving:
        lab = approving.lab
        waiting = "select id, call_id from deputize.human_tasks where kind = 'approval' and state = 'open'"

        async def wait_for_request() -> str:
            async def is_asked() -> bool:
                return await lab.db.fetchval(waiting) is not None

            await wait_until(is_asked)
            return str(await lab.db.fetchval(waiting))

        approved = await start(lab, "asking", "approved")
        request_id = await wait_for_request()
        assert await lab.fetch_state(approved) == "queued"
        view = await lab.gateway.flows.show_flow(await make_person(lab), approved)
        assert view["compensation"]["state"] == "compensating"
        await approving.approve(await approving.make_approver("ada"), request_id)
        assert (await wait_for_report(lab, approved))["state"] == "compensated"
        denied = await start(lab, "asking", "denied")
        request_id = await wait_for_request()
        await approving.approvals.deny(await approving.make_approver("ada"), request_id, reason="it stays")
        report = await wait_for_report(lab, denied)
        assert list_reasons(report) == [("one", "compensation_failed")]
        assert notes == {"old": "o", "kept": "k", "new": "n"}


async def test_a_flow_whose_outcome_kills_workers_is_taken_back(fresh_database: str, tmp_path: Path) -> None:
    flow = make_flow_tool("killing", *CHANGES)
    async with open_saga_lab(fresh_database, tmp_path, flow, with_worker=False) as lab:
        flow_id = await start(lab, "killing")
        while "kept" in notes:
            for call_id in (flow_id, *await list_open(lab)):
                await resume(lab, call_id)
        await begin_run(lab, flow_id)
        await expire_lease(lab, lab)
        await lab.db.execute("update deputize.runs set takeovers = 100 where id = $1", flow_id)
        async with open_saga_lab(fresh_database, tmp_path, flow, with_worker=False) as other:
            await drive(other, flow_id)
            envelope = await load_envelope(other, flow_id)
            assert envelope["type"] == "urn:deputize:problem:given-up"
            assert envelope["error"]["details"]["compensation"]["state"] == "compensated"
        assert notes == {"old": "o", "kept": "k"}


async def test_another_tenant_sees_nothing_of_it_and_takes_nothing_back(fresh_database: str, tmp_path: Path) -> None:
    async with open_saga_lab(fresh_database, tmp_path, FLOW) as lab:
        flow_id = await start(lab, "order")
        report = await wait_for_report(lab, flow_id)
        token = mint_dev_token(lab.folder, subject="ana", scopes=(*SCOPES, "deputize:admin"), tenant="beside")
        stranger = await lab.gateway.authenticate(f"Bearer {token}".encode())
        with pytest.raises(Problem):
            await lab.gateway.flows.show_flow(stranger, flow_id)
        selection = UndoSelection(call_id=report["compensated"][0]["undo_call_id"])
        assert (await lab.gateway.undo.plan_undo(stranger, selection))["steps"] == []
