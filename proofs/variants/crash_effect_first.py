"""A gateway that acts first and claims afterwards: a kill in between leaves an effect that no one knows of."""

from deputize.core.contract.contract import MutationClass
from deputize.core.outcome import Outcome
from deputize.lifecycle import execute as phase
from deputize.lifecycle import run
from deputize.lifecycle.claim import ClaimGuard, acquire_claim
from deputize.lifecycle.phases import Authorized, Claim, Executed
from deputize.lifecycle.runtime import Runtime
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant

_real = phase.execute


async def act_then_claim(runtime: Runtime, authorized: Authorized, guard: ClaimGuard) -> Executed | Outcome:
    validated = authorized.validated
    if validated.contract.mutation_class is MutationClass.READ:
        return await _real(runtime, authorized, guard)
    own_claim = Claim(call_id=validated.call.call_id, epoch=1)
    tool = runtime.driver.find_tool(validated.contract)
    executed = await phase.dispatch_tool(runtime, authorized, tool, own_claim)
    claim_result = await acquire_claim(runtime, authorized)
    return claim_result if isinstance(claim_result, Outcome) else executed


def change(gateway: Gateway) -> Gateway:
    vars(run)["execute"] = act_then_claim
    return gateway


if __name__ == "__main__":
    serve_variant(change)
