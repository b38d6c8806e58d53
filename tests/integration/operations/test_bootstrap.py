"""Starting a gateway: what the administrators of a tenant do must not keep it from serving everybody else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deputize.app import open_gateway
from deputize.core.caller import ADMIN_SCOPE
from deputize.core.settings import PolicySettings
from deputize.govern.policy.policy_parser import PolicyFile
from tests.integration.conftest import SCOPES, HttpGateway, gateway_settings, serve_gateway
from tests.support.gateway_internals import get_runtime
from tests.support.gateway_lab import GatewayLab, open_lab
from tests.support.policies import OPEN_FILES, OPEN_POLICY
from tests.support.shop_tools import TOOLS

pytestmark = pytest.mark.requirement("GOV-1")

ABOUT_AMOUNTS = (
    '@id("small") forbid (principal, action, resource) when { context.facts has amount && context.facts.amount > 3 };\n'
)


@pytest.mark.parametrize("kind", ["user", "subject"])
async def test_no_administrator_can_keep_a_gateway_from_starting(lab: GatewayLab, kind: Any) -> None:
    await lab.gateway.commands.revoke(await lab.make_admin(), kind, "operator")
    await lab.gateway.commands.revoke(await lab.make_admin(), "token", "boot")
    await lab.gateway.commands.put_policies(await lab.make_admin(), [PolicyFile(path="other.cedar", text=OPEN_POLICY)])
    async with open_lab(lab.dsn, lab.folder) as again:
        assert (await again.call("look", "served")).spec is None


async def test_tools_of_another_tenant_that_do_not_fit_the_operators_policies_stop_nobody(
    fresh_database: str, tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path) as http_gateway:
        answer = await http_gateway.post(
            "/v1/tools", _make_conflicting_tool("amount"), token=_make_other_admin_token(http_gateway)
        )
        assert answer.status_code == 201, answer.text
    settings = gateway_settings(fresh_database, tmp_path)
    (tmp_path / "amounts.cedar").write_text(OPEN_POLICY + ABOUT_AMOUNTS)
    policy = PolicySettings(files=(str(tmp_path / "amounts.cedar"),))
    async with open_gateway(settings.model_copy(update={"policy": policy}), tools=TOOLS, development=True) as gateway:
        assert [problem.spec.slug for problem in gateway.startup_problems] == ["policy-invalid"]


async def test_what_another_gateway_put_is_not_taken_for_what_is_in_force_here(lab: GatewayLab) -> None:
    async with open_lab(lab.dsn, lab.folder, refresh_seconds=60) as slow:
        await slow.gateway.commands.put_policies(await slow.make_admin(), OPEN_FILES)
        known = slow.runtime.authority.get_tenant("dev")
        await lab.gateway.commands.put_policies(
            await lab.make_admin(), [PolicyFile(path="new.cedar", text=OPEN_POLICY)]
        )
        # As if it had not heard yet.
        assert known is not None
        slow.runtime.authority._tenants["dev"] = known
        assert (await slow.gateway.commands.put_policies(await slow.make_admin(), OPEN_FILES)).is_new


@pytest.mark.requirement("GOV-3")
async def test_a_worker_changes_no_authority_and_says_where_its_files_differ(
    fresh_database: str, tmp_path: Path
) -> None:
    settings = gateway_settings(fresh_database, tmp_path)
    first, newer, *rest = TOOLS
    async with open_gateway(settings, tools=[first, *rest], development=True) as gateway:
        authority = get_runtime(gateway).authority
        before = await authority.reload_tenant("dev")
        (tmp_path / "loose.cedar").write_text('@id("loose") permit (principal, action, resource);\n')
        policy = PolicySettings(files=(str(tmp_path / "loose.cedar"),))
        changed = first.contract.model_copy(update={"description": "Says something else than what is registered."})
        changed.__dict__.pop("digest", None)
        async with open_gateway(
            settings.model_copy(update={"policy": policy}),
            tools=[replace(first, contract=changed), newer, *rest],
            development=True,
            worker=True,
            applies_files=False,
        ) as worker:
            assert [problem.spec.slug for problem in worker.startup_problems] == ["version-conflict"]
            unregistered, *other_policies = worker.file_differences
            assert unregistered.startswith(f"{newer.contract.full_name} {newer.contract.version} is not registered")
            assert {"tenant dev, and those decide" in other_policies[0], "tenant other" in other_policies[1]} == {True}
            after = await authority.reload_tenant("dev")
        assert (after.policy.digest, after.epochs) == (before.policy.digest, before.epochs)
        assert newer.contract.full_name not in after.tools.tools


@pytest.mark.requirement("GOV-3")
async def test_a_worker_with_the_same_files_has_nothing_to_say(fresh_database: str, tmp_path: Path) -> None:
    settings = gateway_settings(fresh_database, tmp_path)
    async with (
        open_gateway(settings, tools=TOOLS, development=True),
        open_gateway(settings, tools=TOOLS, development=True, worker=True, applies_files=False) as worker,
    ):
        assert (worker.startup_problems, worker.file_differences) == ([], [])


def _make_other_admin_token(gateway: HttpGateway) -> str:
    return gateway.other_token("otto", scopes=(*SCOPES, ADMIN_SCOPE))


def _make_conflicting_tool(fact: str) -> dict[str, Any]:
    """A tool of the other tenant that exposes a text under a name the operator's rules take for a number."""
    contract = next(each.contract for each in TOOLS if each.contract.full_name == "shop.hidden_user")
    declared = contract.model_dump(mode="json") | {"namespace": "store", "name": "look"}
    text = {"type": "string", "description": "Something", "examples": ["x"], "x-policy": fact}
    declared["input_schema"]["properties"]["word"] = text
    return declared
