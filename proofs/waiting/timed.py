"""A gateway that says of each batch of tickets how many there were, how many of them over, and how long it took."""

import json
import time
from dataclasses import dataclass

import asyncpg

from deputize import app
from deputize.lifecycle.approvals.clockwork import Clockwork
from proofs.kit.child import Child
from proofs.kit.variant import serve_changed

_SWEPT = "swept "


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    count: int
    over: int
    ms: float


class Timed(Clockwork):
    """The clockwork as it is, timed around each batch."""

    _over = 0

    async def sweep(self) -> int:
        began = time.perf_counter()
        count = await super().sweep()
        if count:
            batch = {"count": count, "over": self._over, "ms": 1000 * (time.perf_counter() - began)}
            print(_SWEPT + json.dumps(batch), flush=True)
        return count

    async def take(self) -> list[asyncpg.Record]:
        due = await super().take()
        self._over = sum(row["over"] for row in due)
        return due


def serve_with(kind: type[Clockwork]) -> None:
    vars(app)["Clockwork"] = kind
    serve_changed(lambda gateway: gateway)


def batches_of(child: Child) -> list[Batch]:
    lines = child.log.read_text(errors="replace").splitlines()
    return [Batch(**json.loads(line.partition(_SWEPT)[2])) for line in lines if _SWEPT in line]
