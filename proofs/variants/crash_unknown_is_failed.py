"""A gateway that takes 'unknown' for 'failed': a retry does again what may have happened."""

import asyncpg

from deputize.core.contract.contract import Contract
from deputize.core.states import State
from deputize.lifecycle import claim
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def allow_takeover(_: Contract, call: asyncpg.Record) -> bool:
    return call["state"] == State.UNKNOWN or not call["owner_alive"]


def change(gateway: Gateway) -> Gateway:
    vars(claim)["_can_take_over"] = allow_takeover
    return gateway


if __name__ == "__main__":
    serve_variant(change)
