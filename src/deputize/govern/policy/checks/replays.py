"""Evaluate the query of a decision record again: with the policies of then, and with the active ones.

Rules that take long are evaluated in another process (`execute/job_processes.py`), where `replay_job` runs.
"""

import asyncio
from typing import Any

import orjson

from deputize.govern.policy.attribute_values import describe_rules
from deputize.govern.policy.cedar import CompiledPolicies, is_costly
from deputize.govern.policy.decision_records import Replay, parse_replay
from deputize.govern.policy.evaluation_job import JobRunner
from deputize.govern.policy.explain import find_smallest_changes
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.govern.policy.unmet_demand import deny_replayed

_OVERRUN = "a result in time: the rules for this tool take too long to evaluate again"


async def confirm_replay(
    policies: CompiledPolicies, record: bytes, now_ms: int | None, run_job: JobRunner
) -> bool | None:
    """Tell whether the policies of then decide the same again; None if that cannot be told."""
    replay = parse_replay(record, now_ms=now_ms)
    if replay.verdict.source != "cedar" or replay.find_missing(policies.get_query_slice(replay.query).reads):
        return None
    replay_now = await replay_query(policies, record, now_ms, run_job, explains=False)
    return None if replay_now["behavior"] is None else bool(replay_now["behavior"] == replay.verdict.behavior)


async def replay_query(
    policies: CompiledPolicies, record: bytes, now_ms: int | None, run_job: JobRunner, *, explains: bool = True
) -> dict[str, Any]:
    """Evaluate a record's query with these policies, and find what would make them allow it."""
    replay = parse_replay(record, now_ms=now_ms)
    slice_ = await asyncio.to_thread(policies.get_query_slice, replay.query)
    missing = replay.find_missing(slice_.reads)
    if missing:
        return {"behavior": None, "rules": [], "missing": list(missing), "allowed_if": []}
    if not is_costly(slice_, replay.query.facts):
        return await asyncio.to_thread(_describe_replay, policies, replay, explains=explains)
    request = {
        "files": [[file.path, file.text] for file in policies.files],
        "facts": policies.facts,
        "record": record.decode(),
        "now_ms": now_ms,
        "explains": explains,
    }
    reply = await run_job(replay_job, orjson.dumps(request))
    if reply is None:
        return {"behavior": None, "rules": [], "missing": [_OVERRUN], "allowed_if": []}
    result: dict[str, Any] = orjson.loads(reply)
    return result


def replay_job(payload: bytes) -> bytes:
    """Evaluate a record's query in another process, where it may take long."""
    request = orjson.loads(payload)
    policies = CompiledPolicies([PolicyFile(path=path, text=text) for path, text in request["files"]], request["facts"])
    replay = parse_replay(request["record"].encode(), now_ms=request["now_ms"])
    return orjson.dumps(_describe_replay(policies, replay, explains=request["explains"], may_take_long=True))


def _describe_replay(
    policies: CompiledPolicies, replay: Replay, *, explains: bool, may_take_long: bool = False
) -> dict[str, Any]:
    verdict = deny_replayed(policies.evaluate_query(replay.query, may_take_long=may_take_long), replay.verdict)
    return {
        "behavior": verdict.behavior,
        "rules": describe_rules(policies, verdict, replay.query),
        "missing": [],
        "allowed_if": (
            find_smallest_changes(policies, replay.query, may_take_long=may_take_long)
            if explains and not verdict.weak_sandbox
            else []
        ),
    }
