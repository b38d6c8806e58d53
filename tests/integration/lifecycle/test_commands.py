"""Administrative acts: who may, what is recorded of them in the same commit, and how soon every gateway knows."""

import asyncio
from typing import Any

import asyncpg
import orjson
import pytest

from deputize.catalog import registry
from deputize.core.contract import Contract, LifecycleState
from deputize.core.errors import NotAdmitted, Problem, RequiresSetup, Revoked, ScopeMissing, VersionConflict
from deputize.core.events import State
from deputize.govern.identity import revocations
from tests.integration.lifecycle.lab import Lab, open_lab, slug, until
from tests.integration.lifecycle.tools import TOOLS

LOOK = TOOLS[0].contract


def _named(name: str, **more: Any) -> Contract:
    """A manifest of its own that lends the function of `lab.look` another name."""
    return LOOK.model_copy(update={"name": name, **more})


async def _commands(lab: Lab) -> list[dict[str, Any]]:
    rows = await lab.db.fetch("select entry from deputize.audit_entries where call_id is null order by id")
    return [orjson.loads(row["entry"]) for row in rows]


@pytest.mark.requirement("GOV-1")
async def test_administrative_acts_need_the_scope_for_them(lab: Lab) -> None:
    commands, nobody = lab.gateway.commands, await lab.caller()
    before = len(await _commands(lab))
    for act in (
        commands.register(nobody, _named("mine")),
        commands.declare(nobody, {}),
        commands.set_state(nobody, "lab.look", "0.1.0", LifecycleState.RETIRED),
        commands.revoke(nobody, "subject", "root"),
    ):
        with pytest.raises(ScopeMissing):
            await act
    assert len(await _commands(lab)) == before
    assert (await lab.call("look", "still")).state is State.SUCCEEDED


@pytest.mark.requirement("GOV-5")
async def test_each_act_leaves_one_entry_that_says_what_was_done(lab: Lab) -> None:
    admin, commands = await lab.admin(), lab.gateway.commands
    before = len(await _commands(lab))
    await commands.register(admin, _named("told"))
    await commands.set_state(admin, "lab.told", "0.1.0", LifecycleState.DISABLED)
    epoch = await commands.revoke(admin, "subject", "mallory", reason="left")
    entries = (await _commands(lab))[before:]
    assert [(entry["command"], entry["subject"]) for entry in entries] == [
        ("register:available", "lab.told@0.1.0"),
        ("set_state:disabled", "lab.told@0.1.0"),
        ("revoke:subject", "mallory"),
    ]
    assert {(entry["kind"], entry["outcome"], tuple(entry["caller"])) for entry in entries} == {
        ("command", "succeeded", admin.pseudonyms)
    }
    assert lab.rooms.authority.known_epochs()["dev"].revocation == epoch


@pytest.mark.requirement("GOV-5")
async def test_an_act_and_its_entry_are_one_commit(lab: Lab) -> None:
    admin, commands = await lab.admin(), lab.gateway.commands
    await commands.register(admin, _named("once"))
    before = len(await _commands(lab))
    with pytest.raises(VersionConflict):
        await commands.register(admin, _named("once", title="Another"))
    with pytest.raises(Problem):
        await commands.set_state(admin, "lab.once", "9.9.9", LifecycleState.RETIRED)
    with pytest.raises(NotAdmitted):
        await commands.register(admin, _named("bare", input_schema={"type": "object"}))
    assert len(await _commands(lab)) == before
    await lab.db.execute(
        "alter table deputize.audit_entries add constraint no_more check (call_id is not null) not valid"
    )
    try:
        with pytest.raises(asyncpg.CheckViolationError):
            await commands.set_state(admin, "lab.once", "0.1.0", LifecycleState.RETIRED)
    finally:
        await lab.db.execute("alter table deputize.audit_entries drop constraint no_more")
    state = await lab.db.fetchval("select state from deputize.tool_versions where name = 'lab.once'")
    assert state == "available"


