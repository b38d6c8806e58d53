"""Services that declare or ask for a rate get no more calls, from any gateway, and runs wait for their turn."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import ToolContext, tool
from deputize.app import open_worker
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import UpstreamRateLimited, UpstreamUnavailable
from deputize.execute.service_rates import ServiceRates
from deputize.lifecycle.durable.resume import RunNotReady, claim_run, load_pending_run
from deputize.store.counters.redis import RedisCounters
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body, wait_until
from tests.support.limited_lab import make_rule, open_limited_lab
from tests.support.redis_server import run_redis_server
from tests.support.scripted_tools import TOOLS, Tag

pytestmark = pytest.mark.requirement("GOV-8")
LIMITS: dict[str, dict[str, Any]] = {
    "counted": {"max_calls": 2, "window_seconds": 3600},
    "retried": {"max_calls": 2, "window_seconds": 3600},
    "queued": {"max_calls": 1, "window_seconds": 2},
    "held": {"max_calls": 1, "window_seconds": 3600},
    "paused": {"max_wait_seconds": 0},
    "shared": {"max_calls": 50, "window_seconds": 3600, "max_wait_seconds": 0},
}
calls = dict.fromkeys(LIMITS, 0)
problems: dict[str, Exception] = {}


def make_tools(name: str) -> list[PythonTool]:
    shared: dict[str, Any] = {
        "namespace": "lab", "external_service": name, "service_limits": LIMITS[name],
        "retry": {"max_attempts": 5, "base_seconds": 0.001},
    }  # fmt: skip

    async def read(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Read something from the service."""
        calls[name] += 1
        if name in problems:
            raise problems[name]
        return {"value": tag}

    async def write(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Write something to the service."""
        return await read(tag, context)

    for function in (read, write):
        function.__qualname__ = function.__name__ = f"{function.__name__}_{name}"
    declared = [
        tool(effects="read", name=f"read_{name}", **shared)(read),
        tool(
            effects="write", name=f"write_{name}", resources=["create lab.notes/{tag}"], idempotency="cannot",
            scopes=["lab:write"], undo="lab.note", **shared,
        )(write),
    ]  # fmt: skip
    return [getattr(each, ATTRIBUTE) for each in declared]


RATED_TOOLS = [each for name in LIMITS for each in make_tools(name)]


def find_contract(name: str) -> Contract:
    return next(each.contract for each in RATED_TOOLS if each.contract.name == name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def labs(module_database: str, lab_folder: Path) -> AsyncIterator[tuple[GatewayLab, GatewayLab]]:
    tools = [*TOOLS, *RATED_TOOLS]
    async with (
        open_lab(module_database, lab_folder, tools=tools) as first,
        open_lab(module_database, lab_folder, tools=tools) as second,
    ):
        yield first, second


async def test_a_call_over_the_rate_is_not_sent_and_consumes_no_key(labs: tuple[GatewayLab, GatewayLab]) -> None:
    lab = labs[0]
    for number in range(2):
        assert (await lab.call("read_counted", f"{number}")).state == "succeeded"
    refused = await lab.call("write_counted", "x", key="one")
    error = parse_body(refused)["error"]
    assert (refused.http_status, error["number"]) == (429, "E3504"), error
    assert error["message"] == "counted is called at most 2 times in 3600 s: this call was not sent"
    assert error["retry_after_ms"] > 3_000_000
    assert calls["counted"] == 2
    assert await lab.fetch_entry_kinds(refused.call_id) == ["refusal"]
    assert not await lab.db.fetchval("select count(*) from deputize.calls where id = $1", refused.call_id)


async def test_each_attempt_is_counted(labs: tuple[GatewayLab, GatewayLab]) -> None:
    problems["retried"] = UpstreamUnavailable("it does not answer")
    outcome = await labs[0].call("read_retried", "x")
    assert (error_slug(outcome), calls["retried"]) == ("upstream-rate-limited", 2)


async def test_a_run_waits_in_its_queue_until_it_is_its_turn(labs: tuple[GatewayLab, GatewayLab]) -> None:
    lab = labs[0]
    submitted = [await lab.call("write_queued", f"{n}", key=f"q{n}", mode="async") for n in range(3)]
    assert [each.http_status for each in submitted] == [202] * 3
    started_at = lab.runtime.clock.monotonic()
    async with open_worker(lab.gateway):
        for each in submitted:
            await lab.wait_for_state(each.call_id, "succeeded")
    # Three calls, one in any two seconds.
    assert lab.runtime.clock.monotonic() - started_at > 3.5
    assert calls["queued"] == 3


async def test_a_run_that_something_else_holds_back_uses_up_no_call(fresh_database: str, tmp_path: Path) -> None:
    rule, contract = make_rule("concurrency", 1, "one"), find_contract("write_held")
    async with open_limited_lab(fresh_database, tmp_path, rule, tools=RATED_TOOLS) as lab:
        first, held = [(await lab.call(name, name, key=name, mode="async")).call_id for name in ("note", "write_held")]
        pending_runs = [await load_pending_run(lab.runtime, "dev", each) for each in (first, held)]
        assert pending_runs[0] is not None
        assert pending_runs[1] is not None
        running = await claim_run(lab.runtime, pending_runs[0])
        assert running is not None
        for _ in range(2):
            with pytest.raises(RunNotReady, match="at most 1 concurrent"):
                await claim_run(lab.runtime, pending_runs[1])
        running.charge.settle()
        await lab.db.execute("update deputize.calls set owner_epoch = 7 where id = $1", held)
        with pytest.raises(RunNotReady, match="another worker"):
            await claim_run(lab.runtime, pending_runs[1])
        await lab.db.execute("update deputize.calls set owner_epoch = 0 where id = $1", held)
        # Its one call is still there, and then it is used up.
        async with open_worker(lab.gateway):
            await lab.wait_for_state(held, "succeeded")
        assert calls["held"] == 1
        with pytest.raises(UpstreamRateLimited):
            await lab.runtime.service_gate.rates.take_turn_now("dev", contract)


async def test_what_one_gateway_is_asked_all_of_them_obey(labs: tuple[GatewayLab, GatewayLab]) -> None:
    first, second = labs
    problems["paused"] = UpstreamRateLimited("slow down", retry_after_ms=3_600_000)
    assert error_slug(await first.call("read_paused", "x")) == "upstream-rate-limited"
    assert calls["paused"] == 1
    del problems["paused"]
    contract = find_contract("read_paused")

    async def is_known() -> bool:
        return second.runtime.service_gate.rates.is_limited(contract)

    await wait_until(is_known)
    for lab in labs:
        refused = await lab.call("read_paused", "x")
        assert error_slug(refused) == "upstream-rate-limited"
        assert "paused asked not to be called for another" in parse_body(refused)["error"]["message"]
        assert (await lab.call("look", "x")).state == "succeeded"
        # Another tenant's service of the same name is not concerned.
        await lab.runtime.service_gate.rates.take_turn_now("globex", contract)
    assert calls["paused"] == 1
    async with first.runtime.store.read_transaction("globex") as connection:
        assert await connection.fetchval("select count(*) from deputize.circuit_breakers") == 0


async def test_gateways_with_redis_count_together() -> None:
    contract = find_contract("read_shared")
    with run_redis_server() as server:
        replicas = [RedisCounters(server.url, seconds=30, clock=Clock()) for _ in range(3)]
        rates = [ServiceRates(each, Clock().monotonic) for each in replicas]
        turns = (rates[number % 3].take_turn_now("acme", contract) for number in range(150))
        results = await asyncio.gather(*turns, return_exceptions=True)
        assert sum(not isinstance(each, BaseException) for each in results) == 50
        assert sum(isinstance(each, UpstreamRateLimited) for each in results) == 100
        for each in replicas:
            await each.close()
