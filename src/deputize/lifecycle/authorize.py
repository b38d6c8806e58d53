"""Phase three: may this caller make this call? First what its token allows, then what the policies say.

Asked again whenever a commit shows that authority changed, as of that commit.
"""

from functools import partial

from deputize.catalog.versions import in_range
from deputize.core.caller import Caller, Epochs
from deputize.core.contract import Contract
from deputize.core.decision import Behavior, Decided, Decision, Question, Verdict
from deputize.core.errors import (
    ApprovalRequired,
    ApprovalVoid,
    Permission,
    PermissionDenied,
    PolicyFailed,
    ToolNotFound,
)
from deputize.govern.decide import decide
from deputize.govern.policy.engines import consult
from deputize.lifecycle.authority import TenantAuthority
from deputize.lifecycle.hooks import tightened
from deputize.lifecycle.phases import Approved, Authorized, Validated
from deputize.lifecycle.rooms import Rooms


async def authorize(
    rooms: Rooms,
    validated: Validated,
    authority: TenantAuthority,
    *,
    committed: Epochs | None = None,
    approved: Approved | None = None,
    may_ask: bool = False,
) -> Authorized:
    """`committed`: the epochs to decide as of, where the authority at hand may be newer. Where rules ask, that is a
    refusal, unless people approved exactly this; or, with `may_ask`, the decision says what it demands of people.
    """
    by_token = allowed_by_token(validated.received.caller, validated.tool.contract, authority, committed=committed)
    question = _question(rooms, validated)
    as_of = None if committed is None else committed.policy
    decided = authority.policy.decide(question, as_of=as_of)
    engine = rooms.settings.policy.engine
    if engine != "cedar":
        verdict = await consult(decided.verdict, question, rooms.remote_policy, engine)
        decided = authority.policy.recorded(question, verdict, as_of=as_of)
    decision = _judged(rooms, validated, by_token, decided, may_ask=may_ask or approved is not None)
    if approved is not None:
        _require_the_same(approved, decision)
    return Authorized(validated=validated, decision=decision, approved=approved)


def allowed_by_token(
    caller: Caller, contract: Contract, authority: TenantAuthority, *, committed: Epochs | None = None
) -> Decision:
    check = authority.revocations.check
    decision = decide(
        caller,
        contract,
        epochs=authority.epochs,
        check_revoked=check if committed is None else partial(check, until=committed.revocation),
        in_range=in_range,
    )
    authority.switches.check(caller, contract.full_name, until=None if committed is None else committed.revocation)
    return decision


async def authorize_again(
    rooms: Rooms, authorized: Authorized, authority: TenantAuthority, committed: Epochs
) -> Authorized:
    """The same question as of a commit: the tool must still stand as it was validated, nothing of the caller may have
    been revoked by then, and the policies in force then must allow it. Authority read since may be newer; what changed
    after the commit came too late.
    """
    validated = authorized.validated
    contract = validated.tool.contract
    decided = authorized.decision.epochs.registry
    if not authority.tools.stood_still(contract.full_name, contract.version, decided, committed.registry):
        found = authority.tools.resolve(contract.full_name, contract.version, visible=lambda _: True)
        if found.tool.digest != validated.tool.digest:
            raise ToolNotFound(f"{contract.full_name} {contract.version} was replaced while the call was on its way")
    return await authorize(
        rooms, validated, authority, committed=committed, approved=authorized.approved,
        may_ask=bool(authorized.decision.demands),
    )  # fmt: skip


def _question(rooms: Rooms, validated: Validated) -> Question:
    received, tool = validated.received, validated.tool
    given = tool.filled(validated.call_input)
    return Question(
        caller=received.caller,
        contract=tool.contract,
        environment=rooms.settings.environment,
        session=received.session,
        now_ms=rooms.clock.epoch_ms(),
        facts=tool.facts(given),
        withheld=tool.withheld,
        touches=tool.writes(given) if tool.contract.resources else (),
        cost_micros=rooms.limits.spent(received.caller, received.session),
    )


def _require_the_same(approved: Approved, decision: Decision) -> None:
    """People approved a call under certain rules: where others speak now, even milder ones, they are asked anew."""
    if decision.policy_digest != approved.policy_digest or decision.demands != approved.demands:
        raise ApprovalVoid(
            "the policies about this call changed since it was approved",
            details={"changed": ["policy"], "ticket_id": approved.ticket},
            nothing_happened=True,
        )


def _judged(rooms: Rooms, validated: Validated, by_token: Decision, decided: Decided, *, may_ask: bool) -> Decision:
    """The decision, kept with what it was made from; or the refusal, which names the same record."""
    verdict = tightened(decided.verdict, validated.hooked)
    decision = Decision(
        rules=by_token.rules + tuple(rule.id for rule in verdict.rules),
        epochs=by_token.epochs,
        policy_digest=verdict.digest,
        record_id=decided.record_id,
        demands=verdict.demands,
    )
    rooms.decisions.keep(validated.received.caller.tenant, decided)
    if verdict.behavior is Behavior.ALLOW or (verdict.behavior is Behavior.ASK and may_ask):
        return decision
    problem = _refusal(validated.tool.name, verdict)
    problem.decision = decision
    raise problem


def _refusal(tool: str, verdict: Verdict) -> Permission:
    spoke = ", ".join(f"{rule.id} ({rule.where})" if rule.where else rule.id for rule in verdict.rules)
    details = {
        "behavior": verdict.behavior,
        "rules": [{"id": rule.id, "where": rule.where, "reason": rule.reason} for rule in verdict.rules],
        "policy_digest": verdict.digest,
        "suggestion": verdict.suggestion,
    }
    if verdict.errors:
        return PolicyFailed(f"{tool}: a rule could not be evaluated: {spoke}", details=details, nothing_happened=True)
    why = next((rule.reason for rule in verdict.rules if rule.reason), verdict.reason)
    said = f": {why}" if why else ""
    if verdict.behavior is Behavior.ASK:
        return ApprovalRequired(
            f"{tool} needs a human's approval by {spoke}{said}",
            details=details,
            advice="Make the call again: people are then asked, and it goes on by itself once they approve.",
            nothing_happened=True,
        )
    return PermissionDenied(f"{tool} is not allowed by {spoke}{said}", details=details, nothing_happened=True)
