"""A program of `code.run` makes calls under the authority of its caller, each once, and ends in a named way."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.errors import CallNotFound, ToolFailed, ToolPrecondition
from deputize.core.outcome import Outcome
from deputize.core.settings import CodeSettings, SandboxSettings
from deputize.govern.identity.dev_issuer import mint_dev_token
from deputize.lifecycle.durable import flow_run, program_run
from deputize.lifecycle.durable.flow_steps import load_flow_steps
from deputize.tools.code import declare_tool
from tests.integration.lifecycle.durable.test_flow_compensation import Killed, drive, resume
from tests.integration.operations.background.test_worker import open_worker_lab
from tests.support.approval_lab import open_approval_lab
from tests.support.flows import call_step, make_flow_tool
from tests.support.gateway_lab import GatewayLab, open_lab, wait_until
from tests.support.scripted_tools import TOOLS, list_effects, raise_error, set_behaviour

pytestmark = [pytest.mark.requirement("EXE-2"), pytest.mark.requirement("RES-3")]

SCOPES = ("lab:write", "code:run")
SETTINGS = CodeSettings(tools=("lab.look", "lab.put", "lab.note", "lab.erase"))


@asynccontextmanager
async def open_code_lab(dsn: str, folder: Path, settings: CodeSettings = SETTINGS) -> AsyncIterator[GatewayLab]:
    async with open_worker_lab(dsn, folder, tools=(*TOOLS, declare_tool()), code=settings) as (lab, _):
        yield lab


async def send(lab: GatewayLab, code: str, by: Caller | None = None, key: str | None = None) -> Outcome:
    caller = by or await lab.make_caller(scopes=SCOPES)
    return await lab.gateway.run_call(
        caller, CallRequest(tool="code.run", arguments={"code": code}, idempotency_key=key or f"key-{hash(code)}")
    )


async def start(lab: GatewayLab, code: str, by: Caller | None = None) -> str:
    outcome = await send(lab, code, by)
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def load_envelope(lab: GatewayLab, call_id: str) -> dict[str, Any]:
    async def has_ended() -> bool:
        return (await lab.fetch_call(call_id))["ended_at"] is not None

    await wait_until(has_ended)
    view = await lab.gateway.calls.show_call(await lab.make_caller(scopes=SCOPES), call_id)
    fields: dict[str, Any] = orjson.loads(view.envelope.body)
    return fields


async def run(lab: GatewayLab, code: str) -> dict[str, Any]:
    envelope = await load_envelope(lab, await start(lab, code))
    assert envelope["state"] == "succeeded", envelope
    result: dict[str, Any] = envelope["result"]
    return result


async def fail(lab: GatewayLab, code: str) -> dict[str, Any]:
    envelope = await load_envelope(lab, await start(lab, code))
    assert envelope["is_error"], envelope
    return envelope


def answer(value: Any) -> Any:
    return lambda _: {"value": value}


async def test_a_program_computes_with_the_results_of_its_calls(fresh_database: str, tmp_path: Path) -> None:
    for number in range(3):
        set_behaviour(f"sum-{number}", answer(10 * number))
    set_behaviour("sum-total", answer("kept"))
    code = """
values = []
for number in range(3):
    values.append(lab__look(tag=f"sum-{number}")["value"])
    print("got", values[-1])
