"""A gateway that says of each batch of approval requests how many there were, how many of them over, and how long it
took.
"""

import json
import time
from dataclasses import dataclass

import asyncpg

from deputize.composition import background_tasks
from deputize.operations.approvals.escalation import ApprovalEscalator
from proofs.kit.child_process import ChildProcess
from proofs.kit.gateway_variant import serve_variant

_BATCH_PREFIX = "swept "


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    count: int
    over: int
    ms: float


class TimedEscalation(ApprovalEscalator):
    """The clockwork as it is, timed around each batch."""

    _over_count = 0

    async def sweep(self) -> int:
        began = time.perf_counter()
        count = await super().sweep()
        if count:
            batch = {"count": count, "over": self._over_count, "ms": 1000 * (time.perf_counter() - began)}
            print(_BATCH_PREFIX + json.dumps(batch), flush=True)
        return count

    async def advance_due(self) -> list[asyncpg.Record]:
        due = await super().advance_due()
        self._over_count = sum(row["is_expired"] for row in due)
        return due


def serve_with_class(kind: type[ApprovalEscalator]) -> None:
    vars(background_tasks)["ApprovalEscalator"] = kind
    serve_variant(lambda gateway: gateway)


def read_batches(child: ChildProcess) -> list[Batch]:
    lines = child.log.read_text(errors="replace").splitlines()
    return [Batch(**json.loads(line.partition(_BATCH_PREFIX)[2])) for line in lines if _BATCH_PREFIX in line]
