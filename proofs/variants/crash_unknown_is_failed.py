"""A gateway that takes 'unknown' for 'failed': a retry does again what may have happened."""

import asyncpg

from deputize.core.contract import Contract
from deputize.core.events import State
from deputize.lifecycle import claim
from deputize.lifecycle.gateway import Gateway
from proofs.kit.variant import serve_changed


def may_always_go_again(_: Contract, call: asyncpg.Record) -> bool:
    return call["state"] == State.UNKNOWN or not call["owner_alive"]


def change(gateway: Gateway) -> Gateway:
    vars(claim)["_may_take_over"] = may_always_go_again
    return gateway


if __name__ == "__main__":
    serve_changed(change)
