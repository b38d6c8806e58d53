"""A version whose number announces less than it changes is refused by the registry, whichever way it comes in."""

from typing import Any

import pytest

from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.errors import ToolNotAdmitted, VersionConflict
from tests.support.gateway_lab import GatewayLab
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("CON-8")
LOOK_CONTRACT = TOOLS[0].contract
STRICTER = {"scopes": [*LOOK_CONTRACT.auth.scopes, "lab:more"]}


def make_version(version: str, name: str = "numbered", **changes: Any) -> Contract:
    """A manifest of its own that lends the function of `lab.look` another name."""
    changes = {"auth": {**LOOK_CONTRACT.auth.model_dump(), **changes.pop("auth", {})}, **changes}
    return LOOK_CONTRACT.model_copy(update={"name": name, "version": version, **changes})


async def test_a_break_is_registered_only_under_a_number_that_announces_it(lab: GatewayLab) -> None:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    assert await commands.register_tool(admin, make_version("1.4.0")) == "created"
    before = await lab.db.fetchval("select count(*) from deputize.audit_entries")
    for version in ("1.4.1", "1.5.0"):
        with pytest.raises(ToolNotAdmitted, match=r"register it as 2\.0\.0") as refusal:
            await commands.register_tool(admin, make_version(version, auth=STRICTER))
        assert [each["path"] for each in refusal.value.details["reasons"]] == ["/version", "/auth"]
    assert await lab.db.fetchval("select count(*) from deputize.audit_entries") == before
    with pytest.raises(ToolNotAdmitted, match="breaking_changes is false"):
        await commands.register_tool(admin, make_version("2.0.0", auth=STRICTER))
    announced = make_version("2.0.0", auth=STRICTER, breaking_changes=True)
    assert await commands.register_tool(admin, announced) == "created"
    # An older line goes on beside it, and a patch of it is compared with its own last version.
    assert await commands.register_tool(admin, make_version("1.4.1", description="Say it better.")) == "created"


async def test_a_manifest_from_outside_is_held_to_the_same(lab: GatewayLab) -> None:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    await commands.register_manifest(admin, make_version("1.0.0", "sent").model_dump(mode="json"))
    # Large enough for another process.
    large = make_version("1.0.1", "sent", auth=STRICTER, annotations={"note": "long " * 2_000})
    with pytest.raises(ToolNotAdmitted, match=r"register it as 2\.0\.0"):
        await commands.register_manifest(admin, large.model_dump(mode="json"))


async def test_the_same_number_with_other_content_stays_a_conflict(lab: GatewayLab) -> None:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    await commands.register_tool(admin, make_version("1.0.0", "same"))
    with pytest.raises(VersionConflict) as conflict:
        await commands.register_tool(admin, make_version("1.0.0", "same", auth=STRICTER))
    # The number to use instead announces what the content changes for callers.
    assert conflict.value.details["suggested_version"] == "2.0.0"
    assert await commands.register_tool(admin, make_version("1.0.0", "same")) == "unchanged"


async def test_a_version_that_nothing_can_call_any_more_binds_no_other(lab: GatewayLab) -> None:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    await commands.register_tool(admin, make_version("1.0.0", "withdrawn"))
    await commands.register_tool(admin, make_version("1.1.0", "withdrawn", aliases=["lab.mistake"]))
    for state in (None, LifecycleState.DISABLED):
        if state is not None:
            await commands.set_state(admin, "lab.withdrawn", "1.1.0", state)
        with pytest.raises(ToolNotAdmitted) as refusal:
            await commands.register_tool(admin, make_version("1.1.1", "withdrawn"))
        assert "lab.mistake" in refusal.value.details["reasons"][1]["reason"]
    await commands.set_state(admin, "lab.withdrawn", "1.1.0", LifecycleState.RETIRED)
    assert await commands.register_tool(admin, make_version("1.1.1", "withdrawn")) == "created"


async def test_a_version_below_a_registered_one_is_held_to_it(lab: GatewayLab) -> None:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    await commands.register_tool(admin, make_version("1.0.0", "between"))
    await commands.register_tool(admin, make_version("1.9.0", "between"))
    with pytest.raises(ToolNotAdmitted, match=r"below 1\.9\.0"):
        await commands.register_tool(admin, make_version("1.5.0", "between", aliases=["lab.middle"]))
