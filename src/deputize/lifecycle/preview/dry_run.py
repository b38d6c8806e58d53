"""Perform a dry run: pass every phase up to the effect, and return what the call would do.

It claims nothing and uses no key. It is recorded like a read before it is returned, and so passes the barrier.
"""

from typing import Any

from deputize.core.outcome import Envelope, Outcome
from deputize.core.states import State
from deputize.govern.approvals.requirements import build_approval_plan, serialize_requirements
from deputize.lifecycle.claim import reauthorize_if_stale
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.preview.preview import PreviewResult, preview_call
from deputize.lifecycle.recording import audit
from deputize.lifecycle.runtime import Runtime

# The least time to record a preview that came just before the deadline.
_MIN_RECORD_SECONDS = 1.0


async def perform_dry_run(runtime: Runtime, authorized: Authorized) -> Outcome:
    preview = await preview_call(runtime, authorized)
    validated = authorized.validated
    now = runtime.stamps.now()
    seconds_left = max(validated.deadline.remaining_seconds(runtime.clock.monotonic()), _MIN_RECORD_SECONDS)
    commit = await runtime.writer.put(
        audit.build_dry_run_entry(runtime, authorized, preview.document, now), seconds=seconds_left
    )
    authorized = await reauthorize_if_stale(runtime, authorized, commit.epochs)
    runtime.metrics.record_dry_run(validated.contract)
    return _build_outcome(runtime, authorized, preview, now)


def _build_outcome(runtime: Runtime, authorized: Authorized, preview: PreviewResult, now: str) -> Outcome:
    validated = authorized.validated
    call, tool = validated.call, validated.tool
    body = {
        "call_id": call.call_id,
        "state": State.SUCCEEDED,
        "is_error": False,
        "trace_id": call.trail.trace_id,
        "dry_run": True,
        "result": None,
        "would": _describe_next_step(runtime, authorized, preview),
        "preview": preview.document,
        "tool": {"name": tool.name, "version": tool.contract.version, "digest": tool.digest},
        "decision": {"rules": authorized.decision.rules},
        "input": {"mutations": [{"path": m.path, "source": m.source, "change": m.change} for m in validated.mutations]},
        "context": validated.hook_effects.context,
        "warnings": validated.warnings + validated.hook_effects.messages,
        "created_at": now,
    }
    return Outcome(call_id=call.call_id, state=State.SUCCEEDED, envelope=Envelope(body))


def _describe_next_step(runtime: Runtime, authorized: Authorized, preview: PreviewResult) -> dict[str, Any]:
    """Describe what the call itself would meet next: a refusal, an approval request, or its tool."""
    demands = authorized.decision.requirements
    if preview.unmet_preconditions:
        behavior = "refuse"
    else:
        behavior = "ask" if demands else "run"
    requirements = (
        serialize_requirements(build_approval_plan(demands, runtime.settings.approvals).requirements) if demands else []
    )
    return {"behavior": behavior, "because": list(preview.unmet_preconditions), "approvals": requirements}
