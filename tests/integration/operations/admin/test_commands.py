"""Administrative acts: who may, what is recorded of them in the same commit, and how soon every gateway knows."""

import asyncio
from typing import Any

import asyncpg
import orjson
import pytest

from deputize.catalog import registry
from deputize.core.canonical import compute_commitment
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.errors import (
    AuthorityRevoked,
    Problem,
    ScopeMissing,
    ToolNotAdmitted,
    ToolRequiresSetup,
    VersionConflict,
)
from deputize.core.states import State
from deputize.govern.identity import revocations
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, wait_until
from tests.support.scripted_tools import TOOLS, list_effects

LOOK_CONTRACT = TOOLS[0].contract


def _rename_contract(name: str, **more: Any) -> Contract:
    """A manifest of its own that lends the function of `lab.look` another name."""
    return LOOK_CONTRACT.model_copy(update={"name": name, **more})


async def _fetch_command_entries(lab: GatewayLab) -> list[dict[str, Any]]:
    rows = await lab.db.fetch("select entry from deputize.audit_entries where call_id is null order by id")
    return [orjson.loads(row["entry"]) for row in rows]


@pytest.mark.requirement("GOV-1")
async def test_administrative_acts_need_the_scope_for_them(lab: GatewayLab) -> None:
    commands, nobody = lab.gateway.commands, await lab.make_caller()
    before = len(await _fetch_command_entries(lab))
    for act in (
        commands.register_tool(nobody, _rename_contract("mine")),
        commands.register_manifest(nobody, {}),
        commands.set_state(nobody, "lab.look", "0.1.0", LifecycleState.RETIRED),
        commands.revoke(nobody, "subject", "root"),
    ):
        with pytest.raises(ScopeMissing):
            await act
    assert len(await _fetch_command_entries(lab)) == before
    assert (await lab.call("look", "still")).state is State.SUCCEEDED


@pytest.mark.requirement("GOV-5")
async def test_each_act_leaves_one_entry_that_says_what_was_done(lab: GatewayLab) -> None:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    before = len(await _fetch_command_entries(lab))
    await commands.register_tool(admin, _rename_contract("told"))
    await commands.set_state(admin, "lab.told", "0.1.0", LifecycleState.DISABLED)
    epoch = await commands.revoke(admin, "subject", "mallory", reason="left")
    entries = (await _fetch_command_entries(lab))[before:]
    salt = await lab.db.fetchval("select salt from deputize.subjects where tenant = 'dev' and subject = 'mallory'")
    assert [(entry["command"], entry["subject"]) for entry in entries] == [
        ("register:available", "lab.told@0.1.0"),
        ("set_state:disabled", "lab.told@0.1.0"),
        # A person stands in no entry by name, so that they can be erased.
        ("revoke:subject", compute_commitment(salt, b"mallory")),
    ]
    assert {(entry["kind"], entry["outcome"], tuple(entry["caller"])) for entry in entries} == {
        ("command", "succeeded", admin.pseudonyms)
    }
    assert lab.runtime.authority.list_epochs()["dev"].revocation == epoch


@pytest.mark.requirement("GOV-5")
async def test_an_act_and_its_entry_are_one_commit(lab: GatewayLab) -> None:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    await commands.register_tool(admin, _rename_contract("once"))
    before = len(await _fetch_command_entries(lab))
    with pytest.raises(VersionConflict):
        await commands.register_tool(admin, _rename_contract("once", title="Another"))
    with pytest.raises(Problem):
        await commands.set_state(admin, "lab.once", "9.9.9", LifecycleState.RETIRED)
    with pytest.raises(ToolNotAdmitted):
        await commands.register_tool(admin, _rename_contract("bare", input_schema={"type": "object"}))
    assert len(await _fetch_command_entries(lab)) == before
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
async def test_a_revoked_administrator_does_nothing_any_more_on_any_gateway(
    lab: GatewayLab, other_lab: GatewayLab
) -> None:
    traitor = await lab.make_admin("traitor")
    await lab.gateway.commands.register_tool(traitor, _rename_contract("by_traitor"))
    async with other_lab.hold_barrier():
        late = asyncio.create_task(lab.gateway.commands.set_state(traitor, "lab.look", "0.1.0", LifecycleState.RETIRED))
        await lab.wait_for_blocked_query("%pg_advisory_xact_lock(%")
        await revocations.revoke(other_lab.db, "dev", "subject", "traitor", by="test")
    with pytest.raises(AuthorityRevoked):
        await late
    for each in (lab, other_lab):
        with pytest.raises(AuthorityRevoked):
            await each.gateway.commands.revoke(traitor, "subject", "root")
    assert (await lab.call("look", "kept")).state is State.SUCCEEDED


async def test_a_declaration_from_outside_runs_only_what_is_loaded_here(lab: GatewayLab) -> None:
    declared = orjson.loads(orjson.dumps(_rename_contract("smuggled").model_dump(mode="json")))
    declared["handler"]["target"] = "os:system"
    with pytest.raises(ToolRequiresSetup):
        await lab.gateway.commands.register_manifest(await lab.make_admin(), declared)
    assert error_slug(await lab.call("smuggled")) == "tool-not-found"


