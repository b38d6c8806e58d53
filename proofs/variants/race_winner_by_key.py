"""A gateway that asks whether its key is among those just claimed, not whether its call holds it.

Of several racers with one key inside one batch, each then believes that it has won.
"""

from collections.abc import Callable
from typing import Any

from deputize.lifecycle.gateway import Gateway
from deputize.store import batch
from deputize.store.rows import Opening
from proofs.kit.variant import serve_changed

_real: Callable[[list[batch.Waiting], list[Any]], None] = batch._settle


def settle_by_key(waiting: list[batch.Waiting], answers: list[Any]) -> None:
    claimed_here = {each.row.call_id for each in waiting if isinstance(each.row, Opening)}
    _real(
        waiting,
        [each for each in answers if not (each["what"] == "held" and str(each["holder"]) in claimed_here)],
    )


def change(gateway: Gateway) -> Gateway:
    vars(batch)["_settle"] = settle_by_key
    return gateway


if __name__ == "__main__":
    serve_changed(change)
