"""A failing service is left alone by all gateways together, tried carefully, and used again once it works."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize import ToolContext
from deputize.app import open_worker
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.timing import Timeout, TimeoutClass
from deputize.core.errors import CircuitOpen, ToolFailed, UpstreamUnavailable
from deputize.core.outcome import Outcome
from deputize.execute.circuits.circuit import EndedTrial
from deputize.operations.views.tool_status import ToolSelection
from tests.support.failing_service import (
    SERVICE_TOOLS,
    end_pause,
    get_circuit_state,
    services,
    wait_for_circuit,
)
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body, wait_until
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("RES-1")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def labs(module_database: str, lab_folder: Path) -> AsyncIterator[tuple[GatewayLab, GatewayLab, GatewayLab]]:
    tools = [*TOOLS, *SERVICE_TOOLS]
    async with (
        open_lab(module_database, lab_folder, tools=tools) as first,
        open_lab(module_database, lab_folder, tools=tools) as second,
        open_lab(module_database, lab_folder, tools=tools) as third,
    ):
        yield first, second, third


Labs = tuple[GatewayLab, GatewayLab, GatewayLab]


async def fail_calls(lab: GatewayLab, service: str, count: int) -> None:
    for number in range(count):
        outcome = await lab.call(f"read_{service}", f"{number}")
        assert error_slug(outcome) == "upstream-unavailable", outcome.body


async def open_circuit(labs: Labs, service: str) -> None:
    services[service].fail()
    await fail_calls(labs[0], service, 5)
    for lab in labs:
        await wait_for_circuit(lab, service, "open")


async def fetch_states(lab: GatewayLab, service: str) -> list[str]:
    rows = await lab.db.fetch(
        "select to_state from deputize.circuit_transitions where service = $1 order by epoch", service
    )
    return [row["to_state"] for row in rows]


async def test_failures_of_several_gateways_add_up_and_all_of_them_pause(labs: Labs) -> None:
    first, second, third = labs
    await fail_calls(first, "adds_up", 2)
    await fail_calls(second, "adds_up", 2)
    assert get_circuit_state(first, "adds_up") == "closed"
    await fail_calls(third, "adds_up", 1)
    for lab in labs:
        await wait_for_circuit(lab, "adds_up", "open")
    services["adds_up"].recover()
    calls = services["adds_up"].calls
    for lab in labs:
        outcome = await lab.call("read_adds_up", "x")
        error = parse_body(outcome)["error"]
        assert (outcome.http_status, error_slug(outcome)) == (503, "circuit-open")
        assert error["details"]["service"] == "adds_up"
        assert 0 < error["retry_after_ms"] <= 3_600_001
    assert services["adds_up"].calls == calls == 5


async def test_a_gateway_that_starts_later_knows_it(labs: Labs) -> None:
    await open_circuit(labs, "shows")
    first = labs[0]
    async with open_lab(first.dsn, first.folder, tools=[*TOOLS, *SERVICE_TOOLS]) as late:
        await wait_for_circuit(late, "shows", "open")
        assert error_slug(await late.call("read_shows", "x")) == "circuit-open"


async def test_an_open_circuit_is_shown_in_the_health_report_and_on_its_tools(labs: Labs) -> None:
    await open_circuit(labs, "visible")
    first = labs[0]
    report = await first.gateway.tool_health.report_health(await first.make_admin())
    circuit = next(each for each in report["circuits"] if each["service"] == "visible")
    assert (circuit["state"], circuit["reason"]) == ("open", "E3502 upstream-unavailable")
    assert circuit["since"] < circuit["retry_at"]
    admin = replace(await first.make_admin(), tenant="globex")
    other_report = await first.gateway.tool_health.report_health(admin)
    assert other_report["circuits"] == []

    async def fetch_status() -> tuple[str, str, str]:
        caller = await first.make_caller()
        page = await first.gateway.surface.list_availability(caller, ToolSelection(), after="lab.read_u")
        tool = next(each for each in page["tools"] if each["name"] == "lab.read_visible")
        return tool["status"], tool["reason"]["code"], tool["reason"]["message"]

    status, code, message = await fetch_status()
    assert (status, code) == ("blocked", "circuit_open")
    assert message.startswith("calls to visible have been paused for")
    assert "they are tried again in 3" in message
    # A model that lists its tools during the pause still has the tool after it.
    tools = await first.gateway.surface.list_loaded_tools(await first.make_caller())
    assert "lab.read_visible" in {each.contract.full_name for each in tools}
    # Calls may try the service again, so the tool is not blocked any more.
    await end_pause(first, "visible")
    assert (await fetch_status())[0] == "loaded"


async def test_it_recovers_through_trials_and_each_change_is_stored_and_audited(labs: Labs) -> None:
    first, second, third = labs
    await open_circuit(labs, "recovers")
    await end_pause(first, "recovers", second, third)
    # A trial that fails opens it again for everyone.
    assert error_slug(await second.call("read_recovers", "x")) == "upstream-unavailable"
    assert get_circuit_state(second, "recovers") == "open"
    assert error_slug(await second.call("read_recovers", "x")) == "circuit-open"

    async def is_open_again() -> bool:
        return await fetch_states(first, "recovers") == ["open", "half_open", "open"]

    await wait_until(is_open_again)
    services["recovers"].recover()
    await end_pause(first, "recovers", second, third)
    for number, lab in enumerate(labs):
        outcome = await call_until_admitted(lab, "recovers")
        assert outcome.http_status == 200, outcome.body
        if number < 2:
            assert get_circuit_state(lab, "recovers") == "half_open"
            await wait_for_successes(lab, "recovers", number + 1)
    for lab in labs:
        await wait_for_circuit(lab, "recovers", "closed")
        assert (await lab.call("read_recovers", "x")).http_status == 200
    assert await fetch_states(first, "recovers") == ["open", "half_open", "open", "half_open", "closed"]
    rows = await first.db.fetch(
        "select a.entry from deputize.circuit_transitions t join deputize.audit_entries a using (tenant, id) "
        "where t.service = 'recovers' order by t.epoch"
    )
    entries = [orjson.loads(row["entry"]) for row in rows]
    assert [each["outcome"] for each in entries] == ["open", "half_open", "open", "half_open", "closed"]
    assert all(each["kind"] == "circuit" and each["subject"] == "recovers" for each in entries)


async def call_until_admitted(lab: GatewayLab, service: str) -> Outcome:
    """Another gateway's trial may not have been reported yet, and then a call is refused."""
    outcomes: list[Outcome] = []

    async def is_admitted() -> bool:
        outcomes.append(await lab.call(f"read_{service}", "x"))
        return error_slug(outcomes[-1]) != "circuit-open"

    await wait_until(is_admitted)
    return outcomes[-1]


