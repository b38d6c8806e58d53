"""Starting a gateway: what the administrators of a tenant do must not keep it from serving everybody else."""

from pathlib import Path
from typing import Any

import pytest

from deputize.app import open_gateway
from deputize.core.caller import ADMIN_SCOPE
from deputize.core.settings import Policy
from deputize.govern.policy.rules import PolicyFile
from tests.integration.conftest import SCOPES, Served, gateway_settings, serving
from tests.integration.lifecycle.lab import Lab, open_lab
from tests.integration.shop import TOOLS
from tests.policies import OPEN, OPEN_FILES

pytestmark = pytest.mark.requirement("GOV-1")

ABOUT_AMOUNTS = (
    '@id("small") forbid (principal, action, resource) when { context.facts has amount && context.facts.amount > 3 };\n'
)


@pytest.mark.parametrize("kind", ["user", "subject"])
async def test_no_administrator_can_keep_a_gateway_from_starting(lab: Lab, kind: Any) -> None:
    await lab.gateway.commands.revoke(await lab.admin(), kind, "operator")
    await lab.gateway.commands.revoke(await lab.admin(), "token", "boot")
    await lab.gateway.commands.put_policies(await lab.admin(), [PolicyFile(path="other.cedar", text=OPEN)])
    async with open_lab(lab.dsn, lab.folder) as again:
        assert (await again.call("look", "served")).face is None


async def test_tools_of_another_tenant_that_do_not_fit_the_operators_policies_stop_nobody(
    fresh_database: str, tmp_path: Path
) -> None:
    async with serving(fresh_database, tmp_path) as served:
        answer = await served.post("/v1/tools", _told("amount"), token=_other_admin(served))
        assert answer.status_code == 201, answer.text
    settings = gateway_settings(fresh_database, tmp_path)
    (tmp_path / "amounts.cedar").write_text(OPEN + ABOUT_AMOUNTS)
    policy = Policy(files=(str(tmp_path / "amounts.cedar"),))
    async with open_gateway(settings.model_copy(update={"policy": policy}), tools=TOOLS, development=True) as gateway:
        assert [problem.face.slug for problem in gateway.refused] == ["policy-invalid"]


async def test_what_another_gateway_put_is_not_taken_for_what_is_in_force_here(lab: Lab) -> None:
    async with open_lab(lab.dsn, lab.folder, refresh_seconds=60) as slow:
        await slow.gateway.commands.put_policies(await slow.admin(), OPEN_FILES)
        known = slow.rooms.authority.known("dev")
        await lab.gateway.commands.put_policies(await lab.admin(), [PolicyFile(path="new.cedar", text=OPEN)])
        # As if it had not heard yet.
        assert known is not None
        slow.rooms.authority._tenants["dev"] = known
        assert (await slow.gateway.commands.put_policies(await slow.admin(), OPEN_FILES)).changed


def _other_admin(served: Served) -> str:
    return served.other_token("otto", scopes=(*SCOPES, ADMIN_SCOPE))


def _told(fact: str) -> dict[str, Any]:
    """A tool of the other tenant that exposes a text under a name the operator's rules take for a number."""
    contract = next(each.contract for each in TOOLS if each.contract.full_name == "shop.hidden")
    declared = contract.model_dump(mode="json") | {"namespace": "store", "name": "look"}
    text = {"type": "string", "description": "Something", "examples": ["x"], "x-policy": fact}
    declared["input_schema"]["properties"]["word"] = text
    return declared
