"""Where each tool stands for one caller in one context: loaded, deferred, blocked or excluded, and why.

A tool that the token hides has no standing at all: it is not listed, exactly like one that does not exist.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from deputize.catalog.snapshot import ToolVersion
from deputize.core.caller import Caller
from deputize.core.contract import Contract, Effects, LifecycleState
from deputize.core.decision import Behavior, Question, Rule
from deputize.core.errors import Problem
from deputize.core.frozen import frozen
from deputize.lifecycle.authority import TenantAuthority
from deputize.lifecycle.authorize import allowed_by_token
from deputize.lifecycle.rooms import Rooms


class Status(StrEnum):
    LOADED = "loaded"
    DEFERRED = "deferred"
    BLOCKED = "blocked"
    EXCLUDED = "excluded"


@frozen
class Selection:
    """What a caller wants to see in this turn or task; everything else is excluded by its own wish."""

    namespaces: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    worst: Effects | None = None

    def excludes(self, contract: Contract) -> str | None:
        if self.namespaces and contract.namespace not in self.namespaces:
            return "another namespace was asked for"
        if self.tags and self.tags.isdisjoint(contract.tags):
            return "other tags were asked for"
        if self.worst is not None and _RANK[contract.effects] > _RANK[self.worst]:
            return f"nothing beyond {self.worst} was asked for"
        return None


_RANK = {effects: rank for rank, effects in enumerate(Effects)}


@frozen
class Standing:
    """`code` is for programs, `why` for people; `rules` are the policy's where the policy spoke."""

    status: Status
    code: str
    why: str
    rules: tuple[Rule, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "reason": {
                "code": self.code,
                "message": self.why,
                "rules": [{"id": rule.id, "where": rule.where, "reason": rule.reason} for rule in self.rules],
            },
        }


def standing(
    rooms: Rooms, authority: TenantAuthority, caller: Caller, found: ToolVersion, selection: Selection
) -> Standing:
    contract = found.tool.contract
    excluded = selection.excludes(contract)
    if excluded is not None:
        return Standing(status=Status.EXCLUDED, code="outside_selection", why=excluded)
    blocked = _by_state(found) or _by_token(authority, caller, contract) or _by_server(rooms, caller.tenant, contract)
    if blocked is not None:
        return blocked
    judged = _by_policy(rooms, authority, caller, contract)
    if judged.status is Status.LOADED and found.state is LifecycleState.DEFERRED:
        return Standing(
            status=Status.DEFERRED,
            code="deferred_until_discovered",
            why="it is left out until somebody looks for it",
            rules=judged.rules,
        )
    return judged


def _by_state(found: ToolVersion) -> Standing | None:
    if found.state is LifecycleState.DISABLED:
        return Standing(status=Status.BLOCKED, code="feature_disabled", why="an administrator disabled it")
    if found.state is LifecycleState.REQUIRES_SETUP:
        return Standing(status=Status.BLOCKED, code="setup_required", why="it was not set up yet")
    return None


def _by_token(authority: TenantAuthority, caller: Caller, contract: Contract) -> Standing | None:
    try:
        allowed_by_token(caller, contract, authority)
    except Problem as problem:
        code = _CODES.get(problem.face.slug, "policy_blocked")
        return Standing(status=Status.BLOCKED, code=code, why=problem.message)
    return None


def _by_server(rooms: Rooms, tenant: str, contract: Contract) -> Standing | None:
    if contract.handler.driver != "mcp":
        return None
    against = rooms.servers.against(tenant, contract)
    return None if against is None else Standing(status=Status.BLOCKED, code=against.code, why=against.why)


_CODES = {
    "scope-missing": "role_not_allowed",
    "not-in-capability": "role_not_allowed",
    "switched-off": "feature_disabled",
}


def _by_policy(rooms: Rooms, authority: TenantAuthority, caller: Caller, contract: Contract) -> Standing:
    question = Question(
        caller=caller,
        contract=contract,
        environment=rooms.settings.environment,
        session=caller.session,
        now_ms=rooms.clock.epoch_ms(),
        facts={},
    )
    if rooms.settings.policy.engine == "authzen":
        return Standing(status=Status.LOADED, code="decided_per_call", why="a decision point is asked for each call")
    verdict = authority.policy.foresee(question)
    if verdict is None:
        return Standing(status=Status.LOADED, code="decided_per_call", why="its rules look at each call")
    if verdict.behavior is Behavior.DENY:
        return Standing(
            status=Status.BLOCKED, code="policy_blocked", why=_reason(verdict.rules, "no rule permits it"),
            rules=verdict.rules,
        )  # fmt: skip
    if verdict.behavior is Behavior.ASK:
        return Standing(
            status=Status.LOADED, code="needs_approval", why=_reason(verdict.rules, "a human must agree to each call"),
            rules=verdict.rules,
        )  # fmt: skip
    if rooms.settings.policy.engine == "both":
        return Standing(
            status=Status.LOADED, code="decided_per_call", why="a decision point is asked for each call, too",
            rules=verdict.rules,
        )  # fmt: skip
    return Standing(
        status=Status.LOADED, code="permitted", why=_reason(verdict.rules, "a rule permits it"), rules=verdict.rules
    )


def _reason(rules: Iterable[Rule], otherwise: str) -> str:
    return next((rule.reason for rule in rules if rule.reason), otherwise)
