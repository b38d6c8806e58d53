"""Find the next call of a program, or how it ended: what `evaluate_flow` does for declared steps.

`flow_run.py` makes the calls. A program is run by `runs/program_job.py`, from its beginning with what is recorded of
its calls, in a process that can be killed. What it calls next is recorded with a digest before it is called, and the
end of the program before it counts: whichever worker goes on finds the same, and a program that does something else
than before is ended.

A call that failed without having changed anything is an exception that the program may catch. One that may have changed
something ends the program.
"""

import asyncio
import base64
import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal
from uuid import UUID

import orjson

from deputize.catalog.snapshot import TenantTools
from deputize.core.contract.contract import Contract
from deputize.core.contract.flow import FlowCall
from deputize.core.contract.names import to_full_name
from deputize.core.errors import (
    FlowFailed,
    OutOfMemory,
    Problem,
    ProgramCrashed,
    ProgramFailed,
    ResourceLimitExceeded,
    SandboxFailed,
    ToolConflict,
    ToolPrecondition,
    ToolRequiresSetup,
    ToolTimeout,
)
from deputize.core.event_loop.task_cancellation import cancel_until_done
from deputize.core.json_pointer import MISSING, find_value, parse_pointer
from deputize.core.settings import CodeSettings
from deputize.core.states import State
from deputize.execute.job_processes import JobRefused
from deputize.lifecycle.durable.active_runs import POLL_SECONDS
from deputize.lifecycle.durable.code_sessions import CodeSession, SessionRefused, begin_cell, drop_session, keep_cell
from deputize.lifecycle.durable.flow_steps import FlowSteps, StepCall, edit_document
from deputize.lifecycle.durable.resume import PendingRun, RunNotReady
from deputize.lifecycle.phases import CallContext
from deputize.lifecycle.runtime import Runtime
from deputize.runs.flow_state import WITHHELD, FlowFailure, FlowState, ReadyCall
from deputize.runs.program_job import replay_job
from deputize.sandboxes.client import SandboxUnavailable
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL: Final = load_statements("flows")
_WORDS: Final = re.compile(r"\w+")
_RETRY_SECONDS: Final = 2.0
# A supervisor that was killed is started again, and the program computes the same again.
_SANDBOX_ATTEMPTS: Final = 3
_PRINTED_TAIL: Final = 4_000
_REFUSED_STATES: Final = frozenset({State.DENIED, State.BLOCKED})
_INVALID_STATES: Final = frozenset({State.VALIDATION_FAILED, State.SCHEMA_PARSE_FAILED})


async def evaluate_program(
    runtime: Runtime, run: PendingRun, steps: FlowSteps, *, is_stopping: bool
) -> tuple[FlowSteps, FlowState]:
    """Evaluate a program: the call to make next, or its end, which the returned steps have then too.

    One that is stopping is not run any more.
    """
    if is_stopping or steps.program["end"] is not None:
        return steps, conclude_program(steps, is_stopping=is_stopping)
    if any(each.record.is_open for each in steps.calls.values()):
        return steps, FlowState()
    settings = runtime.settings.builtin.code
    if settings is None:
        raise RunNotReady("[builtin.code] is not set here", seconds=_RETRY_SECONDS, unable=True)
    session, end, state = None, _find_end(steps, settings), None
    try:
        if (wanted := _find_input(run, "session")) is not None:
            session = await begin_cell(runtime, run.validated.call, settings, wanted)
    except SessionRefused as refused:
        end = end or _build_end(refused.kind, str(refused), len(steps.program["calls"]))
    if end is None:
        tools = (await runtime.authority.load_tenant(run.validated.call.tenant)).tools
        functions = find_functions(_find_words(run, session), settings, tools)
        reply = await _replay(runtime, run, steps, settings, functions, session)
        if "call" in reply:
            return steps, await _plan_call(runtime, run, reply["call"], functions, reply["seconds"])
        end, state = reply["end"], reply.get("state")
    steps = await _save_end(runtime, run, steps, end, session, state)
    return steps, conclude_program(steps, is_stopping=False)


