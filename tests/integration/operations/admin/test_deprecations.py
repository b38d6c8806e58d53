"""The end of a version: announced, watched, refused after its date, retired when it is quiet, or taken back."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.errors import MalformedRequest, ScopeMissing, ToolNotFound, VersionInUse, VersionNotFound
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.operations.admin.deprecations import DeprecationRequest
from deputize.operations.background.deprecation_reports import DeprecationReports
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("CON-8")
_HOUR = timedelta(hours=1)


class ShiftedClock:
    """A clock that tests put forward."""

    def __init__(self) -> None:
        self.ahead = timedelta()
        self.clock = Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 + int(self.ahead.total_seconds() * 1000))

    def now(self) -> datetime:
        return self.clock.now()


@pytest.fixture(scope="module")
def shifted_clock() -> ShiftedClock:
    return ShiftedClock()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clocked_lab(
    module_database: str, tmp_path_factory: pytest.TempPathFactory, shifted_clock: ShiftedClock
) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab"), clock=shifted_clock.clock) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _start_at_the_real_time(shifted_clock: ShiftedClock) -> None:
    shifted_clock.ahead = timedelta()


def _make_contract(name: str, version: str = "1.0.0", **more: Any) -> Contract:
    return TOOLS[0].contract.model_copy(update={"name": name, "version": version, **more})


async def _register(lab: GatewayLab, name: str, *versions: str) -> Caller:
    admin = await lab.make_admin()
    for version in versions or ("1.0.0",):
        await lab.gateway.commands.register_tool(admin, _make_contract(name, version))
    return admin


async def _deprecate(lab: GatewayLab, name: str, **request: Any) -> None:
    admin = await lab.make_admin()
    await lab.gateway.deprecations.deprecate_version(admin, f"lab.{name}", "1.0.0", DeprecationRequest(**request))


@dataclass
class Traffic:
    """Callers that call one version without a pause, each through both gateways by turns."""

    clock: ShiftedClock
    labs: tuple[GatewayLab, GatewayLab]
    tool: str
    outcomes: list[tuple[datetime, datetime, str, Outcome]] = field(default_factory=list)
    is_over: bool = False

    async def call_on(self, user: str, caller: Caller) -> None:
        turn = 0
        while not self.is_over:
            begin = self.clock.now()
            outcome = await self.labs[turn % 2].call(self.tool, "x", by=caller, version="1.0.0")
            self.outcomes.append((begin, self.clock.now(), user, outcome))
            turn += 1

    async def wait_for_calls(self, count: int) -> None:
        """Wait until each caller has made so many more calls."""
        enough = Counter(user for _, _, user, _ in self.outcomes)
        users = set(enough)
        while not users or any(
            Counter(user for _, _, user, _ in self.outcomes)[user] < enough[user] + count for user in users
        ):
            await asyncio.sleep(0)
            users |= {user for _, _, user, _ in self.outcomes}


async def test_a_deprecation_under_live_traffic_of_two_gateways(
    clocked_lab: GatewayLab, shifted_clock: ShiftedClock
) -> None:
    """No call fails before the date, every call is refused after it, and the report names every caller."""
    admin = await _register(clocked_lab, "ending", "1.0.0", "2.0.0")
    async with open_lab(clocked_lab.dsn, clocked_lab.folder, clock=shifted_clock.clock) as other_lab:
        callers = {user: await clocked_lab.make_caller(user) for user in ("ann", "ben", "cleo")}
        callers["dora for bot"] = await clocked_lab.make_caller("dora", agent="bot")
        traffic = Traffic(shifted_clock, (clocked_lab, other_lab), "ending")
        tasks = [asyncio.create_task(traffic.call_on(user, caller)) for user, caller in callers.items()]
        await traffic.wait_for_calls(3)
        removal_at = shifted_clock.now() + _HOUR
        await _deprecate(clocked_lab, "ending", removal_at=removal_at)
        await traffic.wait_for_calls(10)
        shifted_clock.ahead += 2 * _HOUR
        await traffic.wait_for_calls(10)
        traffic.is_over = True
        await asyncio.gather(*tasks)
        for each in (clocked_lab, other_lab):
            await each.runtime.deprecated_uses.store_uses(each.runtime.store)
        report = await other_lab.gateway.deprecations.report_usage(admin, "lab.ending", "1.0.0")

    before = [outcome for _, end, _, outcome in traffic.outcomes if end < removal_at]
    after = [outcome for begin, _, _, outcome in traffic.outcomes if begin >= removal_at]
    assert len(before) >= 4 * 10
    assert len(after) >= 4 * 10
    assert {outcome.state for outcome in before} == {State.SUCCEEDED}
    assert {(outcome.state, error_slug(outcome)) for outcome in after} == {(State.BLOCKED, "tool-retired")}
    assert parse_body(after[0])["error"]["details"]["replacement"] == "lab.ending@2.0.0"

    uses = Counter(
        user
        for _, _, user, outcome in traffic.outcomes
        if outcome.state is State.SUCCEEDED and "deprecation" in parse_body(outcome)
    )
    named = {" for ".join([each["user"], *each["agents"]]): each["calls"] for each in report["callers"]}
    assert named == uses
    assert set(named) == set(callers)
    assert report["calls"] == sum(uses.values())
    assert (await clocked_lab.call("ending", "x", by=callers["ann"])).state is State.SUCCEEDED


async def test_a_deprecated_version_says_so_in_every_answer(clocked_lab: GatewayLab) -> None:
    await _register(clocked_lab, "warned", "1.0.0", "1.1.0")
    await _deprecate(clocked_lab, "warned", migration_guide="https://docs.example/move")
    outcome = await clocked_lab.call("warned", "x", version="1.0.0")
    body = parse_body(outcome)
    assert body["deprecation"]["successor"] == "lab.warned@1.1.0"
    begin, end = (datetime.fromisoformat(body["deprecation"][key]) for key in ("deprecated_at", "removal_date"))
    assert end - begin == timedelta(days=90)
    assert body["warnings"][0].startswith("lab.warned 1.0.0 is deprecated; calls are refused from ")
    assert outcome.deprecation is not None
    assert dict(outcome.deprecation.build_headers()).keys() == {b"deprecation", b"sunset", b"link"}
    assert "deprecation" not in parse_body(await clocked_lab.call("warned", "x"))


async def test_a_used_version_is_retired_by_force_or_after_a_quiet_day(
    clocked_lab: GatewayLab, shifted_clock: ShiftedClock
) -> None:
    commands = clocked_lab.gateway.commands
    admin = await _register(clocked_lab, "quiet")
    await _register(clocked_lab, "forced")
    for name in ("quiet", "forced"):
        await _deprecate(clocked_lab, name)
        assert (await clocked_lab.call(name, "x", version="1.0.0")).state is State.SUCCEEDED
        with pytest.raises(VersionInUse, match="1 caller used it") as refused:
            await commands.set_state(admin, f"lab.{name}", "1.0.0", LifecycleState.RETIRED)
        assert refused.value.details["callers"] == 1
    await commands.set_state(admin, "lab.forced", "1.0.0", LifecycleState.RETIRED, force=True)
    assert error_slug(await clocked_lab.call("forced", "x", version="1.0.0")) == "tool-retired"
    shifted_clock.ahead += 23 * _HOUR
    with pytest.raises(VersionInUse):
        await commands.set_state(admin, "lab.quiet", "1.0.0", LifecycleState.RETIRED)
    shifted_clock.ahead += 2 * _HOUR
    await commands.set_state(admin, "lab.quiet", "1.0.0", LifecycleState.RETIRED)
    assert error_slug(await clocked_lab.call("quiet", "x", version="1.0.0")) == "tool-retired"


async def test_a_deprecation_is_taken_back_even_after_its_date(
    clocked_lab: GatewayLab, shifted_clock: ShiftedClock
) -> None:
    deprecations = clocked_lab.gateway.deprecations
    admin = await _register(clocked_lab, "back")
    await _deprecate(clocked_lab, "back", removal_at=shifted_clock.now() + timedelta(seconds=20))
    shifted_clock.ahead += timedelta(seconds=30)
    assert error_slug(await clocked_lab.call("back", "x")) == "tool-retired"
    assert "lab.back" not in [
        each["name"] for each in (await clocked_lab.gateway.surface.list_tools(admin, limit=500)).tools
    ]
    await deprecations.roll_back(admin, "lab.back", "1.0.0")
    body = parse_body(await clocked_lab.call("back", "x"))
    assert (body["state"], body["warnings"]) == ("succeeded", [])
    with pytest.raises(MalformedRequest, match="is available; only a deprecation can be taken back"):
        await deprecations.roll_back(admin, "lab.back", "1.0.0")


async def test_a_notice_is_changed_without_beginning_anew(clocked_lab: GatewayLab, shifted_clock: ShiftedClock) -> None:
    admin = await _register(clocked_lab, "longer", "1.0.0", "1.1.0")
    await _deprecate(clocked_lab, "longer", removal_at=shifted_clock.now() + timedelta(seconds=20))
    deprecations = clocked_lab.gateway.deprecations
    first = (await deprecations.report_usage(admin, "lab.longer", "1.0.0"))["deprecation"]
    shifted_clock.ahead += timedelta(seconds=30)
    await _deprecate(clocked_lab, "longer", removal_at=shifted_clock.now() + _HOUR)
    second = (await deprecations.report_usage(admin, "lab.longer", "1.0.0"))["deprecation"]
    assert first["deprecated_at"] == second["deprecated_at"]
    assert first["removal_date"] < second["removal_date"]
    assert (await clocked_lab.call("longer", "x", version="1.0.0")).state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("request_", "field_"),
    [
        ({"removal_at": datetime.fromisoformat("2020-01-01T00:00:00+00:00")}, "removal_date"),
        ({"successor": "lab.judged@9.0.0"}, "successor"),
        ({"successor": "lab.judged@1.0.0"}, "successor"),
    ],
)
async def test_a_wrong_notice_is_refused(request_: dict[str, Any], field_: str, clocked_lab: GatewayLab) -> None:
    await _register(clocked_lab, "judged", "1.0.0", "1.1.0")
    with pytest.raises(MalformedRequest) as refused:
        await _deprecate(clocked_lab, "judged", **request_)
    assert refused.value.details["field"] == field_
    assert parse_body(await clocked_lab.call("judged", "x", version="1.0.0"))["warnings"] == []


async def test_only_administrators_deprecate_and_see_callers(clocked_lab: GatewayLab) -> None:
    admin, nobody = await _register(clocked_lab, "guarded"), await clocked_lab.make_caller()
    deprecations, other_tenant = clocked_lab.gateway.deprecations, await clocked_lab.make_admin("far")
    for act in (
        deprecations.deprecate_version(nobody, "lab.guarded", "1.0.0", DeprecationRequest()),
        deprecations.roll_back(nobody, "lab.guarded", "1.0.0"),
        deprecations.report_usage(nobody, "lab.guarded", "1.0.0"),
    ):
        with pytest.raises(ScopeMissing):
            await act
    with pytest.raises(VersionNotFound):
        await deprecations.report_usage(admin, "lab.guarded", "7.0.0")
    with pytest.raises(ToolNotFound):
        await deprecations.report_usage(other_tenant, "lab.nowhere", "1.0.0")


async def test_the_weekly_report_says_whether_callers_have_moved_on(
    clocked_lab: GatewayLab, shifted_clock: ShiftedClock, capsys: pytest.CaptureFixture[str]
) -> None:
    await _register(clocked_lab, "reported")
    await _deprecate(clocked_lab, "reported")
    reports = DeprecationReports(clocked_lab.runtime)
    await reports.report_due_versions()
    capsys.readouterr()
    shifted_clock.ahead += timedelta(days=6)
    assert (await clocked_lab.call("reported", "x")).state is State.SUCCEEDED
    await clocked_lab.runtime.deprecated_uses.store_uses(clocked_lab.runtime.store)
    assert await reports.report_due_versions() == 0
    shifted_clock.ahead += timedelta(days=2)
    assert await reports.report_due_versions() >= 1
    assert await reports.report_due_versions() == 0
    [line] = [each for each in capsys.readouterr().out.splitlines() if "tool=lab.reported" in each]
    assert "deprecation_migration_progress" in line
    assert "callers=1" in line
    shifted_clock.ahead += timedelta(days=8)
    assert await reports.report_due_versions() >= 1
    [line] = [each for each in capsys.readouterr().out.splitlines() if "tool=lab.reported" in each]
    assert "deprecation_migration_complete" in line
