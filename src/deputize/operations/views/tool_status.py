"""Determine each tool's status for one caller: loaded, deferred, blocked or excluded, and why.

A tool that the token hides has no status: it is not listed, exactly like one that does not exist.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from deputize.catalog.snapshot import ToolVersion
from deputize.core.caller import Caller
from deputize.core.contract.availability import AvailabilityCode
from deputize.core.contract.contract import Contract, Effects, LifecycleState
from deputize.core.contract.unenforced_fields import describe_missing_setup
from deputize.core.decision import Behavior, MatchedRule, PolicyRequest
from deputize.core.errors import Problem
from deputize.core.value_types import frozen
from deputize.govern.policy.unmet_demand import deny_unmet
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority


class ToolStatus(StrEnum):
    LOADED = "loaded"
    DEFERRED = "deferred"
    BLOCKED = "blocked"
    EXCLUDED = "excluded"


@frozen
class ToolSelection:
    """The tools that a caller wants to see in this turn or task; all others are excluded."""

    namespaces: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    max_effects: Effects | None = None

    def find_exclusion(self, contract: Contract) -> str | None:
        if self.namespaces and contract.namespace not in self.namespaces:
            return "the selection names other namespaces"
        if self.tags and self.tags.isdisjoint(contract.tags):
            return "the selection names other tags"
        if self.max_effects is not None and _RANK[contract.effects] > _RANK[self.max_effects]:
            return f"the selection excludes tools with effects beyond {self.max_effects}"
        return None


_RANK = {effects: rank for rank, effects in enumerate(Effects)}


@frozen
class ToolAvailability:
    """A tool's status with a `code` for programs and a `message` for people; `rules` if policies decided."""

    status: ToolStatus
    code: AvailabilityCode
    message: str
    rules: tuple[MatchedRule, ...] = ()

    @property
    def is_listed(self) -> bool:
        """True if models are shown the tool. A pause ends by itself: lists that are read meanwhile have it, too."""
        return self.status is ToolStatus.LOADED or self.code is AvailabilityCode.CIRCUIT_OPEN

    def to_json(self, caller: Caller) -> dict[str, Any]:
        """Describe it for a caller. As in refusals, agents get no places of rules."""
        return {
            "status": self.status,
            "reason": {
                "code": self.code,
                "message": self.message,
                "rules": [
                    {"id": rule.id, "where": "" if caller.agents else rule.where, "reason": rule.reason}
                    for rule in self.rules
                ],
            },
        }


def determine_availability(
    runtime: Runtime, authority: TenantAuthority, caller: Caller, version: ToolVersion, selection: ToolSelection
) -> ToolAvailability:
    contract = version.tool.contract
    exclusion = selection.find_exclusion(contract)
    if exclusion is not None:
        return ToolAvailability(status=ToolStatus.EXCLUDED, code=AvailabilityCode.OUTSIDE_SELECTION, message=exclusion)
    blocker = (
        _check_state(version)
        or _check_token(authority, caller, contract)
        or _check_server(runtime, authority, contract)
    )
    if blocker is not None:
        return blocker
    availability = _check_policy(runtime, authority, caller, contract)
    if availability.status is ToolStatus.LOADED and version.state is LifecycleState.DEFERRED:
        return ToolAvailability(
            status=ToolStatus.DEFERRED,
            code=AvailabilityCode.DEFERRED_UNTIL_DISCOVERED,
            message="left out of lists until it is found by a search",
            rules=availability.rules,
        )
    if availability.status is ToolStatus.LOADED and runtime.circuits.unclosed_circuits:
        return _check_circuit(runtime, caller.tenant, contract) or availability
    return availability


def _check_state(version: ToolVersion) -> ToolAvailability | None:
    if version.state is LifecycleState.DISABLED:
        return ToolAvailability(
            status=ToolStatus.BLOCKED, code=AvailabilityCode.FEATURE_DISABLED, message="an administrator disabled it"
        )
    if version.state is LifecycleState.REQUIRES_SETUP:
        return ToolAvailability(
            status=ToolStatus.BLOCKED, code=AvailabilityCode.SETUP_REQUIRED, message="it is not set up yet"
        )
    unenforced_fields = version.tool.unenforced_fields
    if unenforced_fields:
        message = f"it {describe_missing_setup(unenforced_fields)}"
        return ToolAvailability(status=ToolStatus.BLOCKED, code=AvailabilityCode.SETUP_REQUIRED, message=message)
    return None


