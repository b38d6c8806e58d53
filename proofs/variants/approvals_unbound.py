"""A worker to which a yes is a yes, whatever it was said about: what the approval request is bound to is not
compared.
"""

from types import SimpleNamespace

from deputize.lifecycle.approval import recheck_approval as check
from deputize.operations.gateway import Gateway
from proofs.kit.worker_variant import run_worker_variant


def change(gateway: Gateway) -> Gateway:
    vars(check)["hmac"] = SimpleNamespace(compare_digest=lambda *_: True)
    return gateway


if __name__ == "__main__":
    run_worker_variant(change)
