"""A worker that repeats whatever a dead one left, also where the upstream cannot tell a repeat from a second wish."""

from deputize.lifecycle import resume
from deputize.lifecycle.gateway import Gateway
from proofs.fleet.worker import work_changed


def change(gateway: Gateway) -> Gateway:
    vars(resume)["may_go_again"] = lambda _: True
    return gateway


if __name__ == "__main__":
    work_changed(change)
