"""A worker that needs nothing to itself: whatever it is handed, it runs at once."""

from deputize.lifecycle import resume
from deputize.lifecycle.gateway import Gateway
from proofs.fleet.worker import work_changed


def change(gateway: Gateway) -> Gateway:
    vars(resume)["needs_of"] = lambda rooms, validated: ()
    return gateway


if __name__ == "__main__":
    work_changed(change)
