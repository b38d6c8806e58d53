"""Variables of a session stay between calls of one caller, and only a cell that succeeded changes them."""

import contextlib
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.errors import ToolPrecondition
from deputize.core.settings import CodeSettings, SandboxSettings
from deputize.govern.identity.dev_issuer import mint_dev_token
from deputize.lifecycle.durable import code_sessions, program_run
from deputize.runs import program_job
from deputize.sandboxes.client import SandboxClient
from deputize.tools.code import declare_tool
from tests.integration.lifecycle.durable.test_flow_compensation import Killed, drive
from tests.integration.lifecycle.durable.test_programs import (
    SCOPES,
    SETTINGS,
    answer,
    load_envelope,
    open_code_lab,
    plant_deaths,
)
from tests.integration.operations.background.test_worker import open_worker_lab
from tests.integration.sandboxes.test_interpreter import list_sandboxed
from tests.support.gateway_lab import GatewayLab, open_lab, wait_until
from tests.support.scripted_tools import TOOLS, list_effects, raise_error, set_behaviour

pytestmark = [pytest.mark.requirement("EXE-2"), pytest.mark.requirement("RES-3")]


async def start_cell(
    lab: GatewayLab, code: str, session: str = "new", *, by: Caller | None = None, key: str | None = None
) -> str:
    outcome = await lab.gateway.run_call(
        by or await lab.make_caller(scopes=SCOPES),
        CallRequest(
            tool="code.run", arguments={"code": code, "session": session}, idempotency_key=key or f"{session} {code}"
        ),
    )
    assert outcome.http_status == 202 or outcome.is_replay, outcome.body
    return outcome.call_id


async def run_cell(lab: GatewayLab, code: str, session: str = "new", *, key: str | None = None) -> dict[str, Any]:
    envelope = await load_envelope(lab, await start_cell(lab, code, session, key=key))
    assert envelope["state"] == "succeeded", envelope
    result: dict[str, Any] = envelope["result"]
    return result


async def fail_cell(lab: GatewayLab, code: str, session: str = "new", by: Caller | None = None) -> tuple[str, Any]:
    call_id = await start_cell(lab, code, session, by=by)

    async def has_ended() -> bool:
        return (await lab.fetch_call(call_id))["ended_at"] is not None

    await wait_until(has_ended)
    view = await lab.gateway.calls.show_call(by or await lab.make_caller(scopes=SCOPES), call_id)
    envelope = orjson.loads(view.envelope.body)
    assert envelope["is_error"], envelope
    return envelope["type"].rpartition(":")[2], envelope


async def test_variables_and_functions_stay_between_cells(fresh_database: str, tmp_path: Path) -> None:
    for tag in ("kept-one", "kept-two"):
        set_behaviour(tag, answer(tag))
    async with open_code_lab(fresh_database, tmp_path) as lab:
        code = "seen = []\ndef look(tag):\n    seen.append(lab__look(tag=tag)['value'])\nlook('kept-one')"
        first = await run_cell(lab, code)
        session = first["session"]
        assert session["cells"] == 1
        # Its own text names no tool: the function of the cell before does.
        second = await run_cell(lab, "look('kept-two')\nprint(seen)\nseen", session["id"])
        assert (second["result"], second["session"]) == (["kept-one", "kept-two"], {**session, "cells": 2})
        kind, envelope = await fail_cell(lab, "a = 1\n\n1 / 0", session["id"])
        assert (kind, envelope["error"]["details"]["line"]) == ("program-failed", 3)
        assert "session" not in (await load_envelope(lab, (await _run_plain(lab, "1"))))["result"]
        calls = await lab.db.fetch("select id from deputize.calls where tool = 'code.run'")
        for row in calls:
            assert await lab.fetch_entries(str(row["id"])), "each cell has entries of its own"


async def _run_plain(lab: GatewayLab, code: str) -> str:
    caller = await lab.make_caller(scopes=SCOPES)
    outcome = await lab.gateway.run_call(
        caller, CallRequest(tool="code.run", arguments={"code": code}, idempotency_key=f"plain {code}")
    )
    return outcome.call_id


