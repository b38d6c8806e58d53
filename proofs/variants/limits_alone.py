"""A gateway that counts alone: its replicas keep the same rules and do not know of each other."""

from dataclasses import replace

from deputize.govern.limits.admission import Limits
from deputize.govern.limits.budgets import Budgets
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.run import Lifecycle
from deputize.store.shared.in_process import InProcessCounters
from proofs.kit.variant import serve_changed


def change(gateway: Gateway) -> Gateway:
    rooms = gateway.lifecycle.rooms
    alone = Limits(
        rooms.settings.limits.rules,
        InProcessCounters(rooms.clock),
        Budgets(rooms.store, rooms.clock),
        refused=rooms.metrics.limit_refused,
        uncounted=rooms.metrics.limit_uncounted,
    )
    return replace(gateway, lifecycle=Lifecycle(replace(rooms, limits=alone)))


if __name__ == "__main__":
    serve_changed(change)
