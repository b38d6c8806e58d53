"""The writer of 0.1.0: a batch waits for the barriers of all its tenants."""

from deputize.operations.gateway import Gateway
from deputize.store.group_commit import GroupCommit
from proofs.kit.gateway_variant import serve_variant

_connect_trying = GroupCommit._reconnect_once


async def _connect_waiting(writer: GroupCommit) -> None:
    await _connect_trying(writer)
    assert writer._connection is not None
    await writer._connection.execute("set deputize.barrier = 'wait'")


def change(gateway: Gateway) -> Gateway:
    return gateway


if __name__ == "__main__":
    GroupCommit._reconnect_once = _connect_waiting  # type: ignore[method-assign, assignment]  # what the variant changes
    serve_variant(change)
