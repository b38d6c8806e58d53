"""A worker that repeats whatever a dead one left, also where the upstream cannot tell a repeat from a second wish."""

from deputize.lifecycle.durable import resume
from deputize.operations.gateway import Gateway
from proofs.kit.worker_variant import run_worker_variant


def change(gateway: Gateway) -> Gateway:
    vars(resume)["is_safe_to_repeat"] = lambda _: True
    return gateway


if __name__ == "__main__":
    run_worker_variant(change)
