"""Authorize a call by its token: a pure function of the caller, the contract and the revocations.

The lifecycle passes in what other packages know: the version range check of `catalog`, and the epochs of its snapshots,
so that a batch committed under newer epochs is decided again.
"""

from collections.abc import Callable, Mapping
from typing import Any

from deputize.core.caller import ADMIN_SCOPE, AUDIT_SCOPE, OPERATE_SCOPE, RECONCILER_ISSUER, Caller, Epochs
from deputize.core.contract.contract import Contract, Effects
from deputize.core.decision import Decision
from deputize.core.errors import ScopeMissing, ToolNotFound, VersionNotInCapability
from deputize.core.grant_constraints import load_constraints
from deputize.govern.identity.dev_issuer import ISSUER

# The ids of the rules below, as decisions, refusals and audit entries name them.
SCOPES_RULE = "token-scopes"
CAPABILITIES_RULE = "token-tools"
CEILING_RULE = "grant-ceiling"
CONSTRAINTS_RULE = "grant-constraints"
ADMIN_RULE = "admin-scope"
OPERATE_RULE = "operate-scope"
AUDIT_RULE = "audit-scope"
CONSOLE_TOKEN_RULE = "console-token"
# Not a token rule: the gateway itself queries the status of a call with an UNKNOWN outcome, with this one read tool.
RECONCILIATION_RULE = "reconciliation"

_DEV_ADVICE = (
    "This token is older than the scopes, or limited. deputize dev keeps one with every scope of its tools in the "
    "project: .deputize/agent-token for agents, .deputize/token for you."
)
_RANK = {effects: rank for rank, effects in enumerate(Effects)}
_BY_SCOPES = (SCOPES_RULE,)
_BY_SCOPES_AND_TOOLS = (SCOPES_RULE, CAPABILITIES_RULE)
_BY_RECONCILIATION = (RECONCILIATION_RULE,)


def list_visible_tools(caller: Caller) -> list[str] | None:
    """List the tools that a token may see, for a statement that filters by them; None if it hides none."""
    return None if caller.capabilities is None else sorted({each.tool for each in caller.capabilities})


def is_tool_visible(caller: Caller, full_name: str) -> bool:
    """Tell whether a token may see a tool. A token that lists tools hides all others as if they did not exist."""
    capabilities = caller.capabilities
    return capabilities is None or any(capability.tool == full_name for capability in capabilities)


def list_version_ranges(caller: Caller, full_name: str) -> list[str] | None:
    """List the version ranges that a token names for a tool; None if it names no tools and so limits none."""
    if caller.capabilities is None:
        return None
    return [each.versions for each in caller.capabilities if each.tool == full_name]


def authorize_token(
    caller: Caller,
    contract: Contract,
    *,
    epochs: Epochs,
    check_revoked: Callable[[Caller], object],
    is_in_range: Callable[[str, str], bool],
) -> Decision:
    """Return the decision with its rules, or raise the refusal.

    `check_revoked(caller)` raises if any authority of the caller was revoked. `is_in_range(versions, version)` tells
    whether a version is in a token's range, and is false for a range it cannot parse.
    """
    check_revoked(caller)
    if caller.only_decides:
        # Interfaces reject such a token earlier; this check does not rely on them.
        raise VersionNotInCapability(
            "this token is for deciding approval requests and cannot make calls", details={"rule": CONSOLE_TOKEN_RULE}
        )
    rules: tuple[str, ...] = _BY_SCOPES
    if caller.capabilities is not None:
        _require_capability(caller, contract, is_in_range)
        rules = _BY_RECONCILIATION if caller.issuer == RECONCILER_ISSUER else _BY_SCOPES_AND_TOOLS
    if caller.ceiling is not None and _RANK[contract.effects] > _RANK[caller.ceiling]:
        raise VersionNotInCapability(
            f"{contract.full_name} has the effect {contract.effects}, but this token was delegated for at most "
            f"{caller.ceiling}",
            details={"effects": contract.effects, "ceiling": caller.ceiling, "rule": CEILING_RULE},
        )
    required_scopes = contract.auth.required_scopes
    if required_scopes and not caller.scopes.issuperset(required_scopes):
        missing = [scope for scope in required_scopes if scope not in caller.scopes]
        raise ScopeMissing(
            f"{contract.full_name} needs scopes that this token lacks: {', '.join(missing)}",
            details={"missing_scopes": missing, "required_scopes": list(required_scopes), "rule": SCOPES_RULE},
            advice=_DEV_ADVICE if caller.issuer == ISSUER else None,
        )
    return Decision(rules=rules, epochs=epochs)


