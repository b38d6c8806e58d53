"""A call that is not made: through every phase up to the effect, and then what it would have come to.

Claims nothing and uses no key. It is recorded like a read, before it is told, and so passes the barrier like one.
"""

from typing import Any

import orjson

from deputize.core.events import State
from deputize.core.outcome import Outcome
from deputize.govern.approvals.demands import asked_of, demands_told
from deputize.lifecycle import record
from deputize.lifecycle.claim import decided_again
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.preview import Previewed, look
from deputize.lifecycle.rooms import Rooms

# What a preview that came just in time still gets to be recorded.
_LEAST_SECONDS = 1.0


async def dry_run(rooms: Rooms, authorized: Authorized) -> Outcome:
    previewed = await look(rooms, authorized)
    validated = authorized.validated
    now = rooms.stamps.now()
    left = max(validated.deadline.remaining(rooms.clock.monotonic()), _LEAST_SECONDS)
    committed = await rooms.writer.put(record.dry_run(rooms, authorized, previewed.shown, now), seconds=left)
    authorized = await decided_again(rooms, authorized, committed.epochs)
    rooms.metrics.dry_run(validated.tool.contract)
    return _rendered(rooms, authorized, previewed, now)


def _rendered(rooms: Rooms, authorized: Authorized, previewed: Previewed, now: str) -> Outcome:
    validated = authorized.validated
    received, tool = validated.received, validated.tool
    body = {
        "call_id": received.call_id,
        "state": State.SUCCEEDED,
        "is_error": False,
        "trace_id": received.trail.trace_id,
        "dry_run": True,
        "result": None,
        "would": _would(rooms, authorized, previewed),
        "preview": previewed.shown,
        "tool": {"name": tool.name, "version": tool.contract.version, "digest": tool.digest},
        "decision": {"rules": authorized.decision.rules},
        "input": {"mutations": [{"path": m.path, "source": m.source, "change": m.change} for m in validated.mutations]},
        "context": validated.hooked.context,
        "warnings": validated.warnings + validated.hooked.messages,
        "created_at": now,
    }
    return Outcome(call_id=received.call_id, state=State.SUCCEEDED, body=orjson.dumps(body))


def _would(rooms: Rooms, authorized: Authorized, previewed: Previewed) -> dict[str, Any]:
    """What the call itself would meet next: a refusal, people, or its tool."""
    demands = authorized.decision.demands
    if previewed.failing:
        behavior = "refuse"
    else:
        behavior = "ask" if demands else "run"
    asked = demands_told(asked_of(demands, rooms.settings.approvals).demands) if demands else []
    return {"behavior": behavior, "because": list(previewed.failing), "asks": asked}