def conclude_program(steps: FlowSteps, *, is_stopping: bool) -> FlowState:
    """Evaluate what is recorded of a program, without running it."""
    end = steps.program["end"]
    if end is None and not is_stopping:
        return FlowState()
    open_paths = tuple(path for path, each in steps.calls.items() if each.record.is_open)
    failure = None if end is None else end.get("failure")
    has_succeeded = end is not None and failure is None
    return FlowState(
        canceled=open_paths,
        has_ended=not open_paths,
        output=end if has_succeeded else None,
        failure=None if failure is None or "path" not in failure else FlowFailure(path=failure["path"]),
        has_succeeded=has_succeeded and not open_paths,
    )


def build_program_problem(end: Mapping[str, Any]) -> Problem:
    """Build the problem of a program that did not succeed."""
    failure = end["failure"]
    line, message = failure.get("line"), failure["message"]
    where = "" if line is None else f"line {line}: "
    details = {name: value for name, value in failure.items() if name not in ("kind", "message", "path")}
    details["printed"] = end["printed"][-_PRINTED_TAIL:]
    if "session" in end:
        details["session"] = end["session"]
    make = _PROBLEMS.get(failure["kind"], ProgramFailed)
    if make is ResourceLimitExceeded:
        details["limit"] = failure["kind"]
    advice = _ADVICE.get(failure["kind"])
    return make(f"{where}{message}", details=details, advice=advice)


_PROBLEMS: Final[Mapping[str, type[Problem]]] = {
    "time": ToolTimeout, "timed_out": ToolTimeout, "memory": OutOfMemory, "crashed": ProgramCrashed,
    "recursion": ResourceLimitExceeded, "calls": ResourceLimitExceeded, "call": FlowFailed,
    "sandbox": SandboxFailed, "setup": ToolRequiresSetup, "session_gone": ToolPrecondition,
    "session_busy": ToolConflict, "sessions": ResourceLimitExceeded, "session_size": ResourceLimitExceeded,
}  # fmt: skip
_ADVICE_SANDBOX: Final = (
    "The operator must run deputize sandboxes check on the hosts of the workers, which says what to change."
)
_ADVICE: Final[Mapping[str, str]] = {
    "time": "Compute less, or make fewer calls after what takes long; or have the operator raise builtin.code.seconds.",
    "timed_out": "Compute less: the interpreter had to be ended.",
    "memory": "Keep fewer values at once, or have the operator raise builtin.code.memory_mb.",
    "crashed": "Write the program more plainly. If it happens again, report the program to the operator.",
    "recursion": "Use a loop.",
    "calls": "Make fewer calls in one program, or have the operator raise builtin.code.calls.",
    "sandbox": _ADVICE_SANDBOX,
    "setup": _ADVICE_SANDBOX,
    "session_gone": "Begin another one with session='new', and run again what it needs.",
    "session_busy": "Wait for that call, or cancel it, then send this program again.",
    "sessions": "Go on with one of them, or wait until one expires.",
    "session_size": "Set large variables to None at the end of the program, and send it again. Its calls were made.",
    "not_allowed": "Call a tool that builtin.code.tools lists, as namespace__name(argument=value).",
}


def _find_words(run: PendingRun, session: CodeSession | None) -> frozenset[str]:
    """Find what may be the name of a tool in a program, or was in an earlier one of its session."""
    words = frozenset(each for each in _WORDS.findall(_get_code(run)) if "__" in each)
    return words if session is None else words | session.names


def find_functions(words: frozenset[str], settings: CodeSettings, tools: TenantTools) -> dict[str, str]:
    """Find the tools that a program names and may call, by the names that they have in it."""
    names = {name: to_full_name(name) for name in words}
    return {
        name: full_name
        for name, full_name in names.items()
        if not {full_name, f"{full_name.partition('.')[0]}.*"}.isdisjoint(settings.tools)
        and (contract := tools.find_contract(full_name)) is not None
        and not _runs_programs(contract, tools, set())
    }


def _runs_programs(contract: Contract, tools: TenantTools, seen_names: set[str]) -> bool:
    """Tell whether a tool runs programs, or a flow in it does: programs in programs multiply what one may take."""
    if contract.flow is None:
        return False
    names = {call.tool for step in contract.flow.walk() for call in step.calls} - seen_names
    seen_names |= names
    inner_contracts = [each for each in map(tools.find_contract, names) if each is not None]
    return contract.flow.program is not None or any(_runs_programs(each, tools, seen_names) for each in inner_contracts)