def _make_manifest(tool: str, **changes: Any) -> dict[str, Any]:
    contract = next(each.contract for each in TOOLS if each.contract.full_name == tool)
    return {**orjson.loads(orjson.dumps(contract.model_dump(mode="json"))), **changes}


@pytest.mark.requirement("GOV-1")
@pytest.mark.requirement("GOV-3")
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"name": "peek", "effects": "read", "resources": []}, "/effects"),
        ({"version": "0.2.0", "effects": "read", "resources": []}, "/effects"),
        ({"name": "peek", "auth": {"scopes": ["lab:other"]}}, "/auth/scopes"),
        ({"name": "peek", "idempotency": {"upstream": "deduplicates"}}, "/idempotency/upstream"),
    ],
)
async def test_nobody_can_relabel_a_function_as_more_harmless_than_it_declares(
    lab: GatewayLab, changes: dict[str, Any], path: str
) -> None:
    admin, manifest = await lab.make_admin(), _make_manifest("lab.erase", **changes)
    for act in (
        lab.gateway.commands.register_manifest(admin, manifest),
        lab.gateway.commands.register_tool(admin, Contract.model_validate(manifest)),
    ):
        with pytest.raises(ToolNotAdmitted) as refused:
            await act
        assert path in {each["path"] for each in refused.value.details["reasons"]}
        assert "tests.support.scripted_tools:erase declares" in refused.value.message
    assert not await lab.db.fetchval("select count(*) from deputize.tool_versions where name = 'lab.peek'")


@pytest.mark.requirement("GOV-3")
async def test_a_weaker_contract_that_is_registered_already_does_not_run(lab: GatewayLab) -> None:
    weak = Contract.model_validate(_make_manifest("lab.erase", name="relabeled", effects="read", resources=[]))
    async with lab.db.transaction():
        # As the first release let anybody with the scope for it, or somebody with the database's password.
        await registry.register_contract(lab.db, "dev", weak, by="test")
    await lab.runtime.authority.reload_tenant("dev")
    assert error_slug(await lab.call("relabeled", "relabel")) == "not-admitted"
    assert list_effects("relabel") == []


@pytest.mark.requirement("REG-1")
@pytest.mark.requirement("CON-8")
async def test_another_gateway_knows_of_a_change_long_before_its_poll(lab: GatewayLab) -> None:
    # Its poll sleeps for a minute: only the notification can tell it.
    async with open_lab(lab.dsn, lab.folder, refresh_seconds=60) as hearer:
        assert error_slug(await hearer.call("heard", "x")) == "tool-not-found"
        await lab.gateway.commands.register_tool(await lab.make_admin(), _rename_contract("heard"))

        async def has_epoch() -> bool:
            return (await hearer.call("heard", "x")).state is State.SUCCEEDED

        await wait_until(has_epoch, seconds=30)
        await lab.gateway.commands.set_state(await lab.make_admin(), "lab.heard", "0.1.0", LifecycleState.DISABLED)

        async def is_disabled() -> bool:
            return error_slug(await hearer.call("heard", "x")) == "tool-disabled"

        await wait_until(is_disabled, seconds=30)


@pytest.mark.requirement("REG-1")
async def test_a_change_nobody_announced_is_found_by_the_poll(lab: GatewayLab) -> None:
    async with lab.hold_barrier() as quiet:
        await registry.register_contract(quiet, "dev", _rename_contract("unheard"), by="test")

    async def is_found() -> bool:
        return (await lab.call("unheard", "x")).state is State.SUCCEEDED

    await wait_until(is_found, seconds=30)


@pytest.mark.requirement("CON-8")
async def test_versions_live_side_by_side_and_each_is_called_by_its_number(lab: GatewayLab) -> None:
    admin = await lab.make_admin()
    for version in ("1.0.0", "1.4.0", "2.0.0"):
        await lab.gateway.commands.register_tool(admin, _rename_contract("many", version=version))
    asked = {"1.0.0": "1.0.0", "^1": "1.4.0", "~1.0": "1.0.0", "1.x": "1.4.0", "latest": "2.0.0"}
    for spec, version in asked.items():
        outcome = await lab.call("many", "x", version=spec)
        assert orjson.loads(outcome.body)["tool"]["version"] == version
    await lab.gateway.commands.set_state(admin, "lab.many", "2.0.0", LifecycleState.RETIRED)
    assert orjson.loads((await lab.call("many", "x")).body)["tool"]["version"] == "1.4.0"


@pytest.mark.requirement("CON-10")
async def test_a_deprecated_version_is_called_with_a_warning(lab: GatewayLab) -> None:
    admin = await lab.make_admin()
    old = _rename_contract("old", life={"sunset_date": "2030-01-01", "replacement": "lab.look"})
    await lab.gateway.commands.register_tool(admin, old)
    await lab.gateway.commands.set_state(admin, "lab.old", "0.1.0", LifecycleState.DEPRECATED)
    outcome = await lab.call("old", "x")
    assert outcome.state is State.SUCCEEDED
    [warning] = orjson.loads(outcome.body)["warnings"]
    assert "2030-01-01" in warning
    assert "lab.look" in warning
