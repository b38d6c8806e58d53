"""A worker to which a yes is a yes, whatever it was said about: what the ticket is bound to is not compared."""

from types import SimpleNamespace

from deputize.lifecycle.approvals import approved
from deputize.lifecycle.gateway import Gateway
from proofs.fleet.worker import work_changed


def change(gateway: Gateway) -> Gateway:
    vars(approved)["hmac"] = SimpleNamespace(compare_digest=lambda *_: True)
    return gateway


if __name__ == "__main__":
    work_changed(change)