async def wait_for_successes(lab: GatewayLab, service: str, count: int) -> None:
    async def are_counted() -> bool:
        return bool(
            await lab.db.fetchval(
                "select successes >= $2 or state = 'closed' from deputize.circuit_breakers where service = $1",
                service,
                count,
            )
        )

    await wait_until(are_counted)


async def test_all_gateways_together_make_no_more_trials_than_allowed(labs: Labs) -> None:
    first, service = labs[0], services["counts"]
    await open_circuit(labs, "counts")
    await end_pause(first, "counts", *labs[1:])
    on_their_way, most, release = 0, 0, asyncio.Event()

    async def stay(context: ToolContext) -> dict[str, Any]:
        nonlocal on_their_way, most
        on_their_way += 1
        most = max(most, on_their_way)
        await release.wait()
        on_their_way -= 1
        return {"value": context.call_id}

    service.behave = stay
    calls_before = service.calls

    async def call_repeatedly(lab: GatewayLab) -> list[str | None]:
        return [error_slug(await lab.call("read_counts", f"{number}")) for number in range(5)]

    tasks = [asyncio.create_task(call_repeatedly(lab)) for lab in labs for _ in range(3)]

    async def is_trying() -> bool:
        # All calls but the trial were refused: its task alone waits.
        return on_their_way == 1 and sum(task.done() for task in tasks) == len(tasks) - 1

    await wait_until(is_trying)
    assert (most, service.calls - calls_before) == (1, 1)
    rows = await first.db.fetchval("select trial_ids from deputize.circuit_breakers where service = 'counts'")
    assert len(rows) == 1
    release.set()
    await asyncio.gather(*tasks)


async def test_a_trial_whose_gateway_died_does_not_block_for_ever(labs: Labs) -> None:
    first, second, _ = labs
    await open_circuit(labs, "loses")
    await end_pause(first, "loses", second)
    services["loses"].recover()
    # As a gateway leaves it that is killed after it was granted the trial.
    _, is_granted = await second.runtime.shared_circuits.request_trial(("dev", "loses"), Clock().new_id(), 3600)
    assert is_granted
    assert error_slug(await first.call("read_loses", "x")) == "circuit-open"
    await first.db.execute(
        "update deputize.circuit_breakers set trial_ends = array[now() - interval '1 second'] where service = 'loses'"
    )
    assert (await call_until_admitted(first, "loses")).http_status == 200


async def test_a_long_trial_gives_its_place_back_after_a_minute_and_its_failure_does_not_count(labs: Labs) -> None:
    first, second, _ = labs
    await open_circuit(labs, "lasts")
    await end_pause(first, "lasts", second)
    services["lasts"].recover()
    contract = next(each.contract for each in SERVICE_TOOLS if each.contract.name == "read_lasts")
    timeout = Timeout(timeout_class=TimeoutClass.ASYNC, seconds=7200)
    _, permit = await second.runtime.circuits.admit_call("dev", contract.model_copy(update={"timeout": timeout}))
    assert permit is not None
    assert await first.db.fetchval(
        "select trial_ends[1] <= now() + interval '60 seconds' from deputize.circuit_breakers where service = 'lasts'"
    )
    await first.db.execute(
        "update deputize.circuit_breakers set trial_ends = array[now() - interval '1 second'] where service = 'lasts'"
    )
    assert (await call_until_admitted(first, "lasts")).http_status == 200
    await wait_for_successes(first, "lasts", 1)
    late_failure = EndedTrial(
        at=second.runtime.clock.monotonic(), trial_id=permit.trial_id, has_succeeded=False, reason="E3503"
    )
    stored_circuit = await second.runtime.shared_circuits.apply_events(permit.key, [late_failure])
    assert (stored_circuit.circuit.state, stored_circuit.circuit.successes) == ("half_open", 1)
    assert await fetch_states(first, "lasts") == ["open", "half_open"]