@pytest.mark.requirement("NEW-7")
async def test_a_revoked_administrator_does_nothing_any_more_on_any_gateway(lab: Lab, other_lab: Lab) -> None:
    traitor = await lab.admin("traitor")
    await lab.gateway.commands.register(traitor, _named("by_traitor"))
    async with other_lab.barrier_closed():
        late = asyncio.create_task(lab.gateway.commands.set_state(traitor, "lab.look", "0.1.0", LifecycleState.RETIRED))
        await lab.until_waiting("%pg_advisory_xact_lock(%")
        await revocations.revoke(other_lab.db, "dev", "subject", "traitor", by="test")
    with pytest.raises(Revoked):
        await late
    for each in (lab, other_lab):
        with pytest.raises(Revoked):
            await each.gateway.commands.revoke(traitor, "subject", "root")
    assert (await lab.call("look", "kept")).state is State.SUCCEEDED


async def test_a_declaration_from_outside_runs_only_what_is_loaded_here(lab: Lab) -> None:
    declared = orjson.loads(orjson.dumps(_named("smuggled").model_dump(mode="json")))
    declared["handler"]["target"] = "os:system"
    with pytest.raises(RequiresSetup):
        await lab.gateway.commands.declare(await lab.admin(), declared)
    assert slug(await lab.call("smuggled")) == "tool-not-found"


@pytest.mark.requirement("REG-1")
@pytest.mark.requirement("CON-8")
async def test_another_gateway_knows_of_a_change_long_before_its_poll(lab: Lab) -> None:
    # Its poll sleeps for a minute: only the notification can tell it.
    async with open_lab(lab.dsn, lab.folder, refresh_seconds=60) as hearer:
        assert slug(await hearer.call("heard", "x")) == "tool-not-found"
        await lab.gateway.commands.register(await lab.admin(), _named("heard"))

        async def heard() -> bool:
            return (await hearer.call("heard", "x")).state is State.SUCCEEDED

        await until(heard, seconds=30)
        await lab.gateway.commands.set_state(await lab.admin(), "lab.heard", "0.1.0", LifecycleState.DISABLED)

        async def disabled() -> bool:
            return slug(await hearer.call("heard", "x")) == "tool-disabled"

        await until(disabled, seconds=30)


@pytest.mark.requirement("REG-1")
async def test_a_change_nobody_announced_is_found_by_the_poll(lab: Lab) -> None:
    async with lab.barrier_closed() as quiet:
        await registry.register(quiet, "dev", _named("unheard"), by="test")

    async def found() -> bool:
        return (await lab.call("unheard", "x")).state is State.SUCCEEDED

    await until(found, seconds=30)


@pytest.mark.requirement("CON-8")
async def test_versions_live_side_by_side_and_each_is_called_by_its_number(lab: Lab) -> None:
    admin = await lab.admin()
    for version in ("1.0.0", "1.4.0", "2.0.0"):
        await lab.gateway.commands.register(admin, _named("many", version=version))
    asked = {"1.0.0": "1.0.0", "^1": "1.4.0", "~1.0": "1.0.0", "1.x": "1.4.0", "latest": "2.0.0"}
    for spec, version in asked.items():
        outcome = await lab.call("many", "x", version=spec)
        assert orjson.loads(outcome.body)["tool"]["version"] == version
    await lab.gateway.commands.set_state(admin, "lab.many", "2.0.0", LifecycleState.RETIRED)
    assert orjson.loads((await lab.call("many", "x")).body)["tool"]["version"] == "1.4.0"


@pytest.mark.requirement("CON-10")
async def test_a_deprecated_version_is_called_with_a_warning(lab: Lab) -> None:
    admin = await lab.admin()
    old = _named("old", life={"sunset_date": "2030-01-01", "replacement": "lab.look"})
    await lab.gateway.commands.register(admin, old)
    await lab.gateway.commands.set_state(admin, "lab.old", "0.1.0", LifecycleState.DEPRECATED)
    outcome = await lab.call("old", "x")
    assert outcome.state is State.SUCCEEDED
    [warning] = orjson.loads(outcome.body)["warnings"]
    assert "2030-01-01" in warning
    assert "lab.look" in warning
