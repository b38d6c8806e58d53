"""A gateway whose sequencer looks at the queue every ten seconds: receipts come late."""

from deputize.operations.background import log_sequencer
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    return gateway


if __name__ == "__main__":
    vars(log_sequencer)["_INTERVAL_SECONDS"] = 10.0
    serve_variant(change)