async def test_one_tenant_does_not_pause_the_calls_of_another(labs: Labs) -> None:
    first = labs[0]
    contract = next(each.contract for each in SERVICE_TOOLS if each.contract.name == "read_crosses")
    circuits = first.runtime.circuits
    for _ in range(5):
        circuits.record_failure("dev", contract, "E3502")
    assert not circuits.is_closed("dev", contract)
    assert circuits.is_closed("globex", contract)
    assert await circuits.admit_call("globex", contract) == (0, None)
    with pytest.raises(CircuitOpen):
        await circuits.admit_call("dev", contract)
    await wait_for_circuit(labs[1], "crosses", "open")
    assert await labs[1].runtime.circuits.admit_call("globex", contract) == (0, None)
    async with first.runtime.store.read_transaction("globex") as connection:
        for table in ("circuit_breakers", "circuit_transitions"):
            assert await connection.fetchval(f"select count(*) from deputize.{table}") == 0


async def test_a_refusal_consumes_no_key_and_nothing_is_claimed(labs: Labs) -> None:
    first, caller = labs[0], await labs[0].make_caller()
    await open_circuit(labs, "keys")
    services["keys"].recover()
    refused = await first.call("write_keys", "x", key="one", by=caller)
    assert error_slug(refused) == "circuit-open"
    assert not await first.db.fetchval("select count(*) from deputize.calls where id = $1", refused.call_id)
    assert await first.fetch_entry_kinds(refused.call_id) == ["refusal"]
    await end_pause(first, "keys")
    done = await repeat_until_admitted(first, caller)
    assert done.state == "succeeded"
    again = await repeat_until_admitted(first, caller)
    assert again.call_id == done.call_id


async def repeat_until_admitted(lab: GatewayLab, caller: Caller) -> Outcome:
    outcomes: list[Outcome] = []

    async def is_admitted() -> bool:
        outcomes.append(await lab.call("write_keys", "x", key="one", by=caller))
        return error_slug(outcomes[-1]) != "circuit-open"

    await wait_until(is_admitted)
    return outcomes[-1]


@pytest.mark.nightly
async def test_a_queued_run_waits_until_its_service_is_tried_again(labs: Labs) -> None:
    first = labs[0]
    await open_circuit(labs, "queues")
    services["queues"].recover()
    calls = services["queues"].calls
    submitted = await first.call("write_queues", "x", key="queued", mode="async")
    assert submitted.http_status == 202, submitted.body
    async with open_worker(first.gateway):

        async def is_held() -> bool:
            return bool(
                await first.db.fetchval(
                    "select count(*) > 1 from dbos.workflow_status where workflow_uuid like $1 || '%'",
                    submitted.call_id,
                )
            )

        await wait_until(is_held)
        assert await first.fetch_state(submitted.call_id) == "queued"
        assert services["queues"].calls == calls
        await end_pause(first, "queues")
        await first.wait_for_state(submitted.call_id, "succeeded")
    assert services["queues"].calls == calls + 1


async def test_no_attempt_is_repeated_once_the_circuit_is_open(labs: Labs) -> None:
    first = labs[0]
    # Three attempts each, of which the fifth opens the circuit: the second call makes no third one.
    for _ in range(2):
        assert error_slug(await first.call("read_retries", "x")) == "upstream-unavailable"
    assert services["retries"].calls == 5
    assert get_circuit_state(first, "retries") == "open"


async def test_an_unsafe_call_that_failed_is_unknown_and_made_once(labs: Labs) -> None:
    first = labs[0]
    outcome = await first.call("write_stops", "x", key="once")
    assert (outcome.state, services["stops"].calls) == ("unknown", 1)

    async def reject(_: ToolContext) -> dict[str, Any]:
        raise ToolFailed("no such order")

    async def refuse(_: ToolContext) -> dict[str, Any]:
        cause = Exception()
        cause.status_code = 404  # type: ignore[attr-defined]  # as client libraries do
        raise UpstreamUnavailable("not found") from cause

    # Neither what a tool says about its arguments nor a refused request counts, however often.
    for behave in (reject, refuse):
        services["stops"].behave = behave
        for number in range(10):
            assert error_slug(await first.call("read_stops", f"{number}")) in ("tool-failed", "upstream-unavailable")
    assert get_circuit_state(first, "stops") == "closed"
