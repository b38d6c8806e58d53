"""Derive a delegation to an agent from a caller's authority (token exchange, RFC 8693). Pure: authority only narrows.

Scopes and tools must be a subset of the subject token's, the effects ceiling may only fall, constraints are only added,
the expiry may only move closer, and the agent becomes the nearest actor. `operations/admin/delegations.py` records the
delegation before it issues a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NoReturn

import orjson

from deputize.core.caller import (
    ADMIN_SCOPE,
    AUDIT_SCOPE,
    BREAK_GLASS_SCOPE,
    OPERATE_SCOPE,
    UNDO_SCOPE,
    Caller,
    Capability,
)
from deputize.core.contract.contract import Effects
from deputize.core.delegation import EXCHANGE_SCOPES_RULE, DelegationRequest
from deputize.core.errors import ExchangeRefused
from deputize.core.grant_constraints import InvalidConstraints, parse_constraints
from deputize.core.subject import parse_subject
from deputize.govern.identity.claims import MAX_AGENTS, MAX_CAPABILITIES, MAX_SUBJECT_LENGTH, MAX_TASK_LENGTH, is_text
from deputize.govern.identity.dids import is_did

# The ids of the rules below, as refusals name them in `details.rule`.
TOOLS_RULE, CEILING_RULE, TASK_RULE, CONSTRAINTS_RULE, LIFETIME_RULE, AGENT_RULE = (
    f"exchange-{word}" for word in ("tools", "ceiling", "task", "constraints", "lifetime", "agent")
)
_EFFECTS_BY_SEVERITY = (Effects.READ, Effects.WRITE, Effects.DESTRUCTIVE)
_EVERY_VERSION = "*"
VersionCheck = Callable[[str, str], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delegation:
    """A delegation to be stored as a grant: all that its row and its token contain."""

    id: str
    parent: str | None
    tenant: str
    user: str
    agents: tuple[str, ...]
    agent_issuers: tuple[str, ...]
    grants: tuple[str, ...]
    scopes: frozenset[str]
    tools: tuple[Capability, ...] | None
    ceiling: Effects | None
    task: str | None
    # Its own, nearest first, and those of the delegations it was derived from.
    constraints: tuple[str, ...]
    own_constraints: str | None
    issued_at: int
    not_after: int


def derive_delegation(
    caller: Caller, request: DelegationRequest, *, id: str, now: int, max_lifetime: int, is_in_range: VersionCheck
) -> Delegation:
    """Derive the delegation, or raise `ExchangeRefused` with the exact reason.

    `is_in_range(versions, version)` tells whether one exact version is in a range.
    """
    _require_agent(caller, request)
    own_constraints = _check_constraints(request.constraints)
    return Delegation(
        id=id,
        parent=caller.grants[0] if caller.grants else None,
        tenant=caller.tenant,
        user=caller.user,
        agents=(request.agent, *caller.agents),
        agent_issuers=(request.proven_by, *caller.agent_issuers),
        grants=(id, *caller.grants),
        scopes=_narrow_scopes(caller, request.scopes),
        tools=_narrow_tools(caller.capabilities, request.tools, is_in_range),
        ceiling=_narrow_ceiling(caller.ceiling, request.ceiling),
        task=_narrow_task(caller.task, request.task),
        constraints=caller.constraints if own_constraints is None else (own_constraints, *caller.constraints),
        own_constraints=own_constraints,
        issued_at=now,
        not_after=_compute_expiry(caller, request.lifetime, now, max_lifetime),
    )


def _require_agent(caller: Caller, request: DelegationRequest) -> None:
    if not is_text(request.agent, MAX_SUBJECT_LENGTH):
        _refuse(
            AGENT_RULE, f"the agent's name must have 1 to {MAX_SUBJECT_LENGTH} characters and no control characters"
        )
    if is_did(request.agent) and not request.proven_by:
        _refuse(
            AGENT_RULE,
            "an agent named by a DID must prove its identity itself",
            advice="Send an actor_token signed by the DID, with this gateway as its audience.",
        )
    if len(caller.agents) >= MAX_AGENTS or len(caller.grants) >= MAX_AGENTS:
        _refuse(AGENT_RULE, f"the chain of delegations already has {MAX_AGENTS} agents, the maximum")


def _narrow_scopes(caller: Caller, scopes: frozenset[str] | None) -> frozenset[str]:
    if scopes is None:
        # What administers, operates or audits is delegated only if requested by name, and undo and an emergency
        # override are for people.
        return caller.scopes - {ADMIN_SCOPE, OPERATE_SCOPE, AUDIT_SCOPE, BREAK_GLASS_SCOPE, UNDO_SCOPE}
    extra_scopes = sorted(scopes - caller.scopes)
    if extra_scopes:
        _refuse(
            EXCHANGE_SCOPES_RULE,
            f"the subject token does not have the scopes {', '.join(extra_scopes)}",
            missing_scopes=extra_scopes,
        )
    return scopes


def _narrow_tools(
    parent_tools: tuple[Capability, ...] | None, tools: tuple[Capability, ...] | None, is_in_range: VersionCheck
) -> tuple[Capability, ...] | None:
    if tools is None:
        return parent_tools
    unique_tools = tuple(dict.fromkeys(tools))
    if len(unique_tools) > MAX_CAPABILITIES:
        _refuse(TOOLS_RULE, f"a token can list at most {MAX_CAPABILITIES} tools")
    for each in unique_tools:
        if parent_tools is not None and not any(_is_covered(parent, each, is_in_range) for parent in parent_tools):
            _refuse(
                TOOLS_RULE,
                f"the subject token does not allow {each.tool} in versions {each.versions}",
                tool=each.tool,
                held=[parent.versions for parent in parent_tools if parent.tool == each.tool],
            )
    return unique_tools


def _is_covered(parent: Capability, tool: Capability, is_in_range: VersionCheck) -> bool:
    """Tell whether every requested version is certainly allowed: an equal range, one exact version, or all versions.

    Other ranges are not compared, and count as not covered.
    """
    if parent.tool != tool.tool:
        return False
    return parent.versions in (_EVERY_VERSION, tool.versions) or is_in_range(parent.versions, tool.versions)


def _narrow_ceiling(parent_ceiling: Effects | None, ceiling: Effects | None) -> Effects | None:
    if ceiling is None:
        return parent_ceiling
    if parent_ceiling is not None and _EFFECTS_BY_SEVERITY.index(ceiling) > _EFFECTS_BY_SEVERITY.index(parent_ceiling):
        _refuse(CEILING_RULE, f"the subject token allows at most the effect {parent_ceiling}", ceiling=parent_ceiling)
    return ceiling


def _narrow_task(parent_task: str | None, task: str | None) -> str | None:
    """Keep the task if there is one, because budgets are counted by task."""
    if task is None:
        return parent_task
    if not is_text(task, MAX_TASK_LENGTH):
        _refuse(TASK_RULE, f"the task must have 1 to {MAX_TASK_LENGTH} characters and no control characters")
    if parent_task is not None and task != parent_task:
        _refuse(TASK_RULE, "the subject token was delegated for another task", task=parent_task)
    return task


def _check_constraints(constraints: bytes | None) -> str | None:
    """Refuse what cannot be enforced, and return the constraints as canonical text."""
    if constraints is None:
        return None
    try:
        return parse_constraints(constraints)[0]
    except InvalidConstraints as error:
        _refuse(CONSTRAINTS_RULE, str(error), advice="Remove what is not defined, or use a policy for it.")


def _compute_expiry(caller: Caller, lifetime: int | None, now: int, max_lifetime: int) -> int:
    if lifetime is not None and lifetime < 1:
        _refuse(LIFETIME_RULE, "a delegation must last at least one second")
    end = min(now + min(max_lifetime, lifetime or max_lifetime), caller.expires_at)
    if end <= now:
        _refuse(LIFETIME_RULE, "the subject token has expired")
    return end


def _refuse(rule: str, message: str, *, advice: str | None = None, **details: Any) -> NoReturn:
    raise ExchangeRefused(message, details={"rule": rule, **details}, advice=advice, nothing_happened=True)


def build_claims(delegation: Delegation, caller: Caller, *, audience: str) -> dict[str, Any]:
    """Build the claims of a delegation's token, without the issuer; `claims.build_delegate` parses them."""
    optional = {
        "tools": None if delegation.tools is None else serialize_tools(delegation.tools),
        "ceiling": delegation.ceiling,
        "task": delegation.task,
        "constraints": [orjson.loads(each) for each in delegation.constraints] or None,
        "sid": caller.session,
        "auth_time": caller.auth_time or None,
        "groups": sorted(caller.groups) or None,
    }
    return {
        "aud": audience,
        # The issuer's own name for the subject; `origin` is the issuer.
        "sub": parse_subject(delegation.user)[1],
        "act": build_act_claim(delegation.agents, delegation.agent_issuers),
        "jti": delegation.id,
        "iat": delegation.issued_at,
        "exp": delegation.not_after,
        "scope": " ".join(sorted(delegation.scopes)),
        "grants": list(delegation.grants),
        "origin": caller.issuer,
        "origin_jti": caller.first_token or caller.token_id,
        "trust": caller.trust,
        **{name: value for name, value in optional.items() if value is not None},
    }


def serialize_tools(tools: Sequence[Capability]) -> list[dict[str, str]]:
    return [{"tool_id": each.tool, "version_range": each.versions} for each in tools]


def build_act_claim(agents: Sequence[str], agent_issuers: Sequence[str] = ()) -> dict[str, Any]:
    """Build the nested `act` claim of RFC 8693, the nearest actor outermost; a proven actor has its issuer as `iss`."""
    act: dict[str, Any] = {}
    for agent, issuer in reversed(list(zip_longest(agents, agent_issuers, fillvalue=""))):
        act = {"sub": agent, **({"iss": issuer} if issuer else {}), **({"act": act} if act else {})}
    return act
