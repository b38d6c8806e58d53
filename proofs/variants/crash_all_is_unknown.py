"""A gateway that is safe and useless: what the dead began stays unknown, though the upstream deduplicates."""

import asyncpg

from deputize.core.contract import Contract
from deputize.lifecycle import claim
from deputize.lifecycle.gateway import Gateway
from proofs.kit.variant import serve_changed


def may_never_go_again(_: Contract, __: asyncpg.Record) -> bool:
    return False


def change(gateway: Gateway) -> Gateway:
    vars(claim)["_may_take_over"] = may_never_go_again
    return gateway


if __name__ == "__main__":
    serve_changed(change)
