"""A gateway that is safe and useless: what the dead began stays unknown, though the upstream deduplicates."""

import asyncpg

from deputize.core.contract.contract import Contract
from deputize.lifecycle import claim
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def refuse_takeover(_: Contract, __: asyncpg.Record) -> bool:
    return False


def change(gateway: Gateway) -> Gateway:
    vars(claim)["_can_take_over"] = refuse_takeover
    return gateway


if __name__ == "__main__":
    serve_variant(change)
