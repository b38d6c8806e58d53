"""Run long calls at the command line: start, watch, cancel, retry and roll them back, with workers."""

import json
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import BackgroundCommand, make_project, run_as_operator, run_deputize

pytestmark = [pytest.mark.requirement("INV-4"), pytest.mark.nightly]

LONG_TOOL = '''
import asyncio
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deputize import ToolContext, tool

SUMMIT = Path(__file__).parent.parent / "summit"


@tool(effects="read", timeout=600.0)
async def count(to: Annotated[int, Field(description="How far to count", examples=[3])], context: ToolContext) -> int:
    """Count slowly, and say how far it is."""
    for number in range(to):
        context.progress(number, to, f"at {number}")
        await asyncio.sleep(0.3)
    context.partial(to)
    return to


@tool(effects="read", timeout=600.0, checkpoints={"enabled": True})
async def climb(to: Annotated[int, Field(description="How high", examples=[3])], context: ToolContext) -> list[int]:
    """Go up step by step, and remember each; the last one waits until a test opens the summit."""
    steps = list(context.saved_state or [])
    while len(steps) < to:
        while len(steps) == to - 1 and not SUMMIT.exists():
            await asyncio.sleep(0.1)
        steps.append(context.attempt)
        await context.save(steps, name=f"step {len(steps)}")
        await asyncio.sleep(0.3)
    return steps
'''


@pytest.fixture(scope="module")
def long_project(workspace: Path) -> Iterator[Path]:
    folder = make_project(workspace / "long")
    (folder / "tools" / "long.py").write_text(LONG_TOOL)
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        yield folder
        assert dev.interrupt() == 0


def _start_long_call(folder: Path, to: int) -> str:
    made = run_deputize("call", "long.count", f"to={to}", "--json", folder=folder)
    assert (made.code, made.json["state"]) == (0, "queued")
    call_id: str = made.json["call_id"]
    return call_id


def test_a_long_call_is_answered_at_once_and_watched_to_its_end(long_project: Path) -> None:
    started = run_deputize("call", "long.count", "to=4", folder=long_project)
    assert (started.code, started.out.startswith("✓ queued: call ")) == (0, True)
    call_id = started.out.split()[-1]
    assert f"deputize calls watch {call_id}" in started.err
    watched = run_deputize("calls", "watch", call_id, folder=long_project)
    assert watched.code == 0
    assert "of 4 · at" in watched.out
    assert "partial result: 4" in watched.out
    assert watched.out.splitlines()[-1].startswith("succeeded")
    assert run_deputize("calls", "show", call_id, "--json", folder=long_project).json["result"] == 4
    assert call_id in run_deputize("calls", "list", folder=long_project).out


def test_who_waits_gets_the_result_and_nothing_else_on_stdout(long_project: Path) -> None:
    waited = run_deputize("call", "long.count", "to=2", "--async", "--wait", folder=long_project)
    assert (waited.code, waited.out) == (0, "2\n")
    assert "of 2 · at" in waited.err
    as_json = run_deputize("call", "long.count", "to=1", "--wait", "--json", folder=long_project)
    assert (as_json.json["state"], as_json.json["result"]) == ("succeeded", 1)


def test_watching_prints_json_for_programs(long_project: Path) -> None:
    watched = run_deputize("calls", "watch", _start_long_call(long_project, 2), "--json", folder=long_project)
    events = [json.loads(line) for line in watched.out.splitlines()]
    assert events[-1]["event"] == "tool.invocation.succeeded"
    assert any(each["event"] == "tool.invocation.progress" for each in events)


def test_a_call_is_canceled_and_asked_for_again(long_project: Path) -> None:
    call_id = _start_long_call(long_project, 1500)
    while run_deputize("calls", "show", call_id, "--json", folder=long_project).json["state"] != "running":
        time.sleep(0.1)
    canceled = run_deputize("calls", "cancel", call_id, folder=long_project)
    assert (canceled.code, "within a second" in canceled.out) == (0, True)
    watched = run_deputize("calls", "watch", call_id, folder=long_project)
    assert (watched.code, watched.out.splitlines()[-1].split()[0]) == (1, "canceled")
    again = run_deputize("calls", "retry", call_id, "--json", folder=long_project)
    assert (again.code, again.json["state"]) == (0, "queued")
    assert run_deputize("calls", "cancel", again.json["call_id"], folder=long_project).code == 0
    done = _start_long_call(long_project, 0)
    assert run_deputize("calls", "watch", done, folder=long_project).code == 0
    refused = run_deputize("calls", "retry", done, folder=long_project)
    assert (refused.code, "E3707" in refused.err, "it succeeded" in refused.err) == (1, True, True)


