"""A gateway that blocks its event loop for 0.2 s whenever a run is submitted."""

import time

from deputize.core.outcome import Outcome
from deputize.lifecycle import run
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.submit import submit_run
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


async def submit_while_blocking(runtime: Runtime, authorized: Authorized) -> Outcome:
    time.sleep(0.2)
    return await submit_run(runtime, authorized)


def change(gateway: Gateway) -> Gateway:
    return gateway


if __name__ == "__main__":
    vars(run)["submit_run"] = submit_while_blocking
    serve_variant(change)