def has_computed(pid: int) -> bool:
    """Tell whether a process has had some processor time, which one that waits has not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) > 0.3 * os.sysconf("SC_CLK_TCK")


async def test_a_canceled_cell_is_ended_at_once_and_leaves_the_session_as_it_was(
    fresh_database: str, tmp_path: Path
) -> None:
    client, settings = SandboxClient(tmp_path / "sandboxes"), CodeSettings(tools=("lab.*",), seconds=60)

    async def is_computing() -> bool:
        return any(map(has_computed, list_sandboxed(client)))

    async def has_ended() -> bool:
        return not list_sandboxed(client)

    async with open_worker_lab(
        fresh_database,
        tmp_path,
        tools=(*TOOLS, declare_tool()),
        code=settings,
        sandboxes=SandboxSettings(folder=client.folder),
    ) as (lab, _):
        session = (await run_cell(lab, "x = [1]"))["session"]["id"]
        call_id = await start_cell(lab, "x.append(2)\nwhile True:\n    pass", session)
        await wait_until(is_computing)
        await lab.gateway.cancellations.cancel_call(await lab.make_caller(scopes=SCOPES), call_id)
        envelope = await load_envelope(lab, call_id)
        assert (envelope["state"], envelope["error"]["number"]) == ("canceled", "E3703"), envelope
        # Long before its time is over.
        await wait_until(has_ended, seconds=20)
        assert (await run_cell(lab, "x", session))["result"] == [1]


async def test_a_cell_that_does_not_succeed_leaves_the_session_as_it_was(fresh_database: str, tmp_path: Path) -> None:
    set_behaviour("left", answer(1))
    set_behaviour("broken", raise_error(ToolPrecondition("locked")))
    settings = CodeSettings(tools=SETTINGS.tools, seconds=2)
    async with open_code_lab(fresh_database, tmp_path, settings) as lab:
        session = (await run_cell(lab, "x = [1]"))["session"]["id"]
        for code, slug in (
            ("x.append(2)\n1 / 0", "program-failed"),
            ("x.append(3)\nwhile True:\n    pass", "tool-timeout"),
            ("x.append(4)\ny = [0] * 10**9", "out-of-memory"),
            ("x.append(5)\nlab__put(tag='left')\nlab__put(tag='broken')", "program-failed"),
        ):
            kind, envelope = await fail_cell(lab, code, session)
            details = envelope["error"]["details"]
            assert (kind, details["session"]) == (slug, {"id": session, "cells": 1}), envelope
        # What it did outside stays, and is named.
        assert [each["step"] for each in details["completed_steps"]] == ["call_1"]
        assert (await run_cell(lab, "x", session))["result"] == [1]


async def test_the_same_key_does_not_run_a_cell_twice(fresh_database: str, tmp_path: Path) -> None:
    async with open_code_lab(fresh_database, tmp_path) as lab:
        session = (await run_cell(lab, "n = 0"))["session"]["id"]
        for _ in range(2):
            assert (await run_cell(lab, "n += 1\nn", session, key="same"))["result"] == 1
        assert (await run_cell(lab, "n", session, key="other"))["result"] == 1


async def test_cells_at_once_do_not_mix(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path, tools=(*TOOLS, declare_tool()), code=SETTINGS) as lab:
        set_behaviour("at-once", answer(1))
        began = await start_cell(lab, "log = []")
        await drive(lab, began)
        session = (await load_envelope(lab, began))["result"]["session"]["id"]
        one = await start_cell(lab, "log.append('one')\nlab__look(tag='at-once')\nlog", session)
        other = await start_cell(lab, "log.append('other')\nlog", session)
        found: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            genuine = program_run._replay

            async def interleave(*args: Any) -> Any:
                if not found:
                    found.append(None)
                    # The first cell has the session; the other one comes in its middle.
                    await drive(lab, other)
                return await genuine(*args)

            patch.setattr(program_run, "_replay", interleave)
            await drive(lab, one)
        refused = await load_envelope(lab, other)
        assert refused["type"].endswith("tool-conflict"), refused
        assert one in refused["detail"]
        assert (await load_envelope(lab, one))["result"]["result"] == ["one"]
        last = await start_cell(lab, "log", session)
        await drive(lab, last)
        assert (await load_envelope(lab, last))["result"]["result"] == ["one"]


@pytest.mark.parametrize("owner", [(program_run, "begin_cell"), (program_run, "_replay"), (program_run, "_save_end")])
@pytest.mark.parametrize("is_after", [False, True])
async def test_a_worker_that_dies_in_a_cell_changes_nothing_twice(
    fresh_database: str, tmp_path: Path, owner: tuple[Any, str], is_after: bool
) -> None:
    set_behaviour("dying", answer(1))
    async with open_lab(fresh_database, tmp_path, tools=(*TOOLS, declare_tool()), code=SETTINGS) as lab:
        began = await start_cell(lab, "n = 0")
        await drive(lab, began)
        session = (await load_envelope(lab, began))["result"]["session"]["id"]
        cell = await start_cell(lab, "n += 1\nlab__put(tag='dying')\nn", session)
        before = len(list_effects("dying"))
        with pytest.MonkeyPatch.context() as patch:
            plant_deaths(patch, *owner, is_after=is_after)
            for _ in range(3):
                with contextlib.suppress(Killed):
                    await drive(lab, cell)
        envelope = await load_envelope(lab, cell)
        assert envelope["result"]["result"] == 1, envelope
        assert envelope["result"]["session"]["cells"] == 2
        assert len(list_effects("dying")) == before + 1


async def test_a_session_of_another_caller_or_tenant_does_not_exist(fresh_database: str, tmp_path: Path) -> None:
    async with open_code_lab(fresh_database, tmp_path) as lab:
        session = (await run_cell(lab, "secret = 'hush'"))["session"]["id"]
        other_person = await lab.make_caller("ben", scopes=SCOPES)
        token = mint_dev_token(lab.folder, subject="ana", agent="other-agent", scopes=SCOPES)
        other_agent = await lab.gateway.authenticate(f"Bearer {token}".encode())
        missing = "01999999-9999-7999-8999-999999999999"
        answers = []
        for by, wanted in ((other_person, session), (other_agent, session), (other_person, missing)):
            kind, envelope = await fail_cell(lab, "secret", wanted, by)
            assert kind == "tool-precondition"
            assert "hush" not in str(envelope)
            answers.append(envelope["detail"])
        assert len(set(answers)) == 1, "it is not told apart from one that does not exist"
        assert (await run_cell(lab, "secret", session))["result"] == "hush"


async def test_another_tenant_loads_no_session(fresh_database: str, tmp_path: Path) -> None:
    async with open_code_lab(fresh_database, tmp_path) as lab:
        session = (await run_cell(lab, "1"))["session"]["id"]
        own = await start_cell(lab, "2", "new")
        async with lab.runtime.store.write_transaction() as connection:
            load = code_sessions._SQL["load_session"]
            assert await connection.fetchval(load, "dev", own, session) is not None
            assert await connection.fetchval(load, "beside", own, session) is None
        await load_envelope(lab, own)


async def test_sessions_are_bounded_and_expire(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CodeSettings(tools=("lab.*",), sessions=1, session_minutes=1)
    async with open_code_lab(fresh_database, tmp_path, settings) as lab:
        kind, envelope = await fail_cell(lab, "1 / 0")
        assert "session" not in envelope["error"]["details"], "it began none"
        session = (await run_cell(lab, "x = 1"))["session"]["id"]
        kind, envelope = await fail_cell(lab, "y = 1")
        assert (kind, envelope["error"]["details"]["limit"]) == ("resource-limit", "sessions")
        monkeypatch.setattr(code_sessions, "version", lambda _: "9.9")
        assert (await fail_cell(lab, "x", session))[0] == "tool-precondition"
        monkeypatch.undo()
        monkeypatch.setattr(code_sessions, "_build_oldest_id", lambda *_: "ffffffff-ffff-7fff-8fff-ffffffffffff")
        kind, envelope = await fail_cell(lab, "x + 0", session)
        assert "has expired" in envelope["detail"]


def test_a_session_that_grows_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_job, "MAX_STATE", 20_000)
    request = {
        "code": "x = list(range(9000))", "functions": [], "calls": [], "seconds": 5.0, "memory_bytes": 32 << 20,
        "clock_ms": 0, "seed": "s", "sandbox": None, "session": {"cells": 0, "state": ""},
    }  # fmt: skip
    reply = orjson.loads(program_job.replay_job(orjson.dumps(request)))
    assert reply["end"]["failure"]["kind"] == "session_size"
    assert "state" not in reply