def _check_token(authority: TenantAuthority, caller: Caller, contract: Contract) -> ToolAvailability | None:
    try:
        authority.check_token(caller, contract)
    except Problem as problem:
        code = _TOKEN_CODES.get(problem.spec.slug, AvailabilityCode.POLICY_BLOCKED)
        return ToolAvailability(status=ToolStatus.BLOCKED, code=code, message=problem.message)
    return None


def _check_server(runtime: Runtime, authority: TenantAuthority, contract: Contract) -> ToolAvailability | None:
    if contract.handler.driver != "mcp":
        return None
    blocker = runtime.server_states.find_unavailability(
        authority.tools.tenant, contract, admitted_drift=authority.policy.policies.admitted_drift
    )
    return (
        None
        if blocker is None
        else ToolAvailability(status=ToolStatus.BLOCKED, code=blocker.code, message=blocker.reason)
    )


def _check_circuit(runtime: Runtime, tenant: str, contract: Contract) -> ToolAvailability | None:
    pause = runtime.circuits.find_pause(tenant, contract)
    if pause is None:
        return None
    message = f"{pause.message}; they are tried again in {math.ceil((pause.retry_after_ms or 0) / 1000)} s"
    return ToolAvailability(status=ToolStatus.BLOCKED, code=AvailabilityCode.CIRCUIT_OPEN, message=message)


_TOKEN_CODES = {
    "scope-missing": AvailabilityCode.ROLE_NOT_ALLOWED,
    "not-in-capability": AvailabilityCode.ROLE_NOT_ALLOWED,
    "switched-off": AvailabilityCode.FEATURE_DISABLED,
}


def _check_policy(runtime: Runtime, authority: TenantAuthority, caller: Caller, contract: Contract) -> ToolAvailability:
    question = PolicyRequest(
        caller=caller,
        contract=contract,
        environment=runtime.settings.environment,
        session=caller.session,
        now_ms=runtime.clock.epoch_ms(),
        facts={},
    )
    if runtime.settings.policy.engine == "authzen":
        return ToolAvailability(
            status=ToolStatus.LOADED,
            code=AvailabilityCode.DECIDED_PER_CALL,
            message="the policy decision point decides each call",
        )
    verdict = authority.policy.predict_verdict(question)
    if verdict is None:
        return ToolAvailability(
            status=ToolStatus.LOADED,
            code=AvailabilityCode.DECIDED_PER_CALL,
            message="its rules depend on each call's arguments",
        )
    if verdict.backend_demands:
        verdict = deny_unmet(verdict, runtime.driver.find_placement(contract, caller.tenant))
    if verdict.behavior is Behavior.DENY:
        return ToolAvailability(
            status=ToolStatus.BLOCKED,
            code=AvailabilityCode.POLICY_BLOCKED,
            message=_find_reason(verdict.rules, "no rule permits it"),
            rules=verdict.rules,
        )
    if verdict.behavior is Behavior.ASK:
        return ToolAvailability(
            status=ToolStatus.LOADED,
            code=AvailabilityCode.NEEDS_APPROVAL,
            message=_find_reason(verdict.rules, "each call needs a person's approval"),
            rules=verdict.rules,
        )
    if runtime.settings.policy.engine == "both":
        return ToolAvailability(
            status=ToolStatus.LOADED, code=AvailabilityCode.DECIDED_PER_CALL,
            message="the policy decision point also decides each call",
            rules=verdict.rules,
        )  # fmt: skip
    return ToolAvailability(
        status=ToolStatus.LOADED,
        code=AvailabilityCode.PERMITTED,
        message=_find_reason(verdict.rules, "a rule permits it"),
        rules=verdict.rules,
    )


def _find_reason(rules: Iterable[MatchedRule], default: str) -> str:
    return next((rule.reason for rule in rules if rule.reason), default)
