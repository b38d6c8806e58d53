"""A development gateway starts again: other policies are held back, tenant by tenant, and tools are as in the files."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from deputize.app import open_gateway
from deputize.core.caller import ADMIN_SCOPE
from deputize.core.contract.contract import Contract
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import ToolNotFound
from deputize.core.settings import IssuerSettings, PolicySettings, Settings
from deputize.operations.admin.project_edits import ProjectEdits
from deputize.operations.gateway import Gateway
from tests.support.gateway_internals import get_runtime
from tests.support.gateway_lab import lab_settings
from tests.support.policy_inputs import make_caller
from tests.support.scripted_tools import TOOLS

STRICT = '@id("one") permit (principal == User::"ana", action, resource);'
LOOSE = '@id("every") permit (principal, action, resource);'
OTHER_TENANT = IssuerSettings(issuer="https://other.example", jwks_file=Path("none.json"), audience="a", tenant="twin")


def make_settings(dsn: str, folder: Path, policy: str, *issuers: IssuerSettings) -> Settings:
    file = folder / "rules.cedar"
    file.write_text(policy)
    settings = lab_settings(dsn, folder)
    identity = settings.identity.model_copy(update={"issuers": (*settings.identity.issuers, *issuers)})
    return settings.model_copy(update={"policy": PolicySettings(files=(str(file),)), "identity": identity})


def open_project(settings: Settings, tools: Sequence[PythonTool]) -> AbstractAsyncContextManager[Gateway]:
    return open_gateway(settings, tools=tools, development=True, replaces_versions=True, holds_changes=True)


def get_edits(gateway: Gateway) -> ProjectEdits:
    assert gateway.project_edits is not None
    return gateway.project_edits


async def list_rules(gateway: Gateway) -> str:
    return "".join(file.text for file in await get_edits(gateway).load_active_policies())


def weaken(tool: PythonTool) -> PythonTool:
    """Let a tool declare another scope."""
    fields = tool.contract.model_dump()
    return replace(
        tool, contract=Contract.model_validate(fields | {"auth": {**fields["auth"], "scopes": ["lab:other"]}})
    )


@pytest.mark.requirement("GOV-3")
async def test_other_policies_are_held_and_weaker_tools_are_used_and_named(
    module_database: str, tmp_path: Path
) -> None:
    first, *others = (tool for tool in TOOLS if tool.contract.auth.scopes)
    async with open_project(make_settings(module_database, tmp_path, STRICT), [first, *others]) as gateway:
        assert not get_edits(gateway).holds_policies
        assert not get_edits(gateway).authority_changes
        assert await list_rules(gateway) == STRICT
    settings = make_settings(module_database, tmp_path, LOOSE, OTHER_TENANT)
    async with open_project(settings, [weaken(first), *others]) as gateway:
        edits = get_edits(gateway)
        assert edits.holds_policies
        # A tenant that is new has nothing that could be held: it gets the files, and changes nothing of the other.
        twin = (await get_runtime(gateway).authority.load_tenant("twin")).policy
        assert "".join(file.text for file in twin.policies.files) == LOOSE
        assert await list_rules(gateway) == STRICT
        assert list(edits.authority_changes) == [first.contract.full_name]
        registered_contract = await edits.find_contract(first.contract.full_name, first.contract.version)
        assert registered_contract is not None
        assert registered_contract.digest == weaken(first).contract.digest


async def test_a_tool_that_the_files_no_longer_have_is_in_no_list_also_after_a_restart(
    fresh_database: str, tmp_path: Path
) -> None:
    first, *others = TOOLS
    name, caller = first.contract.full_name, make_caller(tenant="dev", scopes=frozenset({ADMIN_SCOPE}))
    settings = make_settings(fresh_database, tmp_path, LOOSE)

    async def list_names(gateway: Gateway) -> set[str]:
        return {each["name"] for each in (await gateway.surface.list_tools(caller, limit=100)).tools}

    async with open_project(settings, TOOLS) as gateway:
        assert name in await list_names(gateway)
        await get_edits(gateway).hide_removed_tools(others, {name: "it was in tools/lab.py"})
        assert name not in await list_names(gateway)
        assert name not in {each.contract.full_name for each in await gateway.surface.list_loaded_tools(caller)}
    async with open_project(settings, others) as gateway:
        await get_edits(gateway).hide_removed_tools(others, {})
        assert name not in await list_names(gateway)
        with pytest.raises(ToolNotFound, match="any more: the project's files no longer have"):
            await gateway.surface.show_tool(caller, name)
        # Written again, it is there again.
        await get_edits(gateway).hide_removed_tools(TOOLS, {})
        assert name in await list_names(gateway)
