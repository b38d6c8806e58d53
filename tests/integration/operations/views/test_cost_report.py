"""What calls cost is reported by tool, caller, task and day, to those who may see it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import pytest
import pytest_asyncio
from prometheus_client import generate_latest
from pydantic import Field

from deputize import Result, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.caller import Caller
from deputize.core.contract.prices import CallUsage, CostComponent
from deputize.core.errors import MalformedRequest
from deputize.operations.background.measurement_storage import MeasurementStorage
from deputize.store.pseudonyms import Pseudonyms
from tests.support.approval_lab import ApprovalLab, open_approval_lab
from tests.support.gateway_lab import GatewayLab, open_lab, parse_body
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("OBS-4")
Tag = Annotated[str, Field(description="Which test this belongs to", examples=["a"])]
_PRICES = {
    "currency": "EUR", "per_compute_second": 2.0, "per_storage_gigabyte": 3.0, "per_network_gigabyte": 5.0,
    "per_million_tokens": 7.0, "per_review": 11.0,
}  # fmt: skip


@tool(
    effects="read", namespace="lab", returns=dict[str, Any],
    observability={"cost_category": "api", "cost_per_call": 0.25, "prices": _PRICES},
)  # fmt: skip
async def measure(tag: Tag) -> Result:
    """Look something up, and say what it used."""
    return Result(payload={"value": tag}, tokens=1_000_000, storage_bytes=2_000_000_000, network_bytes=3_000_000_000)


@tool(
    effects="read", namespace="lab", returns=dict[str, Any],
    observability={"cost_per_call": 100.0, "prices": {"currency": "JPY"}},
)  # fmt: skip
async def yen(tag: Tag) -> Result:
    """Look something up that costs another currency."""
    return Result(payload={"value": tag}, tokens=-5)


@tool(
    effects="write", namespace="lab", resources=["create lab.things/{tag}"], scopes=["lab:write"],
    idempotency="cannot", undo="lab.note", returns=dict[str, Any],
    observability={"prices": {"currency": "EUR", "per_review": 11.0}},
)  # fmt: skip
async def publish(tag: Tag) -> dict[str, Any]:
    """Write something that a person reviews."""
    return {"value": tag}


_TOOLS = [*TOOLS, *(getattr(each, ATTRIBUTE) for each in (measure, yen, publish))]
_FIXED_COSTS = {
    CostComponent.EXTERNAL_API: 0.25, CostComponent.STORAGE_IO: 6.0, CostComponent.NETWORK: 15.0,
    CostComponent.TOKEN: 7.0,
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab"), tools=_TOOLS) as opened:
        yield opened


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def _no_costs(lab: GatewayLab) -> None:
    await lab.runtime.call_costs.store_costs(lab.runtime.store)
    await lab.db.execute("delete from deputize.call_costs")


async def _report(
    lab: GatewayLab, by: Any = "tool", caller: Caller | None = None, **more: Any
) -> dict[str | None, Any]:
    caller = caller or await lab.make_admin()
    report = await lab.gateway.cost_report.report_costs(caller, by=by, since=None, **{"limit": 100, **more})
    assert report["scope"] == ("tenant" if caller.is_admin else "own")
    return {each["currency"]: each for each in report["currencies"]}


def _list_names(totals: dict[str, Any]) -> list[str]:
    return [each["name"] for each in totals["groups"]]


async def test_a_call_costs_what_it_used_at_the_prices_of_its_contract(lab: GatewayLab) -> None:
    envelope = parse_body(await lab.call("measure", "a"))
    execution = envelope["execution"]
    assert execution["currency"] == "EUR"
    compute_cost = execution["costs"].pop("compute")
    assert execution["costs"] == _FIXED_COSTS
    assert compute_cost == pytest.approx(2 * execution["duration_ms"] / 1000, abs=1e-5)
    assert execution["cost"] == pytest.approx(sum(_FIXED_COSTS.values()) + compute_cost, abs=1e-6)
    [group] = (await _report(lab))["EUR"]["groups"]
    assert group["name"] == "lab.measure"
    assert group["cost"] == pytest.approx(execution["cost"], abs=2e-6)
    assert group["costs"]["human_review"] == 0
    assert {name: group["usage"][name] for name in ("tokens", "storage_bytes", "network_bytes", "reviews")} == {
        "tokens": 1_000_000, "storage_bytes": 2_000_000_000, "network_bytes": 3_000_000_000, "reviews": 0,
    }  # fmt: skip
    # The same number is in the audit, and is what budgets are charged.
    [entry] = await lab.fetch_entries(envelope["call_id"])
    assert entry["cost_micros"] == pytest.approx(execution["cost"] * 1e6, abs=2)


async def test_currencies_are_never_added_up(lab: GatewayLab) -> None:
    for name in ("measure", "yen", "yen", "look"):
        await lab.call(name, "b")
    report = await _report(lab)
    assert {currency: totals["calls"] for currency, totals in report.items()} == {None: 1, "EUR": 1, "JPY": 2}
    assert report["JPY"]["cost"] == 200
    assert report["JPY"]["usage"]["tokens"] == 0
    assert report[None]["cost"] == 0


async def test_refusals_and_replays_cost_nothing(lab: GatewayLab) -> None:
    for _ in range(2):
        await lab.call("put", "replayed", key="replayed")
    await lab.call("measure", {"tag": 7})
    await lab.call("put", "refused", key="refused", by=await lab.make_caller("zoe", scopes=()))
    report = await _report(lab)
    assert {currency: totals["calls"] for currency, totals in report.items()} == {None: 1}


async def test_groups_are_named_and_those_that_cost_most_come_first(lab: GatewayLab) -> None:
    ana, root = await lab.make_caller("ana"), await lab.make_admin()
    pseudonyms = await _get_pseudonyms(lab, ("bob", "agent=bot"))
    bot = replace(ana, user="bob", agents=("bot",), task="t-1", pseudonyms=pseudonyms)
    for caller, calls in ((ana, 1), (bot, 2)):
        for number in range(calls):
            await lab.call("measure", f"c{number}", by=caller)
    callers = (await _report(lab, "caller"))["EUR"]["groups"]
    assert [(each["name"], each["user"], each["agents"], each["calls"]) for each in callers] == [
        ("bot for bob", "bob", ["bot"], 2), ("ana", "ana", [], 1),
    ]  # fmt: skip
    assert _list_names((await _report(lab, "task"))["EUR"]) == ["t-1", ""]
    assert _list_names((await _report(lab, "version"))["EUR"]) == ["lab.measure@0.1.0"]
    today = lab.runtime.clock.now().date()
    days = _list_names((await _report(lab, "day"))["EUR"])
    assert set(days) <= {(today - timedelta(days=ago)).isoformat() for ago in (0, 1)}
    first = (await _report(lab, "task", limit=1))["EUR"]
    assert (_list_names(first), first["calls"]) == (["t-1"], 3)
    assert (await _report(lab, "caller", root))["EUR"]["calls"] == 3


async def _get_pseudonyms(lab: GatewayLab, subjects: tuple[str, ...]) -> tuple[str, ...]:
    return await Pseudonyms(lab.runtime.clock).get_or_create(lab.runtime.store, "dev", subjects)


async def test_people_see_their_own_costs_and_agents_those_of_their_chain(lab: GatewayLab) -> None:
    ana, zoe = await lab.make_caller("ana"), await lab.make_caller("zoe")
    chains = {
        "bot": await _get_pseudonyms(lab, ("ana", "agent=bot")),
        "inner": await _get_pseudonyms(lab, ("ana", "agent=inner", "agent=bot")),
    }
    bot = replace(ana, agents=("bot",), pseudonyms=chains["bot"])
    inner = replace(ana, agents=("inner", "bot"), pseudonyms=chains["inner"])
    for caller, calls in ((ana, 1), (bot, 2), (inner, 4), (zoe, 8)):
        for _ in range(calls):
            await lab.call("yen", "d", by=caller)
    for caller, calls in ((ana, 7), (bot, 2), (inner, 4), (zoe, 8), (await lab.make_admin(), 15)):
        assert (await _report(lab, caller=caller))["JPY"]["calls"] == calls
    assert await _report(lab, caller=await lab.make_caller("stranger")) == {}
    assert await _report(lab, caller=replace(zoe, pseudonyms=())) == {}


async def test_another_tenants_costs_are_not_seen(lab: GatewayLab) -> None:
    ana, contract = await lab.make_caller(), _TOOLS[-2].contract
    lab.runtime.call_costs.record_call(replace(ana, tenant="far"), contract, CallUsage(100.0))
    await lab.call("yen", "e")
    assert (await _report(lab))["JPY"]["calls"] == 1
    assert await lab.db.fetchval("select sum(calls) from deputize.call_costs") == 2


async def test_two_gateways_add_up_and_what_cannot_be_stored_is_kept(lab: GatewayLab) -> None:
    async with open_lab(lab.dsn, lab.folder, tools=_TOOLS) as other_lab:
        await asyncio.gather(*(each.call("yen", "f") for each in (lab, other_lab) for _ in range(3)))
        await other_lab.runtime.call_costs.store_costs(other_lab.runtime.store)
    await lab.db.execute("revoke insert on deputize.call_costs from deputize_writer")
    try:
        await lab.call("yen", "f")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await lab.runtime.call_costs.store_costs(lab.runtime.store)
    finally:
        await lab.db.execute("grant insert on deputize.call_costs to deputize_writer")
    assert (await _report(lab))["JPY"]["calls"] == 7


async def test_days_before_the_first_are_not_counted_and_old_ones_are_deleted(lab: GatewayLab) -> None:
    await lab.call("yen", "g")
    await _report(lab)
    await lab.db.execute("update deputize.call_costs set day = day - 30")
    report, admin = lab.gateway.cost_report.report_costs, await lab.make_admin()
    now = datetime.now(UTC)
    for days, is_shown in ((40, True), (20, False)):
        shown = await report(admin, by="tool", since=now - timedelta(days=days), limit=1)
        assert bool(shown["currencies"]) is is_shown
    with pytest.raises(MalformedRequest):
        await report(admin, by="tool", since=now - timedelta(days=120), limit=1)
    for more_days, rows in ((50, 1), (20, 0)):
        await lab.db.execute("update deputize.call_costs set day = day - $1::integer", more_days)
        await lab.db.execute("delete from deputize.periodic_tasks where name = 'measurement storage'")
        await MeasurementStorage(lab.runtime)._take_turn()
        assert await lab.db.fetchval("select count(*) from deputize.call_costs") == rows


_ASK = """
@id("ask") @decision("ask") @approvers("keepers") @quorum("2")
permit (principal, action, resource);
"""


async def test_each_decision_of_a_person_costs_a_review(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False, rules=_ASK, tools=_TOOLS) as approval_lab:
        lab = approval_lab.lab
        _, approved = await approval_lab.request_approval("publish", "h")
        _, denied = await approval_lab.request_approval("publish", "i")
        eva, tom = await _make_keepers(approval_lab)
        assert (await approval_lab.approve(eva, approved))["state"] == "open"
        assert (await approval_lab.approve(tom, approved))["state"] == "approved"
        await approval_lab.approvals.deny(eva, denied, reason="not now")
        [totals] = (await _report(lab, "caller")).values()
        [group] = totals["groups"]
        assert (group["name"], group["usage"]["reviews"], group["calls"]) == ("ana", 3, 0)
        assert (totals["cost"], totals["costs"]["human_review"]) == (33.0, 33.0)
        assert group["usage"]["review_wait_seconds"] > 0
        cost = 'deputize_tool_invocation_cost_total{category="human_review",currency="EUR",tool="lab.publish"'
        assert any(line.startswith(cost) and line.endswith(" 33.0") for line in _scrape(lab))


async def _make_keepers(approval_lab: ApprovalLab) -> tuple[Caller, Caller]:
    eva = await approval_lab.make_approver("eva", groups=("keepers",))
    return eva, await approval_lab.make_approver("tom", groups=("keepers",))


def _scrape(lab: GatewayLab) -> list[str]:
    return generate_latest(lab.runtime.metrics.registry).decode().splitlines()
