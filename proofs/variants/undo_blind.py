"""A gateway that takes back whatever a plan names, without a look at who changed the same thing later."""

from typing import Any

from deputize.lifecycle.compensation import later_writers
from deputize.operations.gateway import Gateway
from deputize.operations.undo import undo_plan
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    async def find_none(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    vars(later_writers)["find_later_writers"] = find_none
    vars(undo_plan)["find_later_writers"] = find_none
    vars(undo_plan)["_overlap"] = lambda *_: False
    return gateway


if __name__ == "__main__":
    serve_variant(change)