def require_constraints(caller: Caller, contract: Contract, *, environment: str, arguments: Mapping[str, Any]) -> None:
    """Require that the call satisfies the constraints of every delegation behind the token."""
    for text in caller.constraints:
        violation = load_constraints(text).find_violation(
            environment=environment, tool=contract.full_name, arguments=arguments
        )
        if violation is not None:
            raise VersionNotInCapability(
                f"the delegation does not allow this call of {contract.full_name}: {violation}",
                details={"rule": CONSTRAINTS_RULE},
                advice="Make a call that the delegation allows, or ask for another delegation.",
                nothing_happened=True,
            )


def _require_capability(caller: Caller, contract: Contract, is_in_range: Callable[[str, str], bool]) -> None:
    name = contract.full_name
    ranges = list_version_ranges(caller, name)
    if not ranges:
        raise ToolNotFound(f"unknown tool {name}")
    if not any(is_in_range(versions, contract.version) for versions in ranges):
        raise VersionNotInCapability(
            f"the token allows {name} only in versions {', '.join(ranges)}, not {contract.version}",
            details={"version": contract.version, "allowed": ranges, "rule": CAPABILITIES_RULE},
        )


def require_full_admin(caller: Caller) -> None:
    """Require an administrator whose token is not limited: to tools, to weaker effects than destructive ones, or by
    constraints.
    """
    require_admin(caller)
    _require_unlimited(caller)


def require_full_operator(caller: Caller) -> None:
    """Require an operator or administrator whose token is not limited, as `require_full_admin` does."""
    if not caller.can_operate:
        raise _build_missing_scope(OPERATE_SCOPE, OPERATE_RULE)
    _require_all_tools(caller)
    _require_unlimited(caller)


def require_admin(caller: Caller) -> None:
    """Require an administrator whose token names no tools: what follows is about all of them."""
    require_admin_scope(caller)
    _require_all_tools(caller)


def require_auditor(caller: Caller) -> None:
    """Require an auditor, an operator or an administrator whose token names no tools: what follows tells of all."""
    require_auditor_scope(caller)
    _require_all_tools(caller)


def require_admin_scope(caller: Caller) -> None:
    """Require an administrator. What follows shows only tools that the token may see: see `is_tool_visible`."""
    if not caller.is_admin:
        raise _build_missing_scope(ADMIN_SCOPE, ADMIN_RULE)


def require_auditor_scope(caller: Caller) -> None:
    """Require a caller who may read the tenant: an auditor, an operator or an administrator. What follows shows only
    tools that the token may see: see `is_tool_visible`.
    """
    if not caller.is_auditor:
        raise _build_missing_scope(AUDIT_SCOPE, AUDIT_RULE)


def _build_missing_scope(scope: str, rule: str) -> ScopeMissing:
    return ScopeMissing(
        f"this needs the scope {scope}",
        details={"missing_scopes": [scope], "required_scopes": [scope], "rule": rule},
    )


def _require_all_tools(caller: Caller) -> None:
    if caller.capabilities is not None:
        raise VersionNotInCapability(
            "this is about all tools of the tenant, but the token is limited to some of them",
            details={"rule": CAPABILITIES_RULE},
            advice="Ask for a token that names no tools.",
        )


def _require_unlimited(caller: Caller) -> None:
    if caller.ceiling not in (None, Effects.DESTRUCTIVE):
        raise VersionNotInCapability(
            f"administration needs the effect destructive, but this token was delegated for at most {caller.ceiling}",
            details={"effects": Effects.DESTRUCTIVE, "ceiling": caller.ceiling, "rule": CEILING_RULE},
        )
    if caller.constraints:
        raise VersionNotInCapability(
            "administration needs a token without constraints, because they apply to calls only",
            details={"rule": CONSTRAINTS_RULE},
        )