def _find_end(steps: FlowSteps, settings: CodeSettings) -> dict[str, Any] | None:
    """Find how a program ends that must not go on: by a call whose effect is not known, or by a limit."""
    count = len(steps.program["calls"])
    for path, call in steps.calls.items():
        if call.record.state is not State.SUCCEEDED and not call.record.may_fall_back:
            planned = steps.program["calls"][path]
            message = f"{planned['tool']} failed, and may have changed something: {_explain_error(call)}"
            return _build_end("call", message, count, path=path, line=planned["line"])
    if steps.program["seconds"] >= settings.seconds:
        return _build_end("time", f"the program computed for more than {settings.seconds:g} s", count)
    return None


def _build_end(kind: str, message: str, count: int, **fields: Any) -> dict[str, Any]:
    failure = {"kind": kind, "message": message, **fields}
    return {"failure": failure, "printed": "", "is_printed_cut": False, "calls": count}


async def _replay(
    runtime: Runtime, run: PendingRun, steps: FlowSteps, settings: CodeSettings, functions: Mapping[str, str],
    session: CodeSession | None,
) -> dict[str, Any]:  # fmt: skip
    """Run the program in a process of its own, as far as its recorded calls lead."""
    call, seconds = run.validated.call, settings.seconds - steps.program["seconds"]
    request = {
        "code": _get_code(run),
        "functions": list(functions),
        "calls": [_build_record(planned, steps.calls.get(path)) for path, planned in steps.program["calls"].items()],
        "seconds": seconds,
        "memory_bytes": settings.memory_mb * 1024 * 1024,
        # Ids contain the time at which they were made.
        "clock_ms": UUID(call.call_id).int >> 80,
        "seed": call.call_id,
    }
    if session is not None:
        request["session"] = {"cells": session.cells, "state": base64.b64encode(session.state).decode()}
    made_calls = len(steps.program["calls"])
    for _ in range(_SANDBOX_ATTEMPTS):
        try:
            request["sandbox"] = await runtime.interpreters.describe()
        except SandboxUnavailable as error:
            if made_calls:
                raise RunNotReady(f"programs need a sandbox: {error}", seconds=_RETRY_SECONDS, unable=True) from error
            return {"end": _build_end("setup", f"programs need a sandbox, and this host has none: {error}", 0)}
        # Results may be large.
        payload = await asyncio.to_thread(orjson.dumps, request)
        fields = await _run_job(runtime, call, payload, seconds, made_calls)
        if fields.get("end", {}).get("failure", {}).get("kind") != "sandbox":
            break
    planned = fields.get("call")
    if planned is not None and planned["function"] not in functions:
        message = f"{planned['function']} is no tool that programs may call any more"
        return {"end": _build_end("not_allowed", message, made_calls, line=planned["line"])}
    if planned is not None and planned["number"] > settings.calls:
        message = f"the program made {settings.calls} calls, and wants another one"
        return {"end": _build_end("calls", message, made_calls, line=planned["line"])}
    return fields


