"""A job that takes too long ends its own process, and nothing waits for it but its tenant's next job."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import orjson
import pytest

from deputize.execute.job_processes import MAX_WAITING_PER_TENANT, JobProcesses
from deputize.govern.policy.evaluation_job import evaluate_job
from deputize.govern.policy.policy_parser import PolicyFile, build_set_json, parse_policies

_UID = {"type": "User", "id": "ann"}


def build_payload(*, rules: int, text: str = "a" * 8192) -> bytes:
    pattern = "*" + "a" * 4000 + "b"
    condition = f'context.facts.n like "{pattern}"'
    source = "".join(f'@id("r{n}") permit (principal, action, resource) when {{ {condition} }};' for n in range(rules))
    rules_json = build_set_json((each.id, each.ast) for each in parse_policies([PolicyFile(path="a", text=source)]))
    question = {
        "principal": _UID, "action": {"type": "Action", "id": "call"}, "resource": {"type": "Tool", "id": "a.b"},
        "context": orjson.dumps({"facts": {"n": text}}).decode(),
    }  # fmt: skip
    return orjson.dumps(
        {
            "digest": f"{rules}", "question": question, "entities": "[]", "rules": rules_json,
            "without_conditional_forbids": rules_json,
        }
    )  # fmt: skip


@pytest.fixture
async def jobs() -> AsyncIterator[JobProcesses]:
    processes = JobProcesses()
    yield processes
    await processes.aclose()


async def test_a_job_replies_from_another_process(jobs: JobProcesses) -> None:
    reply = await jobs.run_job("acme", evaluate_job, build_payload(rules=1, text="a" * 4000 + "b"))
    assert reply is not None
    assert orjson.loads(reply)[0]["decision"] == "Allow"
    # The same process still has the rules.
    again = orjson.loads(build_payload(rules=1, text="b"))
    del again["rules"]
    reply = await jobs.run_job("acme", evaluate_job, orjson.dumps(again))
    assert reply is not None
    assert orjson.loads(reply)[0]["decision"] == "Deny"


async def test_a_job_that_fails_or_overruns_gives_nothing_and_the_next_one_runs(jobs: JobProcesses) -> None:
    assert await jobs.run_job("acme", evaluate_job, b"no json") is None
    began = time.monotonic()
    costly, quick = await asyncio.gather(
        jobs.run_job("acme", evaluate_job, build_payload(rules=150), seconds=1),
        jobs.run_job("other", evaluate_job, build_payload(rules=1), seconds=60),
    )
    assert costly is None
    assert quick is not None
    assert time.monotonic() - began < 90
    assert await jobs.run_job("acme", evaluate_job, build_payload(rules=1), seconds=60) is not None


async def test_a_job_that_gets_the_processor_late_still_replies(jobs: JobProcesses) -> None:
    payload = build_payload(rules=1, text="b")
    assert await jobs.run_job("acme", evaluate_job, payload, seconds=60) is not None
    pid = jobs._idle[0]._process.pid
    os.kill(pid, signal.SIGSTOP)
    late = asyncio.create_task(jobs.run_job("acme", evaluate_job, payload, seconds=1))
    await asyncio.wait({late}, timeout=1.5)
    os.kill(pid, signal.SIGCONT)
    assert await late is not None


async def test_a_tenant_cannot_queue_any_number_of_jobs(jobs: JobProcesses) -> None:
    payload = build_payload(rules=1, text="b")
    replies = await asyncio.gather(
        *(jobs.run_job("acme", evaluate_job, payload, seconds=60) for _ in range(MAX_WAITING_PER_TENANT + 5))
    )
    assert replies.count(None) == 5
