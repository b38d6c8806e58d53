"""A gateway that asks whether its key is among those just claimed, not whether its call holds it.

Of several racers with one key inside one batch, each then believes that it has won.
"""

from collections.abc import Callable
from typing import Any

from deputize.operations.gateway import Gateway
from deputize.store import group_commit
from deputize.store.commit_answers import PendingRow, resolve_futures
from deputize.store.commit_rows import OpenCallRow
from proofs.kit.gateway_variant import serve_variant

_real: Callable[[list[PendingRow], list[Any]], tuple[str, str] | None] = resolve_futures


def settle_by_key(pending: list[PendingRow], answers: list[Any]) -> None:
    # It returns no entry: one that was not written would look like a database that went back in time.
    batch_call_ids = {each.row.call_id for each in pending if isinstance(each.row, OpenCallRow)}
    _real(
        pending,
        [each for each in answers if not (each["kind"] == "claimed" and str(each["holder"]) in batch_call_ids)],
    )


def change(gateway: Gateway) -> Gateway:
    vars(group_commit)["resolve_futures"] = settle_by_key
    return gateway


if __name__ == "__main__":
    serve_variant(change)
