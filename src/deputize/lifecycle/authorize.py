"""Phase three: may this caller make this call? Pure; asked again whenever a commit shows that authority changed."""

from functools import partial

from deputize.catalog.versions import in_range
from deputize.core.caller import Epochs
from deputize.core.errors import ToolNotFound
from deputize.govern.decide import decide
from deputize.lifecycle.authority import TenantAuthority
from deputize.lifecycle.phases import Authorized, Validated


def authorize(validated: Validated, authority: TenantAuthority, *, until: int | None = None) -> Authorized:
    """`until`: the revocation epoch to decide as of, where the authority at hand may be newer."""
    check = authority.revocations.check
    decision = decide(
        validated.received.caller,
        validated.tool.contract,
        epochs=authority.epochs,
        check_revoked=check if until is None else partial(check, until=until),
        in_range=in_range,
    )
    return Authorized(validated=validated, decision=decision)


def authorize_again(authorized: Authorized, authority: TenantAuthority, committed: Epochs) -> Authorized:
    """The same question as of a commit: the tool must still stand as it was validated, and nothing of the caller may
    have been revoked by then. Authority read since may be newer; a revocation that came after the commit came too late.
    """
    validated = authorized.validated
    contract = validated.tool.contract
    decided = authorized.decision.epochs.registry
    if authority.tools.stood_still(contract.full_name, contract.version, decided, committed.registry):
        return authorize(validated, authority, until=committed.revocation)
    found = authority.tools.resolve(contract.full_name, contract.version, visible=lambda _: True)
    if found.tool.digest != validated.tool.digest:
        raise ToolNotFound(f"{contract.full_name} {contract.version} was replaced while the call was on its way")
    return authorize(validated, authority, until=committed.revocation)
