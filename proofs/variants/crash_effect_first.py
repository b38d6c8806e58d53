"""A gateway that acts first and claims afterwards: a kill in between leaves an effect that nobody knows of."""

from deputize.core.contract import MutationClass
from deputize.core.outcome import Outcome
from deputize.lifecycle import execute as phase
from deputize.lifecycle import run
from deputize.lifecycle.claim import claim
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.phases import Authorized, Executed, Held
from deputize.lifecycle.rooms import Rooms
from proofs.kit.variant import serve_changed

_real = phase.execute


async def act_then_claim(rooms: Rooms, authorized: Authorized) -> Executed | Outcome:
    validated = authorized.validated
    if validated.tool.contract.mutation_class is MutationClass.READ:
        return await _real(rooms, authorized)
    held = Held(call_id=validated.received.call_id, epoch=1)
    tool = rooms.driver.find(validated.tool.contract)
    executed = await phase.dispatch(rooms, authorized, tool, held)
    claimed = await claim(rooms, authorized)
    return claimed if isinstance(claimed, Outcome) else executed


def change(gateway: Gateway) -> Gateway:
    vars(run)["execute"] = act_then_claim
    return gateway


if __name__ == "__main__":
    serve_changed(change)