lab__put(tag="sum-total", count=sum(values))
{"total": sum(values)}
"""
    async with open_code_lab(fresh_database, tmp_path) as lab:
        call_id = await start(lab, code)
        envelope = await load_envelope(lab, call_id)
        assert envelope["result"] == {
            "result": {"total": 30}, "is_result_cut": False, "printed": "got 0\ngot 10\ngot 20\n",
            "is_printed_cut": False, "calls": 4,
        }, envelope  # fmt: skip
        assert len(list_effects("sum-total")) == 1
        steps = await load_flow_steps(lab.runtime, "dev", call_id)
        for path, each in steps.calls.items():
            entry = (await lab.fetch_entries(each.call_id))[0]
            assert (entry["flow"], entry["parent"]) == (call_id, call_id), path
        view = await lab.gateway.flows.show_flow(await lab.make_caller(scopes=SCOPES), call_id)
        assert [(each["name"], each["tool"], each["status"]) for each in view["steps"]] == [
            ("call_1", "lab.look", "succeeded"),
            ("call_2", "lab.look", "succeeded"),
            ("call_3", "lab.look", "succeeded"),
            ("call_4", "lab.put", "succeeded"),
        ]


async def test_a_program_waits_for_an_approval_in_its_middle(fresh_database: str, tmp_path: Path) -> None:
    for tag in ("wait-before", "wait-after"):
        set_behaviour(tag, answer(tag))
    set_behaviour("wait-asked", answer("agreed"))
    code = """
before = lab__brief_look(tag="wait-before")["value"]
asked = lab__put(tag="wait-asked")["value"]
[before, asked, lab__brief_look(tag="wait-after")["value"]]
"""
    tools, settings = (*TOOLS, declare_tool()), CodeSettings(tools=("lab.*",))
    async with open_approval_lab(fresh_database, tmp_path, tools=tools, code=settings) as approving:
        lab = approving.lab
        call_id = await start(lab, code)

        async def is_waiting() -> bool:
            steps = await load_flow_steps(lab.runtime, "dev", call_id)
            return [each.record.state for each in steps.calls.values()] == ["succeeded", "awaiting_approval"]

        await wait_until(is_waiting)
        assert approving.worker is not None
        assert approving.worker.active_run_count == 0
        steps = await load_flow_steps(lab.runtime, "dev", call_id)
        request_id = await lab.db.fetchval(
            "select id from deputize.approvals where call_id = $1", steps.calls["call_2"].call_id
        )
        await approving.approve(await approving.make_approver("ada"), str(request_id))
        envelope = await load_envelope(lab, call_id)
        assert envelope["result"]["result"] == ["wait-before", "agreed", "wait-after"]
        assert len(list_effects("wait-asked")) == 1


# The functions before or after which a worker may die while it goes on with a program.
_POINTS = (
    (program_run, "_replay"), (program_run, "_plan_call"), (flow_run, "plan_calls"), (flow_run, "_make_calls"),
    (flow_run, "save_calls"), (program_run, "_save_end"),
)  # fmt: skip


async def test_a_worker_that_dies_at_any_point_repeats_no_effect(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path, tools=(*TOOLS, declare_tool()), code=SETTINGS) as lab:
        for number, (owner, point) in enumerate(_POINTS):
            for is_after in (False, True):
                tags = [f"die-{number}-{is_after}-{each}" for each in range(2)]
                for tag in tags:
                    set_behaviour(tag, answer(tag))
                call_id = await start(lab, f"[lab__put(tag=tag)['value'] for tag in {tags}]")
                with pytest.MonkeyPatch.context() as patch:
                    deaths = plant_deaths(patch, owner, point, is_after=is_after)
                    for _ in range(3):
                        with contextlib.suppress(Killed):
                            await drive(lab, call_id)
                assert deaths["left"] < 2, point
                envelope = await load_envelope(lab, call_id)
                assert envelope["result"]["result"] == tags, (point, is_after, envelope)
                assert [len(list_effects(tag)) for tag in tags] == [1, 1], (point, is_after)


def plant_deaths(patch: pytest.MonkeyPatch, owner: Any, point: str, *, is_after: bool) -> dict[str, int]:
    """Let the worker die twice at a point, if it comes there twice."""
    genuine, deaths = getattr(owner, point), {"left": 2}

    async def die(*args: Any, **more: Any) -> Any:
        deaths["left"] -= 1
        if deaths["left"] >= 0 and not is_after:
            raise Killed
        found = await genuine(*args, **more)
        if deaths["left"] >= 0:
            raise Killed
        return found

    patch.setattr(owner, point, die)
    return deaths


async def test_a_program_that_does_something_else_than_before_is_ended(fresh_database: str, tmp_path: Path) -> None:
    set_behaviour("other-one", answer(1))
    async with open_lab(fresh_database, tmp_path, tools=(*TOOLS, declare_tool()), code=SETTINGS) as lab:
        call_id = await start(lab, "lab__put(tag='other-one')\nlab__put(tag='other-two')")
        with pytest.MonkeyPatch.context() as patch:
            while not (await load_flow_steps(lab.runtime, "dev", call_id)).calls:
                await resume(lab, call_id)
            patch.setattr(program_run, "_get_code", lambda _: "lab__put(tag='other-one', count=2)")
            await drive(lab, call_id)
        envelope = await load_envelope(lab, call_id)
        assert "line 1: call 1 is not the one that was made" in envelope["detail"]
        assert (len(list_effects("other-one")), list_effects("other-two")) == (1, [])


async def test_another_tenant_neither_runs_nor_sees_programs(fresh_database: str, tmp_path: Path) -> None:
    async with open_code_lab(fresh_database, tmp_path) as lab:
        call_id = await start(lab, "1")
        await load_envelope(lab, call_id)
        token = mint_dev_token(lab.folder, subject="ana", scopes=SCOPES, tenant="beside")
        stranger = await lab.gateway.authenticate(f"Bearer {token}".encode())
        assert (await send(lab, "1", stranger)).http_status == 404
        with pytest.raises(CallNotFound):
            await lab.gateway.flows.show_flow(stranger, call_id)


async def test_what_a_program_may_not_do_is_an_exception_with_its_line(fresh_database: str, tmp_path: Path) -> None:
    set_behaviour("may-fail", raise_error(ToolPrecondition("the drawer is locked")))
    set_behaviour("may-break", raise_error(ToolFailed("no such account")))
    set_behaviour("may-never", answer(1))
    async with open_code_lab(fresh_database, tmp_path) as lab:
        caught = """
