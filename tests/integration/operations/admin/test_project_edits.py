"""A development gateway starts again: what would change authority since then is held back, tenant by tenant."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from deputize.app import open_gateway
from deputize.core.contract.contract import Contract
from deputize.core.contract.tools import PythonTool
from deputize.core.settings import IssuerSettings, PolicySettings, Settings
from deputize.operations.admin.project_edits import ProjectEdits
from deputize.operations.gateway import Gateway
from tests.support.gateway_internals import get_runtime
from tests.support.gateway_lab import lab_settings
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
    """Let a tool declare fewer scopes."""
    fields = tool.contract.model_dump()
    return replace(tool, contract=Contract.model_validate(fields | {"auth": {**fields["auth"], "scopes": []}}))


@pytest.mark.requirement("GOV-3")
async def test_policies_and_weaker_contracts_are_held_until_they_are_activated(
    module_database: str, tmp_path: Path
) -> None:
    first, *others = (tool for tool in TOOLS if tool.contract.auth.scopes)
    async with open_project(make_settings(module_database, tmp_path, STRICT), [first, *others]) as gateway:
        assert not get_edits(gateway).holds_policies
        assert not get_edits(gateway).held_declarations
        assert await list_rules(gateway) == STRICT
    settings = make_settings(module_database, tmp_path, LOOSE, OTHER_TENANT)
    async with open_project(settings, [weaken(first), *others]) as gateway:
        edits = get_edits(gateway)
        assert edits.holds_policies
        # A tenant that is new has nothing that could be held: it gets the files, and changes nothing of the other.
        twin = (await get_runtime(gateway).authority.load_tenant("twin")).policy
        assert "".join(file.text for file in twin.policies.files) == LOOSE
        assert await list_rules(gateway) == STRICT
        (declaration,) = edits.held_declarations
        assert declaration.confirmed_tool is not None
        assert declaration.confirmed_tool.contract.digest == first.contract.digest
        registered_contract = await edits.find_contract(first.contract.full_name, first.contract.version)
        assert registered_contract is not None
        assert registered_contract.digest == first.contract.digest
