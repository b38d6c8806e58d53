"""What a run has to have to itself while it runs: everything it may write to, and a place under each hard limit.

Reads touch nothing here, so they run beside writers. Whether two writers get in each other's way is judged by the input
of each, from what its contract declares; a scope that the input leaves open overlaps everything under its resource.
"""

import asyncio
from fnmatch import fnmatchcase

from deputize.core.run_settings import RunLimit
from deputize.lifecycle.phases import Validated
from deputize.lifecycle.rooms import Rooms
from deputize.store.rows import Committed, Leaving, Need

_SHARED = ""
_ALL = "all"
# Scopes hold what callers send, and lines are kept in an index. What is longer shares its place with what begins alike.
_LONGEST_SCOPE = 255


def needs_of(rooms: Rooms, validated: Validated) -> tuple[Need, ...]:
    tenant = validated.received.caller.tenant
    needs = {
        Need(space=tenant, resource=f"write:{touched.resource}", scope=_within(touched.scope), most=1)
        for touched in validated.tool.writes(validated.call_input)
    }
    for limit in rooms.settings.runs.limits:
        if _counts(limit, validated):
            space = _SHARED if limit.across_tenants else tenant
            counted = f"limit:{limit.tools}:{limit.upstream or '*'}"
            needs.add(Need(space=space, resource=counted, scope=_ALL, most=limit.at_once))
    return tuple(sorted(needs))


def _within(scope: str) -> str:
    return scope if len(scope) <= _LONGEST_SCOPE else scope[:_LONGEST_SCOPE] + "*"


def _counts(limit: RunLimit, validated: Validated) -> bool:
    contract = validated.tool.contract
    return fnmatchcase(contract.full_name, limit.tools) and limit.upstream in (None, contract.external_service)


def leave(rooms: Rooms, tenant: str, call_id: str, needs: tuple[Need, ...]) -> None:
    """The run has ended, and with it went its places: whoever comes next is called. A worker that dies before this is
    made up for by the next look of any other.
    """
    if needs:
        rooms.queue.put(Leaving(tenant, call_id, needs)).add_done_callback(_noticed)


def _noticed(called: "asyncio.Future[Committed]") -> None:
    if not called.cancelled():
        called.exception()
