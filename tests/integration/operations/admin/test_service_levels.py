"""What is measured of calls, and how it compares with what contracts promise."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from deputize import Result, ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.caller import ADMIN_SCOPE
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract, Objectives, TimeoutClass
from deputize.core.contract.timing import Timeout
from deputize.core.errors import (
    AuthorityRevoked,
    ScopeMissing,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolNotFound,
    ToolPrecondition,
    UpstreamUnavailable,
    VersionNotFound,
)
from deputize.core.states import State
from deputize.evidence.call_measurements import CallEnd
from deputize.operations.background.measurement_storage import MeasurementStorage
from deputize.store.queries import load_statements
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab
from tests.support.scripted_tools import BRIEF_SECONDS, TOOLS, Tag, postcondition_errors, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("OBS-3", "CON-2")
_CONTRACTS = {each.contract.name: each.contract for each in TOOLS}
_SQL = load_statements("measurements")


class SteppedClock:
    """A clock that tests and tools put forward: `ahead` in days of the calendar, `seconds` while a tool runs.

    Between that, no time passes: a busy machine does not make a call take longer.
    """

    def __init__(self) -> None:
        self.ahead = timedelta()
        self.seconds = time.monotonic()
        self.clock = Clock(
            epoch_ms=lambda: time.time_ns() // 1_000_000 + int(self.ahead.total_seconds() * 1000),
            monotonic=lambda: self.seconds,
        )


_stepped_clock = SteppedClock()


@tool(
    effects="read", namespace="lab", timeout="standard", observability={"cost_per_call": 0.25},
    predicates=[{"name": "small", "holds": {"properties": {"output": {"properties": {"size": {"maximum": 10}}}}}}],
    objectives={"p99_seconds": 0.5, "availability": 0.95, "accuracy": 0.9, "cost": 0.5},
)  # fmt: skip
async def promise(tag: Tag) -> dict[str, Any]:
    """Keep what is promised, unless the tag says otherwise."""
    match tag:
        case "slow":
            _stepped_clock.seconds += 0.6
        case "wrong":
            return {"size": 11}
        case "broken":
            raise ToolFailed("it is broken")
        case "dear":
            return Result(payload={"size": 1}, cost=0.75)  # type: ignore[return-value]  # what a tool may return instead
        case _:
            pass
    return {"size": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    tools = [*TOOLS, getattr(promise, ATTRIBUTE)]
    folder = tmp_path_factory.mktemp("lab")
    async with open_lab(module_database, folder, clock=_stepped_clock.clock, tools=tools) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _start_today() -> None:
    _stepped_clock.ahead = timedelta()


async def _report(lab: GatewayLab, name: str, version: str | None = None, days: int = 7) -> list[dict[str, Any]]:
    report = await lab.gateway.service_levels.report_levels(await lab.make_admin(), f"lab.{name}", version, days)
    assert (report["name"], report["days"]) == (f"lab.{name}", days)
    versions: list[dict[str, Any]] = report["versions"]
    return versions


async def _register(lab: GatewayLab, name: str, version: str = "1.0.0", **more: Any) -> Contract:
    contract = _CONTRACTS["look"].model_copy(
        update={"name": name, "version": version, "timeout": Timeout(timeout_class=TimeoutClass.STANDARD), **more}
    )
    await lab.gateway.commands.register_tool(await lab.make_admin(), contract)
    return contract


def _measure(
    lab: GatewayLab, contract: Contract, calls: int, seconds: float = 0.08, end: CallEnd = CallEnd.SUCCESS
) -> None:
    for _ in range(calls):
        lab.runtime.call_measurements.record_call("dev", contract, end, seconds, 0)


async def _call_promise(lab: GatewayLab, tag: str, calls: int) -> None:
    for _ in range(calls):
        await lab.call("promise", tag)


async def test_each_objective_is_compared_with_what_was_measured(lab: GatewayLab) -> None:
    await _call_promise(lab, "", 99)
    [levels] = await _report(lab, "promise")
    assert {each["name"]: each["status"] for each in levels["objectives"]} == dict.fromkeys(
        ("p99_seconds", "availability", "accuracy", "cost"), "too-few-calls"
    )
    await _call_promise(lab, "", 1)
    [levels] = await _report(lab, "promise")
    assert {each["name"]: each["status"] for each in levels["objectives"]} == dict.fromkeys(
        ("p99_seconds", "availability", "accuracy", "cost"), "met"
    )
    assert (levels["calls"], levels["mean_cost"]) == (100, 0.25)
    assert levels["latency"]["p50_seconds"] <= levels["latency"]["p95_seconds"] <= levels["latency"]["p99_seconds"]

    for tag, calls in {"slow": 2, "wrong": 12, "broken": 5, "dear": 1}.items():
        await _call_promise(lab, tag, calls)
    [levels] = await _report(lab, "promise")
    assert levels["ends"] == {
        "successes": 103, "rejections": 12, "failures": 5, "timeouts": 0, "unknown_outcomes": 0,
    }  # fmt: skip
    objectives = {each["name"]: each for each in levels["objectives"]}
    assert {name: each["status"] for name, each in objectives.items()} == dict.fromkeys(objectives, "not-met")
    assert objectives["p99_seconds"]["value"] > 0.5
    assert objectives["p99_seconds"]["reason"] == "2 of 115 calls took longer"
    assert objectives["availability"]["value"] == 103 / 120
    assert objectives["accuracy"]["value"] == 103 / 115
    assert objectives["cost"]["value"] == 0.75
    assert objectives["cost"]["reason"] == "at least one of 120 calls cost more"


@pytest.mark.parametrize(
    ("name", "error", "end"),
    [
        ("look", None, "successes"),
        ("look", ToolFailed("no"), "failures"),
        ("look", UpstreamUnavailable("gone"), "failures"),
        ("look", ConnectionError("gone"), "failures"),
        ("note", ConnectionError("gone"), "unknown_outcomes"),
        ("note", ToolFailed("no"), "failures"),
        # The tool did its part: the caller or the state of the world is the reason.
        ("look", SemanticViolation("wrong"), None),
        ("look", ToolPrecondition("not yet"), None),
        ("look", ToolConflict("changed"), None),
    ],
)
async def test_only_what_the_tool_is_responsible_for_counts(
    name: str, error: Exception | None, end: str | None, lab: GatewayLab
) -> None:
    before = (await _report(lab, name))[0]["ends"]
    tag = f"{name} {error!r}"
    if error is not None:
        set_behaviour(tag, raise_error(error))
    outcome = await lab.call(name, tag, key=None if name == "look" else tag)
    assert (outcome.state is State.SUCCEEDED) is (error is None)
    after = (await _report(lab, name))[0]["ends"]
    assert {each: after[each] - before[each] for each in after if after[each] != before[each]} == (
        {} if end is None else {end: 1}
    )


async def test_refusals_and_replays_are_not_calls_of_the_tool(lab: GatewayLab) -> None:
    stranger = await lab.make_caller("zoe", scopes=("other:scope",))
    assert error_slug(await lab.call("put", "refused", key="refused", by=stranger)) is not None
    assert error_slug(await lab.call("put", {"tag": 7}, key="invalid")) == "schema-violation"
    for _ in range(2):
        assert (await lab.call("put", "replayed", key="replayed")).state is State.SUCCEEDED
    [levels] = await _report(lab, "put")
    assert levels["calls"] == 1


@pytest.mark.parametrize("name", ["brief_look", "brief_note"])
async def test_a_timeout_counts_unless_the_caller_gave_less_time(name: str, lab: GatewayLab) -> None:
    tag = f"{name} late"

    async def run_late(_: ToolContext) -> None:
        _stepped_clock.seconds += BRIEF_SECONDS
        await asyncio.Event().wait()

    set_behaviour(tag, run_late)
    hurried = await lab.call(name, tag, key=f"{tag} 1", deadline_ms=50)
    assert hurried.state in (State.TIMED_OUT, State.UNKNOWN)
    assert (await _report(lab, name))[0]["calls"] == 0
    late = await lab.call(name, tag, key=f"{tag} 2")
    assert late.state in (State.TIMED_OUT, State.UNKNOWN)
    [levels] = await _report(lab, name)
    assert levels["ends"]["timeouts"] == levels["calls"] == 1
    assert levels["timeout_share"] == 1.0
    assert BRIEF_SECONDS / 2 < levels["latency"]["p99_seconds"] < BRIEF_SECONDS * 2


async def test_what_a_predicate_or_the_tools_own_verify_rejects_is_a_wrong_result(lab: GatewayLab) -> None:
    set_behaviour("large", lambda _: {"size": 11})
    postcondition_errors.update(doubted=ValueError("no"), refused=ToolFailed("no"), refuted=SemanticViolation("no"))
    for calls, tag in enumerate(("large", "doubted", "refused", "refuted"), start=1):
        await lab.call("checked_note", tag, key=tag)
        [levels] = await _report(lab, "checked_note")
        assert levels["ends"]["rejections"] == levels["calls"] == calls


async def test_a_call_waits_for_no_statement_and_two_gateways_add_up(lab: GatewayLab) -> None:
    contract = await _register(lab, "shared", objectives=Objectives(p99_seconds=0.1))
    count = "select count(*) from deputize.call_measurements where name = 'lab.shared'"
    async with open_lab(lab.dsn, lab.folder, clock=_stepped_clock.clock) as other_lab:
        for each in (lab, other_lab):
            assert (await each.call("shared", "x")).state is State.SUCCEEDED
            _measure(each, contract, 60, 0.08)
            _measure(each, contract, 1, 0.2)
        assert await lab.db.fetchval(count) == 0
        await asyncio.gather(
            *(each.runtime.call_measurements.store_measurements(each.runtime.store) for each in (lab, other_lab))
        )
    assert await lab.db.fetchval(count) == 1
    [levels] = await _report(lab, "shared")
    assert (levels["calls"], levels["latency"]["calls"]) == (124, 124)
    assert levels["objectives"][0]["reason"] == "2 of 124 calls took longer"


async def test_a_gateway_that_stops_stores_what_it_measured(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as first_lab:
        await first_lab.call("look", "x")
    async with open_lab(fresh_database, tmp_path) as second_lab:
        assert (await _report(second_lab, "look"))[0]["calls"] == 1


async def test_what_cannot_be_stored_is_kept_and_counted_once(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        measurements, store = lab.runtime.call_measurements, lab.runtime.store
        contract = _CONTRACTS["look"]
        _measure(lab, contract, 3)
        await lab.db.execute("revoke insert on deputize.call_measurements from deputize_writer")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await measurements.store_measurements(store)
        _measure(lab, contract, 2)
        await lab.db.execute("grant insert on deputize.call_measurements to deputize_writer")
        assert (await _report(lab, "look"))[0]["calls"] == 5
        assert (await _report(lab, "look"))[0]["calls"] == 5


async def test_days_pass_out_of_the_report_and_out_of_the_database(lab: GatewayLab) -> None:
    contract = await _register(lab, "aging")
    _measure(lab, contract, 4)
    await _report(lab, "aging")
    for days, expected_calls in ((1, 0), (2, 4)):
        _stepped_clock.ahead = timedelta(days=1)
        assert (await _report(lab, "aging", days=days))[0]["calls"] == expected_calls
    storage = MeasurementStorage(lab.runtime)
    for days, expected_rows in ((30, 1), (31, 0)):
        _stepped_clock.ahead = timedelta(days=days)
        await lab.db.execute("delete from deputize.periodic_tasks where name = 'measurement storage'")
        await storage._take_turn()
        rows = await lab.db.fetchval("select count(*) from deputize.call_measurements where name = 'lab.aging'")
        assert rows == expected_rows


async def test_versions_are_reported_side_by_side_or_one_alone(lab: GatewayLab) -> None:
    older, newer = await _register(lab, "several"), await _register(lab, "several", "1.1.0")
    [levels] = await _report(lab, "several")
    assert (levels["version"], levels["calls"], levels["latency"]["p99_seconds"]) == ("1.1.0", 0, None)
    _measure(lab, older, 200, 0.08)
    _measure(lab, newer, 100, 2.0)
    assert [(each["version"], each["calls"]) for each in await _report(lab, "several")] == [
        ("1.1.0", 100), ("1.0.0", 200),
    ]  # fmt: skip
    [levels] = await _report(lab, "several", "1.0.0")
    assert levels["timeout"] == {
        "current_class": "standard",
        "fitting_class": "interactive",
        "is_too_short": False,
        "needed_calls": 100,
        "text": 'p99 is 0.08 s over 200 calls; `standard` allows 5 s. Declare timeout="interactive".',
    }


async def test_a_new_version_is_warned_by_what_the_one_before_it_took(lab: GatewayLab) -> None:
    interactive = Timeout(timeout_class=TimeoutClass.INTERACTIVE)
    levels, admin = lab.gateway.service_levels, await lab.make_admin()
    slow, quick = await _register(lab, "slowly"), await _register(lab, "quickly")
    _measure(lab, slow, 500, 0.4)
    _measure(lab, quick, 500, 0.1)
    await lab.runtime.call_measurements.store_measurements(lab.runtime.store)
    hasty = await _register(lab, "slowly", "1.1.0", timeout=interactive)
    assert await levels.list_timeout_warnings(admin, hasty) == [
        "lab.slowly 1.0.0, measured: p99 is 0.4 s over 500 calls; `interactive` allows 0.5 s, which is less than "
        '2 times as much. Declare timeout="standard".'
    ]
    fitting = await _register(lab, "quickly", "1.1.0", timeout=interactive)
    assert await levels.list_timeout_warnings(admin, fitting) == []
    # The earlier version is not judged by the later one, and a longer timeout cannot be judged by shorter ones.
    assert await levels.list_timeout_warnings(admin, hasty.model_copy(update={"version": "0.9.0"})) == []
    _measure(lab, slow, 100, 5.0, CallEnd.TIMEOUT)
    await lab.runtime.call_measurements.store_measurements(lab.runtime.store)
    longer = Timeout(timeout_class=TimeoutClass.LONG_RUNNING)
    breaking = {"breaking_changes": True, "changelog": "It may take longer."}
    patient = await _register(lab, "slowly", "2.0.0", timeout=longer, **breaking)
    assert await levels.list_timeout_warnings(admin, patient) == []
    same = await _register(lab, "slowly", "3.0.0", **breaking)
    [warning] = await levels.list_timeout_warnings(admin, same)
    assert "100 of 600 calls ran out of time; `standard` allows 5 s" in warning


async def test_a_start_warns_of_a_new_version_in_the_log(
    fresh_database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look = next(each for each in TOOLS if each.contract.name == "look")
    async with open_lab(fresh_database, tmp_path, tools=[look]) as lab:
        _measure(lab, look.contract, 100, 4.0)
    contract = look.contract.model_copy(
        update={"version": "9.0.0", "timeout": Timeout(timeout_class=TimeoutClass.STANDARD)}
    )
    newer = replace(look, contract=contract)
    capsys.readouterr()
    async with open_lab(fresh_database, tmp_path, tools=[newer]):
        pass
    [line] = [each for each in capsys.readouterr().out.splitlines() if "timeout_too_short" in each]
    assert "p99 is 4 s over 100 calls" in line


async def test_only_administrators_of_the_tenant_see_levels(lab: GatewayLab) -> None:
    report, admin = lab.gateway.service_levels.report_levels, await lab.make_admin()
    _measure(lab, _CONTRACTS["look"], 7)
    with pytest.raises(ScopeMissing):
        await report(await lab.make_caller(), "lab.look", None, 7)
    with pytest.raises(ScopeMissing):
        await lab.gateway.service_levels.list_timeout_warnings(await lab.make_caller(), _CONTRACTS["look"])
    with pytest.raises(VersionNotFound):
        await report(admin, "lab.look", "7.7.7", 7)
    with pytest.raises(ToolNotFound):
        await report(admin, "lab.nowhere", None, 7)


async def test_a_tool_of_the_same_name_in_another_tenant_stays_apart(lab: GatewayLab) -> None:
    contract, levels = await _register(lab, "everywhere"), lab.gateway.service_levels
    far_admin = await lab.make_caller("root", scopes=(ADMIN_SCOPE,), tenant="far")
    with pytest.raises(ToolNotFound):
        await levels.report_levels(far_admin, "lab.everywhere", None, 7)
    await lab.gateway.commands.register_tool(far_admin, contract)
    _measure(lab, contract, 300, 4.0)
    for _ in range(5):
        lab.runtime.call_measurements.record_call("far", contract, CallEnd.SUCCESS, 0.1, 0)
    far_report = await levels.report_levels(far_admin, "lab.everywhere", None, 7)
    assert [each["calls"] for each in far_report["versions"]] == [5]
    assert [each["calls"] for each in await _report(lab, "everywhere")] == [300]
    later = contract.model_copy(update={"version": "1.1.0"})
    for admin, warnings in ((far_admin, 0), (await lab.make_admin(), 1)):
        await lab.gateway.commands.register_tool(admin, later)
        assert len(await levels.list_timeout_warnings(admin, later)) == warnings


async def test_a_revoked_administrator_sees_nothing(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        admin, other = await lab.make_admin("mallory"), await lab.make_admin()
        await lab.gateway.commands.revoke(other, "user", "mallory")
        with pytest.raises(AuthorityRevoked):
            await lab.gateway.service_levels.report_levels(admin, "lab.look", None, 7)


async def test_a_report_reads_by_index_among_many_tools(lab: GatewayLab) -> None:
    await lab.db.execute(
        "insert into deputize.call_measurements select 't' || (n % 5), 'many.tool' || (n / 5 % 400), '1.0.0', "
        "current_date - (n / 2000), 1, 0, 0, 0, 0, 0, 1, 0, 0, '{1,2}', '{1,1}' from generate_series(0, 59999) n"
    )
    await lab.db.execute("analyze deputize.call_measurements")
    for name, *arguments in (("list_measurements", None, 20), ("list_latencies", ["1.0.0"])):
        async with lab.runtime.store.read_transaction("t1") as connection:
            since = await connection.fetchval("select current_date - 6")
            plan = await connection.fetch(f"explain (analyze) {_SQL[name]}", "t1", "many.tool1", since, *arguments)
        text = "\n".join(row[0] for row in plan)
        assert "call_measurements_pkey" in text
        assert "Seq Scan" not in text
        assert "rows=7" in text
    await lab.db.execute("delete from deputize.call_measurements where name like 'many.%'")
