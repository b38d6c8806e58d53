"""A read is answered with an earlier result while its contract calls it fresh, and is governed like any other."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize import Result, ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import ToolFailed, UpstreamUnavailable
from deputize.core.outcome import Outcome
from deputize.govern.policy.policy_parser import PolicyFile
from tests.support.failing_service import BREAKER
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.policies import OPEN_FILES
from tests.support.scripted_tools import TOOLS, Gate, Tag

pytestmark = pytest.mark.requirement("INV-13")

FRESH = {"max_age_seconds": 3600}
reads: Counter[str] = Counter()
_answers: dict[str, Callable[[ToolContext], Awaitable[Any]]] = {}


async def _read(tag: str, context: ToolContext) -> Any:
    reads[tag] += 1
    if tag in _answers:
        return await _answers[tag](context)
    return {"value": f"{context.user} {reads[tag]}"}


@tool(namespace="lab", effects="read", freshness=FRESH, external_service="shelf", breaker=BREAKER)
async def stock(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Read what is in stock."""
    return await _read(tag, context)  # type: ignore[no-any-return]  # what a test says


@tool(namespace="lab", effects="read", freshness={**FRESH, "shared_by": "tenant"}, observability={"cost_per_call": 2})
async def hours(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Read the opening hours, which are the same for everyone."""
    return await _read(tag, context)  # type: ignore[no-any-return]  # what a test says


TOOLS_HERE: list[PythonTool] = [getattr(each, ATTRIBUTE) for each in (stock, hours)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lab_folder, tools=[*TOOLS, *TOOLS_HERE]) as opened:
        yield opened


def is_cached(outcome: Outcome) -> bool:
    body = parse_body(outcome)
    assert outcome.http_status == 200, body
    return bool(body["provenance"].get("is_cached", False))


async def test_an_equal_read_is_answered_with_the_first_result_and_its_age(lab: GatewayLab) -> None:
    first, second = await lab.call("stock", "equal"), await lab.call("stock", "equal")
    assert (is_cached(first), is_cached(second), reads["equal"]) == (False, True, 1)
    body = parse_body(second)
    assert body["result"] == parse_body(first)["result"] == {"value": "ana 1"}
    assert 0 <= body["provenance"]["age_seconds"] < 3600
    assert body["execution"]["attempts"] == 0
    # Audited like any read, under an id of its own.
    stored = await lab.db.fetchval("select entry from deputize.audit_entries where id = $1", body["call_id"])
    entry = orjson.loads(stored)
    assert (entry["kind"], entry["outcome"]) == ("read", "succeeded")
    assert "result" in entry
    assert "attempts" not in entry
    assert not is_cached(await lab.call("stock", "other"))


async def test_a_caller_can_demand_a_new_result(lab: GatewayLab) -> None:
    await lab.call("stock", "demand")
    assert is_cached(await lab.call("stock", "demand", max_age_seconds=600))
    assert not is_cached(await lab.call("stock", "demand", max_age_seconds=0))
    # The new result is the one that is given from now on.
    assert parse_body(await lab.call("stock", "demand"))["result"] == {"value": "ana 2"}


async def test_no_caller_gets_what_another_one_read(lab: GatewayLab) -> None:
    await lab.call("stock", "whose")
    others = [
        await lab.make_caller("ben"),
        await lab.make_caller("ana", scopes=()),
        await lab.make_caller("ana", tools={"lab.stock": "*"}),
        await lab.make_caller("ana", agent="helper"),
    ]
    for each in others:
        assert not is_cached(await lab.call("stock", "whose", by=each)), each
    assert not is_cached(await lab.call("stock", "whose", session="another"))
    assert parse_body(await lab.call("stock", "whose", by=others[0]))["result"]["value"].startswith("ben ")


async def test_a_result_that_is_the_same_for_all_serves_other_callers_of_the_tenant(lab: GatewayLab) -> None:
    first = await lab.call("hours", "all")
    assert parse_body(first)["execution"]["cost"] == 2
    second = await lab.call("hours", "all", by=await lab.make_caller("ben"))
    assert is_cached(second)
    # What was not used costs nothing.
    assert parse_body(second)["execution"]["cost"] == 0


async def test_a_caller_who_may_not_read_any_more_gets_nothing(lab: GatewayLab) -> None:
    await lab.call("stock", "denied")
    admin = await lab.make_admin()
    forbid = 'forbid (principal, action, resource == Tool::"lab.stock");'
    files = [*OPEN_FILES, PolicyFile(path="forbid.cedar", text=f'@id("no-stock") {forbid}')]
    await lab.gateway.commands.put_policies(admin, files)
    try:
        refused = await lab.call("stock", "denied")
        assert (refused.http_status, reads["denied"]) == (403, 1)
        assert b"ana 1" not in refused.body
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


async def test_a_write_in_the_namespace_makes_the_next_read_a_new_one(lab: GatewayLab) -> None:
    await lab.call("stock", "written")
    assert (await lab.call("put", "written", key="put-written")).http_status == 200
    assert not is_cached(await lab.call("stock", "written"))
    # A repeated key changes nothing.
    assert (await lab.call("put", "written", key="put-written")).is_replay
    assert is_cached(await lab.call("stock", "written"))


async def test_a_read_that_a_write_overtakes_is_not_kept(lab: GatewayLab) -> None:
    gate = Gate({"value": "old"})
    _answers["overtaken"] = gate
    reading = asyncio.create_task(lab.call("stock", "overtaken"))
    await gate.began.wait()
    await lab.call("put", "overtaken", key="put-overtaken")
    gate.open.set()
    assert parse_body(await reading)["result"] == {"value": "old"}
    assert not is_cached(await lab.call("stock", "overtaken"))


async def test_failures_and_results_that_break_their_contract_are_not_kept(lab: GatewayLab) -> None:
    async def fail(_: ToolContext) -> Any:
        raise ToolFailed("out of paper")

    async def return_text(_: ToolContext) -> Any:
        return "not an object"

    for tag, answer, slug in (("fails", fail, "tool-failed"), ("breaks", return_text, "result-invalid")):
        _answers[tag] = answer
        assert error_slug(await lab.call("stock", tag)) == slug
        del _answers[tag]
        assert not is_cached(await lab.call("stock", tag))


async def test_what_the_tool_says_about_its_result_is_kept_with_it(lab: GatewayLab) -> None:
    async def describe(_: ToolContext) -> Any:
        return Result(payload={"value": "x"}, summary="ten pens", source="shelf 4", age_seconds=100.0, confidence=0.5)

    _answers["described"] = describe
    await lab.call("stock", "described")
    body = parse_body(await lab.call("stock", "described"))
    provenance = body["provenance"]
    assert (body["summary"], provenance["source"], provenance["confidence"]) == ("ten pens", "shelf 4", 0.5)
    assert 100 <= provenance["age_seconds"] < 3700


async def test_a_server_that_says_it_changed_is_read_again(lab: GatewayLab) -> None:
    assert lab.runtime.read_cache.note_service_change in lab.runtime.upstreams._change_listeners
    await lab.call("stock", "notified")
    lab.runtime.read_cache.note_service_change("dev", "shelf")
    assert not is_cached(await lab.call("stock", "notified"))


async def test_a_fresh_result_is_given_while_the_service_is_down(lab: GatewayLab) -> None:
    await lab.call("stock", "down")

    async def fail(_: ToolContext) -> Any:
        raise UpstreamUnavailable("no answer")

    _answers["dead"] = fail
    for _ in range(5):
        await lab.call("stock", "dead")
    assert error_slug(await lab.call("stock", "dead")) == "circuit-open"
    assert is_cached(await lab.call("stock", "down"))
