"""Let a change of policies wait for a second operator, if `policy.approvals` is 2.

The first operator's change is stored as a proposal. It becomes active when another one puts exactly the same set, while
the policies that it would change are still the active ones. Both acts need an operator's proof, and both are recorded.
"""

from typing import Literal

from deputize.core.caller import PROCESS_ISSUER, Caller
from deputize.core.errors import OperatorConfirmationRequired, Unavailable
from deputize.govern.policy import active_policies, policy_proposals
from deputize.govern.policy.policy_proposals import PolicyProposal
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection

TWO_OPERATORS_RULE = "operator-second-person"
PolicyCommand = Literal["put_policies", "propose_policies", "confirm_policies"]


async def choose_command(runtime: Runtime, caller: Caller, digest: str) -> PolicyCommand:
    """Choose what putting this set means: activate, propose or confirm it. Raise if the caller proposed it.

    The process itself applies the settings of the operator who started it, and needs no second one.
    """
    if runtime.settings.policy.approvals < 2 or caller.issuer == PROCESS_ISSUER:
        return "put_policies"
    async with runtime.store.read_transaction(caller.tenant) as connection:
        proposal = await policy_proposals.find_proposal(connection, caller.tenant, digest)
    if proposal is None:
        return "propose_policies"
    _require_other_person(caller, proposal)
    return "confirm_policies"


async def perform_command(
    connection: Connection, caller: Caller, command: PolicyCommand, policies: active_policies.ParsedPolicies
) -> int | PolicyProposal:
    """Activate the policies and return their epoch, or return the proposal. Runs under the tenant's closed barrier."""
    if command == "put_policies":
        return await active_policies.put_policies(connection, caller.tenant, policies, by=caller.user)
    proposal = await policy_proposals.find_proposal(connection, caller.tenant, policies.digest)
    if (proposal is not None) != (command == "confirm_policies"):
        raise Unavailable(
            "another operator proposed or activated policies at this moment", retry_after_ms=0, nothing_happened=True
        )
    if proposal is None:
        return await policy_proposals.save_proposal(connection, caller.tenant, policies, by=caller.user)
    _require_other_person(caller, proposal)
    await policy_proposals.delete_proposal(connection, caller.tenant, policies.digest)
    return await active_policies.put_policies(connection, caller.tenant, policies, by=caller.user)


def _require_other_person(caller: Caller, proposal: PolicyProposal) -> None:
    if proposal.proposed_by == caller.user:
        raise OperatorConfirmationRequired(
            "you proposed these policies, so another operator must confirm them",
            details={"rule": TWO_OPERATORS_RULE, "expires_at": proposal.expires_at.isoformat()},
            advice=f"Ask another operator to run: deputize policy confirm {proposal.digest}",
        )