def attempt(**arguments):
    try:
        return lab__put(**arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
print(attempt(tag="may-fail"))
print(attempt(count="many"))
"""
        printed = (await run(lab, caught))["printed"]
        assert "RuntimeError: the drawer is locked (E3411)\nValueError: " in printed

        uncaught = await fail(lab, "1\nlab__put(tag='may-fail')")
        assert uncaught["type"] == "urn:deputize:problem:program-failed"
        assert "line 2: RuntimeError: the drawer is locked" in uncaught["detail"]
        assert uncaught["error"]["details"]["line"] == 2

        # It may have changed something, so that no program goes on as if it had not.
        broken = await fail(
            lab, "try:\n    lab__put(tag='may-break')\nexcept Exception:\n    lab__put(tag='may-never')"
        )
        assert broken["type"] == "urn:deputize:problem:composite-partial-failure"
        assert "line 2: lab.put failed, and may have changed something: no such account" in broken["detail"]
        assert broken["error"]["details"]["failed_step"] == "call_1"
        assert list_effects("may-never") == []

        unlisted = await fail(lab, "\n\nlab__crawl(tag='x')")
        assert "line 3: lab__crawl is no tool that programs may call here" in unlisted["detail"]
        itself = await fail(lab, "code__run(code='1')")
        assert "code__run is no tool that programs may call here" in itself["detail"]


async def test_a_program_runs_no_programs_inside_of_flows_either(fresh_database: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"auth": {"scopes": list(SCOPES)}, "timeout": 86_400}
    inner = make_flow_tool("inner", {"name": "run", "tool": "code.run", "constants": {"code": "1"}}, **more)
    outer = make_flow_tool("outer", call_step("call", "inner", "/input/tag"), **more)
    tools, settings = (*TOOLS, declare_tool(), inner, outer), CodeSettings(tools=("lab.*",))
    async with open_worker_lab(fresh_database, tmp_path, tools=tools, code=settings) as (lab, _):
        for name in ("inner", "outer"):
            refused = await fail(lab, f"lab__{name}(tag='1')")
            assert f"lab__{name} is no tool that programs may call here" in refused["detail"]


async def test_a_program_has_no_more_authority_than_its_caller(fresh_database: str, tmp_path: Path) -> None:
    set_behaviour("less-put", answer(1))
    code = "try:\n    lab__put(tag='less-put')\nexcept PermissionError as error:\n    print(error)"
    async with open_code_lab(fresh_database, tmp_path) as lab:
        reader = await lab.make_caller("ben", scopes=("code:run",))
        call_id = await start(lab, code, reader)

        async def has_ended() -> bool:
            return (await lab.fetch_call(call_id))["ended_at"] is not None

        await wait_until(has_ended)
        view = await lab.gateway.calls.show_call(reader, call_id)
        result = orjson.loads(view.envelope.body)["result"]
        assert "lab:write" in result["printed"]
        assert list_effects("less-put") == []
        nobody = await send(lab, "1", await lab.make_caller("cleo", scopes=("lab:write",)))
        assert nobody.http_status == 403


async def test_a_program_ends_by_a_limit_that_is_named(fresh_database: str, tmp_path: Path) -> None:
    set_behaviour("limit", answer(1))
    settings = CodeSettings(tools=("lab.*",), seconds=2, calls=2)
    async with open_code_lab(fresh_database, tmp_path, settings) as lab:
        for code, slug, words in (
            ("while True:\n    pass", "tool-timeout", "time limit"),
            ("x = 1\ny = [0] * 10**9", "out-of-memory", "line 2: MemoryError"),
            ("def f(n):\n    return f(n + 1)\nf(0)", "resource-limit", "line 2: RecursionError"),
            ("for each in range(9):\n    lab__look(tag='limit')", "resource-limit", "line 2: the program made 2 calls"),
        ):
            envelope = await fail(lab, code)
            assert envelope["type"] == f"urn:deputize:problem:{slug}", envelope["detail"]
            assert words in envelope["detail"]


async def test_a_program_needs_a_sandbox_unless_the_settings_accept_none(fresh_database: str, tmp_path: Path) -> None:
    set_behaviour("walled", answer(1))
    settings = SandboxSettings(folder=Path("/proc/none"))
    async with open_lab(
        fresh_database, tmp_path, tools=(*TOOLS, declare_tool()), code=SETTINGS, sandboxes=settings
    ) as lab:
        call_id = await start(lab, "lab__put(tag='walled')")
        await drive(lab, call_id)
        envelope = await load_envelope(lab, call_id)
        assert envelope["type"] == "urn:deputize:problem:requires-setup", envelope
        assert "programs need a sandbox, and this host has none" in envelope["detail"]
        assert list_effects("walled") == []


async def test_what_a_program_prints_and_returns_is_bounded(fresh_database: str, tmp_path: Path) -> None:
    async with open_code_lab(fresh_database, tmp_path) as lab:
        result = await run(lab, "for _ in range(2000):\n    print('x' * 100)\n'y' * 200_000")
        assert (len(result["printed"]), result["is_printed_cut"]) == (65_536, True)
        assert (len(result["result"]), result["is_result_cut"]) == (65_536, True)
        assert (await run(lab, "{1, 2}"))["result"] == "{1, 2}"
        assert (await run(lab, "2 ** 60"))["result"] == str(2**60)


async def test_the_clock_and_chance_are_the_same_in_each_run_of_a_program(fresh_database: str, tmp_path: Path) -> None:
    code = """
import random, time
before = (time.time(), random.random(), list({"b", "a"}), hash("a"))
lab__look(tag="same")
before == (time.time(), before[1], list({"b", "a"}), hash("a")), before[1]
"""
    seen: list[Any] = []
    set_behaviour("same", answer(1))
    async with open_code_lab(fresh_database, tmp_path) as lab:
        seen.append((await run(lab, code))["result"])
        seen.append((await run(lab, f"{code}\n"))["result"])
    assert [each[0] for each in seen] == [True, True]
    assert seen[0][1] != seen[1][1]
