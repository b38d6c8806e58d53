"""Report what calls cost: to administrators of their tenant, to everyone else of their own calls.

An agent sees the costs of exactly its chain: those of another agent may tell what exceeds its delegation.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from deputize.core.caller import Caller
from deputize.core.contract.prices import CostComponent
from deputize.core.errors import MalformedRequest
from deputize.core.subject import AGENT_PREFIX
from deputize.evidence.call_costs import KEPT_COST_DAYS, CostDimension, CostFilter, CostSum, load_costs
from deputize.govern.token_authorization import list_visible_tools
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_AUDIT_SQL = load_statements("audit_search")
_DEFAULT_DAYS: Final = 7
# Reported amounts are rounded to millionths of a unit, as charges are.
_DIGITS: Final = 6


class CostReport:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def report_costs(
        self, caller: Caller, *, by: CostDimension, since: datetime | None, limit: int
    ) -> dict[str, Any]:
        """Report costs since the day of a time, of each currency by itself, the groups that cost most first."""
        runtime = self._runtime
        (await runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        first_day = self._find_first_day(since)
        await runtime.call_costs.store_costs(runtime.store)
        async with runtime.store.read_transaction(caller.tenant, repeatable=True) as connection:
            sums = await load_costs(connection, caller.tenant, first_day, by, _limit_view(caller), limit=limit)
            names = await _load_names(connection, sums) if by == "caller" else {}
        return {
            "by": by,
            "since": first_day.isoformat(),
            "scope": "tenant" if caller.is_admin else "own",
            "currencies": [_describe_currency(by, total, sums, names) for total in sums if total.group is None],
        }

    def _find_first_day(self, since: datetime | None) -> date:
        today = self._runtime.clock.now().date()
        if since is None:
            return today - timedelta(days=_DEFAULT_DAYS - 1)
        first_day = (since if since.tzinfo is not None else since.replace(tzinfo=UTC)).astimezone(UTC).date()
        if first_day < today - timedelta(days=KEPT_COST_DAYS):
            raise MalformedRequest(
                f"costs are kept for {KEPT_COST_DAYS} days; ask for a later day", details={"field": "since"}
            )
        return first_day


def _limit_view(caller: Caller) -> CostFilter:
    """Limit costs to what the caller may see."""
    tools = list_visible_tools(caller)
    if caller.is_admin:
        return CostFilter(tools=tools)
    # Without pseudonyms nothing is theirs.
    user = caller.pseudonyms[0] if caller.pseudonyms else ""
    return CostFilter(user=user, chain=caller.pseudonyms if caller.agents else None, tools=tools)


async def _load_names(connection: Connection, sums: Iterable[CostSum]) -> dict[str, str]:
    """Load the names behind pseudonyms; those of erased people have none."""
    pseudonyms = {each for total in sums for each in _split_caller(total.group or "")}
    rows = await connection.fetch(_AUDIT_SQL["name_pseudonyms"], sorted(pseudonyms))
    return {row["pseudonym"]: row["subject"].removeprefix(AGENT_PREFIX) for row in rows}


def _describe_currency(
    by: CostDimension, total: CostSum, sums: Sequence[CostSum], names: dict[str, str]
) -> dict[str, Any]:
    groups = [each for each in sums if each.currency == total.currency and each.group is not None]
    return {
        "currency": total.currency or None,
        **_describe_sum(total),
        "groups": [{**_name_group(by, each.group or "", names), **_describe_sum(each)} for each in groups],
    }


def _name_group(by: CostDimension, group: str, names: dict[str, str]) -> dict[str, Any]:
    if by != "caller":
        return {"name": group, "user": None, "agents": []}
    user, *agents = [names.get(each, each) for each in _split_caller(group)] or [""]
    return {"name": user if not agents else f"{agents[0]} for {user}", "user": user, "agents": agents}


def _split_caller(group: str) -> list[str]:
    return [each for each in group.split(",") if each]


def _describe_sum(total: CostSum) -> dict[str, Any]:
    return {
        "cost": round(total.total, _DIGITS),
        "costs": {component.value: round(total.costs[component], _DIGITS) for component in CostComponent},
        "calls": total.calls,
        "usage": {
            "compute_seconds": round(total.compute_seconds, _DIGITS),
            "storage_bytes": total.storage_bytes,
            "network_bytes": total.network_bytes,
            "tokens": total.tokens,
            "reviews": total.reviews,
            "review_wait_seconds": round(total.review_seconds, _DIGITS),
        },
    }