@pytest.mark.requirement("RES-7")
def test_a_run_is_sent_back_to_a_named_checkpoint(long_project: Path) -> None:
    call_id = run_deputize("call", "long.climb", "to=25", "--json", folder=long_project).json["call_id"]
    half = ("calls", "rollback", call_id, "step 2")
    while (sent := run_deputize(*half, folder=long_project)).code:
        # The names there are grow while the run goes on.
        assert "(E3712)" in sent.err
        time.sleep(0.1)
    assert sent.out == f"✓ queued: call {call_id} resumes from checkpoint step 2\n"
    unknown = run_deputize("calls", "rollback", "last", "step 99", folder=long_project)
    # In the order of the alphabet, and as many as the run saved until it was sent back.
    assert (unknown.code, re.search(r"available: step 1(, step 1\d)*, step 2", unknown.err) is not None) == (1, True), (
        unknown.output
    )
    as_json = run_deputize(*half, "--json", folder=long_project)
    assert (as_json.code, as_json.json) == (0, {"call_id": call_id, "state": "queued", "checkpoint": "step 2"})
    (long_project / "summit").touch()
    assert run_deputize("calls", "watch", call_id, folder=long_project).code == 0
    assert len(run_deputize("calls", "show", call_id, "--json", folder=long_project).json["result"]) == 25
    late = run_deputize(*half, folder=long_project)
    assert (late.code, "has ended as succeeded" in late.err) == (1, True)


def test_a_run_that_cannot_be_rolled_back_explains_why(long_project: Path) -> None:
    for words, code, sentence in (
        (("01890000-0000-7000-8000-000000000000", "half"), 1, "no run has this id, or it is not yours"),
        (("no id", "half"), 1, "no run has this id, or it is not yours"),
        (("last", ""), 1, "checkpoint"),
        (("last",), 2, "Missing argument 'NAME'"),
    ):
        done = run_deputize("calls", "rollback", *words, folder=long_project)
        assert (done.code, sentence in done.err) == (code, True), done.output
    assert (
        "Example: deputize calls rollback last half"
        in run_deputize("calls", "rollback", "--help", folder=long_project).out
    )


def test_a_deadline_lets_a_call_go_on(long_project: Path) -> None:
    late = run_deputize("call", "hello.greet", "name=Ana", "--deadline", "60000", "--continue", folder=long_project)
    assert (late.code, late.out) == (0, '"Hello, Ana!"\n')


def test_callbacks_are_refused_unless_allowed_and_failed_ones_are_listed(long_project: Path) -> None:
    refused = run_deputize("call", "long.count", "to=1", "--callback", "http://example.com/", folder=long_project)
    assert (refused.code, "E3225" in refused.err) == (1, True)
    assert "No dead letters" in run_deputize("webhooks", "deadletters", folder=long_project).out
    unknown = run_deputize("webhooks", "retry", "nothing", folder=long_project)
    assert (unknown.code, "E3708" in unknown.err) == (1, True)
    key = run_as_operator("webhooks", "key", "--host", "a.example", folder=long_project)
    assert key.out.startswith("whsec_")
    other_key = run_as_operator("webhooks", "key", "approvals", "--json", folder=long_project)
    assert other_key.json["secret"] != key.out.strip()


def test_a_worker_beside_the_others_says_how_it_is_and_what_goes_on_without_it(long_project: Path) -> None:
    assert "1 alive" in run_deputize("doctor", folder=long_project).out
    with BackgroundCommand("work", "--json", folder=long_project) as worker:
        ready = json.loads(worker.wait_for_line('{"event": "ready"'))
        assert "2 alive" in run_deputize("doctor", folder=long_project).out
        for path in ("/healthz", "/readyz", "/metrics"):
            with urllib.request.urlopen(ready["metrics"].replace("/metrics", path)) as answer:
                assert answer.status == 200
        assert worker.interrupt(signal.SIGTERM) == 0
        assert '"event": "stopped", "left": 0' in worker.lines[-1]
    assert "1 alive" in run_deputize("doctor", folder=long_project).out


def test_a_worker_without_a_database_says_what_to_do(workspace: Path) -> None:
    lonely = run_deputize("work", folder=make_project(workspace / "lonely"))
    assert (lonely.code, "start deputize dev first: it includes a worker" in lonely.err) == (2, True)
