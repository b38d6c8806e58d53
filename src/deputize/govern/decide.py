"""The decision about one call: a pure function of the caller, the contract and what has been revoked.

The lifecycle hands in what other rooms know: whether a version lies in a range (`catalog`), and the epochs
its snapshots were read at, so that a batch committed under newer ones is decided again.
"""

from collections.abc import Callable

from deputize.core.caller import ADMIN_SCOPE, RECONCILER, Caller, Epochs
from deputize.core.contract import Contract, Effects
from deputize.core.decision import Decision
from deputize.core.errors import NotInCapability, ScopeMissing, ToolNotFound

# The rules that speak here, by the names that decisions, refusals and audit entries carry.
SCOPES = "token-scopes"
CAPABILITIES = "token-tools"
CEILING = "grant-ceiling"
ADMIN = "admin-scope"
DECIDES = "console-token"
# No token: the gateway itself asks the status of a call whose outcome is unknown, and may read that one tool.
RECONCILIATION = "reconciliation"

_RANK = {effects: rank for rank, effects in enumerate(Effects)}
_BY_SCOPES = (SCOPES,)
_BY_SCOPES_AND_TOOLS = (SCOPES, CAPABILITIES)
_BY_RECONCILIATION = (RECONCILIATION,)


def visible(caller: Caller, full_name: str) -> bool:
    """A token that lists tools hides every other one; what is hidden answers like what does not exist."""
    listed = caller.capabilities
    return listed is None or any(capability.tool == full_name for capability in listed)


def decide(
    caller: Caller,
    contract: Contract,
    *,
    epochs: Epochs,
    check_revoked: Callable[[Caller], object],
    in_range: Callable[[str, str], bool],
) -> Decision:
    """Allows with the rules that said so, or raises the refusal.

    `check_revoked(caller)` raises if anything of the caller was revoked. `in_range(versions, version)` says
    whether a version lies in a token's range, and says no to a range it cannot read.
    """
    check_revoked(caller)
    if caller.only_decides:
        # No door lets such a token get this far; nothing here relies on that.
        raise NotInCapability("this token is for deciding approvals, and makes no calls", details={"rule": DECIDES})
    rules: tuple[str, ...] = _BY_SCOPES
    if caller.capabilities is not None:
        _require_listed(caller, contract, in_range)
        rules = _BY_RECONCILIATION if caller.issuer == RECONCILER else _BY_SCOPES_AND_TOOLS
    if caller.ceiling is not None and _RANK[contract.effects] > _RANK[caller.ceiling]:
        raise NotInCapability(
            f"{contract.full_name} is {contract.effects}, and this token was delegated for {caller.ceiling} at most",
            details={"effects": contract.effects, "ceiling": caller.ceiling, "rule": CEILING},
        )
    required = contract.auth.scopes
    if required and not caller.scopes.issuperset(required):
        missing = [scope for scope in required if scope not in caller.scopes]
        raise ScopeMissing(
            f"{contract.full_name} needs scopes this token does not have: {', '.join(missing)}",
            details={"missing_scopes": missing, "required_scopes": list(required), "rule": SCOPES},
        )
    return Decision(rules=rules, epochs=epochs)


def _require_listed(caller: Caller, contract: Contract, in_range: Callable[[str, str], bool]) -> None:
    name = contract.full_name
    ranges = [capability.versions for capability in caller.capabilities or () if capability.tool == name]
    if not ranges:
        raise ToolNotFound(f"there is no tool {name}")
    if not any(in_range(versions, contract.version) for versions in ranges):
        raise NotInCapability(
            f"the token covers {name} only in versions {', '.join(ranges)}, not {contract.version}",
            details={"version": contract.version, "allowed": ranges, "rule": CAPABILITIES},
        )


def require_administering(caller: Caller) -> None:
    """For whoever changes something by administering: nothing that was lent for less than the worst does."""
    require_admin(caller)
    if caller.ceiling not in (None, Effects.DESTRUCTIVE):
        raise NotInCapability(
            f"administering changes what everybody may do, and this token was delegated for {caller.ceiling} at most",
            details={"effects": Effects.DESTRUCTIVE, "ceiling": caller.ceiling, "rule": CEILING},
        )


def require_admin(caller: Caller) -> None:
    if not caller.is_admin:
        raise ScopeMissing(
            f"this needs the scope {ADMIN_SCOPE}",
            details={"missing_scopes": [ADMIN_SCOPE], "required_scopes": [ADMIN_SCOPE], "rule": ADMIN},
        )
