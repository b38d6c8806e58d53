"""A gateway and a worker that limit calls only where they are made, not where they run, as 0.1.0 did."""

import sys
from unittest.mock import patch

from deputize.lifecycle.durable import resume
from deputize.lifecycle.limits import Charge
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.runtime import Runtime
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant
from proofs.kit.worker_variant import run_worker_variant


async def _admit_any_run(runtime: Runtime, authorized: Authorized, *_: object) -> Charge:
    return Charge(runtime, authorized, None)


def change(gateway: Gateway) -> Gateway:
    patch.object(resume, "admit_run", _admit_any_run).start()
    return gateway


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        run_worker_variant(change)
    else:
        serve_variant(change)
