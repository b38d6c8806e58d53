"""Report how calls end to the terminal of a development gateway; other gateways report nothing."""

from deputize.core.call_report import CallReport
from deputize.core.decision import Behavior, Decision
from deputize.core.errors import Problem
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.lifecycle.phases import CallContext
from deputize.lifecycle.runtime import Runtime


def report_outcome(
    runtime: Runtime, call: CallContext, outcome: Outcome, decision: Decision | None, problem: Problem | None = None
) -> None:
    """Report an outcome that is about to be returned, and the problem that the call was refused with, if it was."""
    assert runtime.report_call is not None
    error = outcome.envelope.fields.get("error") if outcome.spec is not None else None
    runtime.report_call(
        CallReport(
            call_id=outcome.call_id,
            user=call.caller.user,
            agent=call.caller.agent_chain,
            tool=call.request.tool,
            behavior=_judge_behavior(decision, outcome),
            rules=() if decision is None else decision.rules,
            state=outcome.state,
            seconds=runtime.clock.monotonic() - call.started_at,
            error_number=None if outcome.spec is None else outcome.spec.e_number,
            error_message=problem.message if problem is not None else (error or {}).get("message", ""),
            is_replay=outcome.is_replay,
            is_dry_run=call.request.dry_run,
        )
    )


def _judge_behavior(decision: Decision | None, outcome: Outcome) -> Behavior | None:
    if decision is None:
        return None
    if outcome.state is State.DENIED:
        return Behavior.DENY
    return Behavior.ASK if decision.requirements else Behavior.ALLOW
