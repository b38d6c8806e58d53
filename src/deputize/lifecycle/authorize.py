"""Phase three: decide whether this caller may make this call, first by its token, then by the policies.

Decided again whenever a commit shows that authority changed, as of that commit.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from deputize.core.caller import Epochs
from deputize.core.contract.availability import AvailabilityCode
from deputize.core.decision import Behavior, Decision, MatchedRule, PolicyRequest, RecordedVerdict, UndoneCall, Verdict
from deputize.core.errors import (
    ApprovalRequired,
    ApprovalVoid,
    PermissionDenied,
    PermissionProblem,
    PolicyFailed,
    ToolNotFound,
    Unavailable,
    UndoTooBroad,
)
from deputize.govern.policy.engines import consult_engines
from deputize.govern.policy.unmet_demand import UnmetDemand, find_unmet_demand
from deputize.govern.token_authorization import require_constraints
from deputize.lifecycle.hooks import tighten_verdict
from deputize.lifecycle.journal_reader import load_undone_calls, read_journal
from deputize.lifecycle.phases import ApprovalGrant, Authorized, Validated
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.store.pool import CONNECTION_ERRORS

_NO_LABELS: Final = frozenset[str]()


async def authorize(
    runtime: Runtime,
    validated: Validated,
    authority: TenantAuthority,
    *,
    commit_epochs: Epochs | None = None,
    approval: ApprovalGrant | None = None,
    may_ask: bool = False,
) -> Authorized:
    """Authorize the call, as of `commit_epochs` if the authority may be newer.

    If rules require approval, this refuses, unless people approved exactly this call; with `may_ask`, the decision
    carries the requirements instead.
    """
    token_decision = authority.check_token(validated.call.caller, validated.contract, commit_epochs=commit_epochs)
    arguments = validated.tool.fill_defaults(validated.call_input)
    if validated.call.caller.constraints:
        require_constraints(
            validated.call.caller,
            validated.contract,
            environment=runtime.settings.environment,
            arguments=arguments,
        )
    question = _build_question(runtime, validated, arguments)
    if (undone_id := validated.call.request.undoes) is not None:
        question = replace(question, undone=await _load_undone_call(runtime, validated.call.tenant, undone_id))
    as_of = None if commit_epochs is None else commit_epochs.policy
    run_job = partial(runtime.jobs.run_job, validated.call.tenant)
    policy_decision = await authority.policy.decide_off_loop(question, run_job, as_of=as_of)
    engine = runtime.settings.policy.engine
    if engine != "cedar":
        verdict = await consult_engines(policy_decision.verdict, question, runtime.remote_policy, engine)
        policy_decision = authority.policy.record_verdict(question, verdict, as_of=as_of)
    unmet_demand = _find_unmet_demand(runtime, validated, policy_decision.verdict)
    if unmet_demand is not None:
        # The record says that the call was denied, and what it lacked.
        verdict = unmet_demand.deny(policy_decision.verdict)
        policy_decision = authority.policy.record_verdict(question, verdict, as_of=as_of)
    decision = _record_decision(
        runtime, validated, token_decision, policy_decision, unmet_demand, may_ask=may_ask or approval is not None
    )
    if approval is not None:
        _require_same_policy(approval, decision)
    return Authorized(
        validated=_add_drift_warning(runtime, validated) if decision.admitted_drift else validated,
        decision=decision,
        approval=approval,
        side_effects=question.side_effects,
    )


async def reauthorize(
    runtime: Runtime, authorized: Authorized, authority: TenantAuthority, commit_epochs: Epochs
) -> Authorized:
    """Authorize the call again as of a commit.

    The tool must still be the one that was validated, nothing of the caller may be revoked by then, and the policies
    active then must allow it. What changed after the commit does not count.
    """
    validated = authorized.validated
    contract = validated.contract
    decision_epoch = authorized.decision.epochs.registry
    if not authority.tools.is_unchanged_between(
        contract.full_name, contract.version, decision_epoch, commit_epochs.registry
    ):
        version = authority.tools.resolve_version(contract.full_name, contract.version, visible=lambda _: True)
        if version.tool.digest != validated.tool.digest:
            raise ToolNotFound(f"{contract.full_name} {contract.version} was replaced while the call was running")
    return await authorize(
        runtime, validated, authority, commit_epochs=commit_epochs, approval=authorized.approval,
        may_ask=bool(authorized.decision.requirements),
    )  # fmt: skip


def _build_question(runtime: Runtime, validated: Validated, arguments: Mapping[str, Any]) -> PolicyRequest:
    call, tool = validated.call, validated.tool
    return PolicyRequest(
        caller=call.caller,
        contract=tool.contract,
        environment=runtime.settings.environment,
        session=call.session,
        now_ms=runtime.clock.epoch_ms(),
        facts=tool.read_facts(arguments),
        unrecorded_facts=tool.sensitive_facts,
        side_effects=tool.resolve_writes(arguments) if tool.contract.resources else (),
        cost_micros=runtime.limits.get_session_cost(call.caller, call.session),
        labels=frozenset(each.label for each in validated.suspicions) if validated.suspicions else _NO_LABELS,
    )


async def _load_undone_call(runtime: Runtime, tenant: str, entry_id: str) -> UndoneCall:
    """Load what is taken back, and whose words may be sent to do so. Without it, the rules cannot be read."""
    try:
        async with read_journal(runtime, tenant) as connection:
            found = await load_undone_calls(connection, tenant, [entry_id])
    except (UndoTooBroad, *CONNECTION_ERRORS) as error:
        raise Unavailable(
            "the journal entry that this call takes back could not be read", retry_after_ms=1000, nothing_happened=True
        ) from error
    if entry_id not in found:
        raise PolicyFailed(
            "what this call takes back is no longer in the journal, so the rules on it cannot be evaluated",
            nothing_happened=True,
        )
    return found[entry_id]


def _find_unmet_demand(runtime: Runtime, validated: Validated, verdict: Verdict) -> UnmetDemand | None:
    if not verdict.backend_demands:
        return None
    return find_unmet_demand(verdict, runtime.driver.find_placement(validated.contract, validated.call.tenant))


def _add_drift_warning(runtime: Runtime, validated: Validated) -> Validated:
    """Add the warning that rules let the call pass although a server changed the tool, so that the outcome says it."""
    contract = validated.contract
    if contract.handler.driver != "mcp":
        return validated
    held = runtime.server_states.find_unavailability(validated.call.tenant, contract)
    if held is None or held.code is not AvailabilityCode.TOOL_DRIFTED or held.reason in validated.warnings:
        return validated
    return replace(validated, warnings=(*validated.warnings, held.reason))


def _require_same_policy(approval: ApprovalGrant, decision: Decision) -> None:
    """Require that the policies are those of the approval: if they changed, even to milder ones, people decide anew."""
    if decision.policy_digest != approval.policy_digest or decision.requirements != approval.demands:
        raise ApprovalVoid(
            "the policies for this call changed after it was approved",
            details={"changed": ["policy"], "approval_id": approval.request_id},
            nothing_happened=True,
        )


def _record_decision(
    runtime: Runtime, validated: Validated, token_decision: Decision, policy_decision: RecordedVerdict,
    unmet_demand: UnmetDemand | None, *, may_ask: bool,
) -> Decision:  # fmt: skip
    """Return the recorded decision, or raise the refusal that names the same record."""
    verdict = policy_decision.verdict
    if validated.hook_effects.permissions:
        verdict = tighten_verdict(verdict, validated.hook_effects)
    decision = Decision(
        rules=token_decision.rules + tuple(rule.id for rule in verdict.rules),
        epochs=token_decision.epochs,
        policy_digest=verdict.digest,
        record_id=policy_decision.record_id,
        requirements=verdict.requirements,
        admitted_drift=verdict.admitted_drift,
        is_key_optional=verdict.is_key_optional,
        backend_demands=verdict.backend_demands,
    )
    runtime.decision_log.record_decision(validated.call.tenant, policy_decision)
    if unmet_demand is not None:
        raise _build_backend_refusal(validated, verdict, unmet_demand).replace(decision=decision)
    if verdict.behavior is Behavior.ALLOW or (verdict.behavior is Behavior.ASK and may_ask):
        return decision
    raise _build_refusal(validated, verdict).replace(decision=decision)


def _describe_rule(validated: Validated, rule: MatchedRule) -> tuple[str, dict[str, str]]:
    """Name a rule in words and as data. Agents get its id and reason; in which file it is, people see."""
    if validated.call.caller.agents:
        return rule.id, {"id": rule.id, "reason": rule.reason}
    name = f"{rule.id} ({rule.where})" if rule.where else rule.id
    return name, {"id": rule.id, "where": rule.where, "reason": rule.reason}


def _build_backend_refusal(validated: Validated, verdict: Verdict, unmet: UnmetDemand) -> PermissionDenied:
    demand = unmet.demand
    name, rule = _describe_rule(validated, MatchedRule(id=demand.rule, where=demand.where, reason=demand.reason))
    return PermissionDenied(
        f"{validated.tool.name} is not allowed by {name}, because {unmet.reason}",
        details={
            "behavior": Behavior.DENY,
            "rules": [rule],
            "backend": {"demanded": demand.backend, "available": unmet.placement},
            "policy_digest": verdict.digest,
        },
        advice=f"Call another tool. {unmet.advice}",
        nothing_happened=True,
    )


def _build_refusal(validated: Validated, verdict: Verdict) -> PermissionProblem:
    tool, described = validated.tool.name, [_describe_rule(validated, rule) for rule in verdict.rules]
    rule_names = ", ".join(name for name, _ in described)
    details: dict[str, Any] = {
        "behavior": verdict.behavior,
        "rules": [rule for _, rule in described],
        "policy_digest": verdict.digest,
        **({"suggestion": verdict.suggestion} if verdict.suggestion else {}),
    }
    if verdict.errors:
        return PolicyFailed(
            f"{tool}: a rule could not be evaluated: {rule_names}", details=details, nothing_happened=True
        )
    why = next((rule.reason for rule in verdict.rules if rule.reason), verdict.reason)
    suffix = f": {why}" if why else ""
    if verdict.behavior is Behavior.ASK:
        return ApprovalRequired(
            f"{tool} needs a person's approval by {rule_names}{suffix}",
            details=details,
            advice="Make the call again to request approval; it continues by itself once it is approved.",
            nothing_happened=True,
        )
    return PermissionDenied(f"{tool} is not allowed by {rule_names}{suffix}", details=details, nothing_happened=True)