async def _run_job(
    runtime: Runtime, call: CallContext, payload: bytes, seconds: float, made_calls: int
) -> dict[str, Any]:
    """Run the program until it calls a tool or ends; it is ended at once if its call is canceled."""
    job = asyncio.create_task(
        runtime.program_jobs.begin_job(call.tenant, replay_job, payload, seconds=math.ceil(seconds) + 1)
    )
    stop = asyncio.create_task(_wait_for_stop(runtime, call))
    try:
        await asyncio.wait({job, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            stop.result()
            raise RunNotReady("its call was canceled, or has ended", seconds=0.0)
        reply = await job
    except JobRefused as refused:
        raise RunNotReady("too many programs run", seconds=_RETRY_SECONDS) from refused
    finally:
        await cancel_until_done(stop)
        # Its process is killed with it, and so is its sandbox.
        await cancel_until_done(job)
    if reply is None:
        message = "the program, or a value that it returned or passed on, took too much time or memory"
        return {"end": _build_end("memory", message, made_calls)}
    fields: dict[str, Any] = orjson.loads(reply)
    return fields


async def _wait_for_stop(runtime: Runtime, call: CallContext) -> None:
    """Wait until the call is canceled, or has ended: another worker may conclude it meanwhile."""
    must_stop: bool | None = False
    while must_stop is False:
        await asyncio.sleep(POLL_SECONDS)
        with contextlib.suppress(*CONNECTION_ERRORS):
            async with runtime.store.write_transaction() as connection:
                must_stop = await connection.fetchval(_SQL["must_flow_stop"], call.tenant, call.call_id)


def _build_record(planned: Mapping[str, Any], call: StepCall | None) -> dict[str, Any]:
    """Describe a call that the program made before: what it gets for it. One that was not made yet has no answer."""
    record: dict[str, Any] = {"digest": planned["digest"]}
    if call is None:
        return record
    if call.record.state is not State.SUCCEEDED:
        kind = "RuntimeError"
        if call.record.state in _REFUSED_STATES:
            kind = "PermissionError"
        elif call.record.state in _INVALID_STATES:
            kind = "ValueError"
        record["answer"] = {"exc_type": kind, "message": _explain_error(call)}
    elif call.record.result is WITHHELD:
        message = f"the result of {planned['tool']} is stored by reference, and cannot be passed to a program"
        record["answer"] = {"exc_type": "RuntimeError", "message": message}
    else:
        record["answer"] = {"return_value": call.record.result}
    return record


def _explain_error(call: StepCall) -> str:
    error = call.error or {}
    message = error.get("message") or f"its call is {call.record.state}"
    return f"{message} ({error['number']})" if "number" in error else str(message)


async def _plan_call(
    runtime: Runtime, run: PendingRun, planned: Mapping[str, Any], functions: Mapping[str, str], seconds: float
) -> FlowState:
    """Record what the program calls next, and return it as the call to make."""
    call, path = run.validated.call, f"call_{planned['number']}"
    fields = {"tool": functions[planned["function"]], "digest": planned["digest"], "line": planned["line"]}
    keys = await runtime.keys.get(call.tenant)
    async with (
        runtime.store.write_transaction() as connection,
        edit_document(connection, keys, call.tenant, call.call_id) as document,
    ):
        program = document["program"]
        recorded = program["calls"].setdefault(path, fields)
        program["seconds"] += seconds
        if recorded["digest"] != planned["digest"] and program["end"] is None:
            program["end"] = _build_end("differs", "the program did something else than before", planned["number"] - 1)
    if recorded["digest"] != planned["digest"]:
        raise RunNotReady("the program did something else than before", seconds=0.0)
    return FlowState(
        ready=(
            ReadyCall(
                path=path, step=path, call=FlowCall(tool=recorded["tool"]), arguments=planned["arguments"],
                time_share=1.0,
            ),
        )
    )  # fmt: skip


async def _save_end(
    runtime: Runtime, run: PendingRun, steps: FlowSteps, end: dict[str, Any], session: CodeSession | None,
    state: str | None,
) -> FlowSteps:  # fmt: skip
    """Record how the program ended, and what it leaves in its session; what another worker recorded first stays."""
    call = run.validated.call
    keys = await runtime.keys.get(call.tenant)
    async with (
        runtime.store.write_transaction() as connection,
        edit_document(connection, keys, call.tenant, call.call_id) as document,
    ):
        program = document["program"]
        if program["end"] is None:
            if session is not None:
                words = _find_words(run, session)
                was_kept = state is not None and await keep_cell(connection, keys, call, session, state, words)
                if state is not None and not was_kept:
                    raise RunNotReady("its call has ended, and its session may have gone on", seconds=_RETRY_SECONDS)
                if was_kept or not await drop_session(connection, call, session):
                    end = {**end, "session": session.describe(was_kept=was_kept)}
            program["end"] = end
    return replace(steps, program=program)


def _get_code(run: PendingRun) -> str:
    return str(_find_input(run, "program"))


def _find_input(run: PendingRun, field: Literal["program", "session"]) -> Any:
    """Find a part of the input that the contract names; None if it was not given."""
    flow = run.validated.contract.flow
    assert flow is not None
    source = getattr(flow, field)
    value = MISSING if source is None else find_value({"input": run.validated.call_input}, parse_pointer(source))
    return None if value is MISSING else value
