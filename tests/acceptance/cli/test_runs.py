"""Long calls at the command line: started, left, found again, watched, stopped, made again; and who carries them."""

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.shell import Running, deputize, make_project

pytestmark = pytest.mark.requirement("INV-4")

LONG = '''
import asyncio
from typing import Annotated

from pydantic import Field

from deputize import ToolContext, tool


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
    """Go up step by step, and remember each."""
    steps = list(context.restored or [])
    while len(steps) < to:
        steps.append(context.attempt)
        await context.save(steps, name=f"step {len(steps)}")
        await asyncio.sleep(0.3)
    return steps
'''


@pytest.fixture(scope="module")
def long(desk: Path) -> Iterator[Path]:
    folder = make_project(desk / "long")
    (folder / "tools" / "long.py").write_text(LONG)
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        yield folder
        assert dev.interrupt() == 0


def _call(folder: Path, to: int) -> str:
    made = deputize("call", "long.count", f"to={to}", "--json", folder=folder)
    assert (made.code, made.json["state"]) == (0, "queued")
    call_id: str = made.json["call_id"]
    return call_id


def test_a_long_call_is_answered_at_once_and_watched_to_its_end(long: Path) -> None:
    started = deputize("call", "long.count", "to=4", folder=long)
    assert (started.code, started.out.startswith("✓ queued: call ")) == (0, True)
    call_id = started.out.split()[-1]
    assert f"deputize calls watch {call_id}" in started.err
    watched = deputize("calls", "watch", call_id, folder=long)
    assert watched.code == 0
    assert "of 4 · at" in watched.out
    assert "so far: 4" in watched.out
    assert watched.out.splitlines()[-1].startswith("succeeded")
    assert deputize("calls", "show", call_id, "--json", folder=long).json["result"] == 4
    assert call_id in deputize("calls", "list", folder=long).out


def test_who_waits_gets_the_result_and_nothing_else_on_stdout(long: Path) -> None:
    waited = deputize("call", "long.count", "to=2", "--async", "--wait", folder=long)
    assert (waited.code, waited.out) == (0, "2\n")
    assert "at 0" in waited.err
    told = deputize("call", "long.count", "to=1", "--wait", "--json", folder=long)
    assert (told.json["state"], told.json["result"]) == ("succeeded", 1)


def test_watching_prints_json_for_programs(long: Path) -> None:
    watched = deputize("calls", "watch", _call(long, 2), "--json", folder=long)
    events = [json.loads(line) for line in watched.out.splitlines()]
    assert events[-1]["event"] == "tool.invocation.succeeded"
    assert any(each["event"] == "tool.invocation.progress" for each in events)


def test_a_call_is_canceled_and_asked_for_again(long: Path) -> None:
    call_id = _call(long, 100)
    while deputize("calls", "show", call_id, "--json", folder=long).json["state"] != "running":
        time.sleep(0.1)
    canceled = deputize("calls", "cancel", call_id, folder=long)
    assert (canceled.code, "within a second" in canceled.out) == (0, True)
    watched = deputize("calls", "watch", call_id, folder=long)
    assert (watched.code, watched.out.splitlines()[-1].split()[0]) == (1, "canceled")
    again = deputize("calls", "retry", call_id, "--json", folder=long)
    assert (again.code, again.json["state"]) == (0, "queued")
    assert deputize("calls", "cancel", again.json["call_id"], folder=long).code == 0
    done = _call(long, 0)
    assert deputize("calls", "watch", done, folder=long).code == 0
    refused = deputize("calls", "retry", done, folder=long)
    assert (refused.code, "E3707" in refused.err, "it has succeeded" in refused.err) == (1, True, True)


@pytest.mark.requirement("RES-7")
def test_a_run_is_sent_back_to_a_named_checkpoint(long: Path) -> None:
    call_id = deputize("call", "long.climb", "to=25", "--json", folder=long).json["call_id"]
    half = ("calls", "rollback", call_id, "step 2")
    while (sent := deputize(*half, folder=long)).code:
        # The names there are grow while the run goes on.
        assert "(E3712)" in sent.err
        time.sleep(0.1)
    assert sent.out == f"✓ queued: call {call_id} goes on from step 2\n"
    unknown = deputize("calls", "rollback", "last", "step 99", folder=long)
    assert (unknown.code, "there is: step 1, step 2" in unknown.err) == (1, True)
    told = deputize(*half, "--json", folder=long)
    assert (told.code, told.json) == (0, {"call_id": call_id, "state": "queued", "checkpoint": "step 2"})
    assert deputize("calls", "watch", call_id, folder=long).code == 0
    assert len(deputize("calls", "show", call_id, "--json", folder=long).json["result"]) == 25
    late = deputize(*half, folder=long)
    assert (late.code, "has ended as succeeded" in late.err) == (1, True)


def test_what_cannot_be_sent_back_is_told_in_a_sentence(long: Path) -> None:
    for words, code, sentence in (
        (("01890000-0000-7000-8000-000000000000", "half"), 1, "there is no such run, or it is not yours"),
        (("no id", "half"), 1, "there is no such run, or it is not yours"),
        (("last", ""), 1, "checkpoint"),
        (("last",), 2, "Missing argument 'NAME'"),
    ):
        done = deputize("calls", "rollback", *words, folder=long)
        assert (done.code, sentence in done.err) == (code, True), done.said
    assert "Example: deputize calls rollback last half" in deputize("calls", "rollback", "--help", folder=long).out


def test_a_deadline_lets_a_call_go_on(long: Path) -> None:
    late = deputize("call", "hello.greet", "name=Ana", "--deadline", "5000", "--continue", folder=long)
    assert (late.code, late.out) == (0, '"Hello, Ana!"\n')


def test_callbacks_are_refused_where_nobody_allowed_them_and_failed_ones_are_listed(long: Path) -> None:
    refused = deputize("call", "long.count", "to=1", "--callback", "http://example.com/", folder=long)
    assert (refused.code, "E3225" in refused.err) == (1, True)
    assert "No dead letters" in deputize("webhooks", "deadletters", folder=long).out
    unknown = deputize("webhooks", "retry", "nothing", folder=long)
    assert (unknown.code, "E3708" in unknown.err) == (1, True)
    key = deputize("webhooks", "key", folder=long)
    assert key.out.startswith("whsec_")
    assert deputize("webhooks", "key", "billing", "--json", folder=long).json["secret"] != key.out.strip()


def test_a_worker_beside_the_others_says_how_it_is_and_what_goes_on_without_it(long: Path) -> None:
    assert "1 alive" in deputize("doctor", folder=long).out
    with Running("work", "--json", folder=long) as worker:
        ready = json.loads(worker.until('{"event": "ready"'))
        assert "2 alive" in deputize("doctor", folder=long).out
        for path in ("/healthz", "/readyz", "/metrics"):
            with urllib.request.urlopen(ready["metrics"].replace("/metrics", path)) as answer:
                assert answer.status == 200
        assert worker.interrupt(signal.SIGTERM) == 0
        assert '"event": "stopped", "left": 0' in worker.said[-1]
    assert "1 alive" in deputize("doctor", folder=long).out


def test_a_worker_without_a_database_says_what_to_do(desk: Path) -> None:
    lonely = deputize("work", folder=make_project(desk / "lonely"))
    assert (lonely.code, "deputize dev has a worker inside" in lonely.err) == (2, True)
