"""Call one function in every place where it can run, in turn, and compare the medians.

The function counts words: in the gateway's process, in a server process without and with a sandbox, in a command with a
sandbox of its own, and in a program of `code.run`. All but the last are governed calls over REST. A program is a run of
a worker, whose queue is not what is asked for: so its job is measured as the worker starts it, on the interpreter that
waits for it, and on one that has to be started.
"""

import hashlib
import itertools
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson

from deputize.execute.job_processes import JobProcesses
from deputize.runs.interpreter import InterpreterSandboxes
from deputize.runs.program_job import replay_job
from deputize.sandboxes.client import SandboxClient
from deputize.sandboxes.port import SandboxSpec
from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox

NAME = "sandbox_cost"
PROMISE = "What a sandbox adds to a call is known, for each place where a function can run."

_HERE = Path(__file__).parent
_TEXT = "seven words are in this short text"
_WORDS = len(_TEXT.split())
_PROGRAM = "/usr/bin/wc"
_SETTINGS = """
[sandboxes]
folder = "{folder}"
accept = ["weak_limits"]

[[servers]]
name = "plain"
command = ["/usr/bin/python3", "-S", "{script}", "count_here"]
reads = ["*"]
sandbox = false
accept_risk = ["unpinned", "same-user", "unsandboxed"]

[[servers]]
name = "boxed"
command = ["/usr/bin/python3", "-S", "{script}", "count_inside"]
reads = ["*"]
accept_risk = ["unpinned"]

[[services]]
name = "lab"
kind = "commands"
document = "{document}"
sha256 = "{sha256}"
"""
Measure = Callable[[], Awaitable[bool]]


async def prove(sandbox: Sandbox) -> Verdict:
    gateway = await _open_gateway(sandbox)
    http = HttpConnection.for_url(gateway.url, token=gateway.issuer.issue_token("ana"))
    client = SandboxClient(sandbox.folder / "sandboxes", accept_weak_limits=True, accept_shared_user=True)
    interpreters, jobs, cold_jobs = InterpreterSandboxes(client), JobProcesses(), JobProcesses()
    memories = itertools.count(32 << 20, 4_096)
    measures: dict[str, Measure] = {
        name: _make_call(http, tool)
        for name, tool in (
            ("in_process", "words.count"), ("server", "plain.count_here"), ("server_in_sandbox", "boxed.count_inside"),
            ("command", "lab.count"),
        )
    }  # fmt: skip
    measures |= {
        "bare_function": _count_here,
        "bare_sandbox": lambda: _run_sandbox(client),
        "interpreter_job": lambda: _run_program(interpreters, jobs, 32 << 20),
        # What waits there has another limit, so that it is of no use.
        "cold_interpreter_job": lambda: _run_program(interpreters, cold_jobs, next(memories)),
    }
    times: dict[str, list[float]] = {name: [] for name in measures}
    failed = 0
    rounds = sandbox.pick_size(quick=40, full=500)
    try:
        for number in range(-5, rounds):
            for name, measure in measures.items():
                began = time.perf_counter()
                has_counted = await measure()
                # The first ones start what stays warm.
                if number >= 0:
                    times[name].append(1_000 * (time.perf_counter() - began))
                    failed += not has_counted
    finally:
        await client.aclose()
        await jobs.aclose()
        await cold_jobs.aclose()
        http.close()
    return Verdict(figures={"rounds": rounds, "calls_failed": failed, **compute_figures(times)})


def compute_figures(times: dict[str, list[float]]) -> dict[str, Figure]:
    """Compute the medians, and what each place takes above the gateway's own process."""
    medians = {name: statistics.median(each) for name, each in times.items()}
    base, bare = medians["in_process"], medians["bare_function"]
    return {
        "in_process_p50_ms": round(base, 3),
        "server_above_in_process_ms": round(medians["server"] - base, 3),
        "server_in_sandbox_above_in_process_ms": round(medians["server_in_sandbox"] - base, 3),
        "sandbox_of_server_ms": round(medians["server_in_sandbox"] - medians["server"], 3),
        "command_above_in_process_ms": round(medians["command"] - base, 3),
        "bare_sandbox_ms": round(medians["bare_sandbox"] - bare, 3),
        "interpreter_job_above_function_ms": round(medians["interpreter_job"] - bare, 3),
        "cold_interpreter_job_above_function_ms": round(medians["cold_interpreter_job"] - bare, 3),
    }


def _make_call(http: HttpConnection, tool: str) -> Measure:
    async def call() -> bool:
        envelope = (await http.post("/v1/calls", {"tool": tool, "arguments": {"text": _TEXT}})).json()
        return envelope.get("state") == "succeeded" and str(_WORDS) in str(envelope["result"])

    return call


async def _count_here() -> bool:
    return len(_TEXT.split()) == _WORDS


async def _run_sandbox(client: SandboxClient) -> bool:
    result = await client.run(SandboxSpec(command=(_PROGRAM, "--words"), seconds=30.0), _TEXT.encode())
    return result.stdout.strip() == str(_WORDS).encode()


async def _run_program(interpreters: InterpreterSandboxes, jobs: JobProcesses, memory_bytes: int) -> bool:
    request = {
        "code": f"len({_TEXT!r}.split())", "functions": [], "calls": [], "seconds": 10.0, "memory_bytes": memory_bytes,
        "clock_ms": 0, "seed": "proof", "sandbox": await interpreters.describe(),
    }  # fmt: skip
    reply = await jobs.run_job("acme", replay_job, orjson.dumps(request))
    return reply is not None and orjson.loads(reply)["end"].get("result") == _WORDS


async def _open_gateway(sandbox: Sandbox) -> GatewayHandle:
    script, document = sandbox.folder / "word_server.py", sandbox.folder / "lab.json"
    shutil.copyfile(_HERE / "word_server.py", script)
    text = {"type": "string", "description": "A text", "examples": ["one two"]}
    command = {
        "name": "lab.count", "description": "Count the words of a text.", "command": [_PROGRAM, "--words"],
        "sha256": _compute_digest(Path(_PROGRAM)), "stdin": "text",
        "input_schema": {"properties": {"text": text}, "required": ["text"]},
    }  # fmt: skip
    document.write_bytes(orjson.dumps({"tools": [command]}))
    settings = _SETTINGS.format(
        folder=sandbox.folder / "sandboxes", script=script, document=document, sha256=_compute_digest(document)
    )
    postgres = await sandbox.start_postgres()
    return await start_gateway(
        sandbox, postgres.dsn, create_issuer(), tools="words.py", tool_folder=_HERE / "tools", settings=settings
    )


def _compute_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
