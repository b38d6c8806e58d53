"""A tool whose contract requires a person waits for one, even where every rule permits the call."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from deputize import tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.caller import Caller, compute_decision_cache_key
from deputize.govern.policy.user_interaction import INTERACTION_RULE
from deputize.operations.views.tool_status import ToolSelection
from tests.support.approval_lab import open_approval_lab
from tests.support.gateway_lab import parse_body
from tests.support.policies import OPEN_POLICY
from tests.support.scripted_tools import Tag

pytestmark = [pytest.mark.requirement("CON-2"), pytest.mark.requirement("GOV-3")]

_opened: list[str] = []


@tool(effects="read", namespace="lab", requires_user_interaction=True)
async def sign(tag: Tag) -> str:
    """Read a document that only a person may open."""
    _opened.append(tag)
    return tag


def change_caller(caller: Caller, **changes: Any) -> Caller:
    changed = replace(caller, **changes)
    return replace(changed, decision_cache_key=compute_decision_cache_key(changed))


async def test_a_call_waits_for_a_person_unless_a_person_makes_it(fresh_database: str, tmp_path: Path) -> None:
    tools: Any = [getattr(sign, ATTRIBUTE)]
    async with open_approval_lab(fresh_database, tmp_path, rules=OPEN_POLICY, tools=tools) as lab:
        person = change_caller(await lab.lab.make_caller(), human=True)
        program = change_caller(person, human=False)
        surface = await lab.lab.gateway.surface.list_availability(program, ToolSelection())
        assert [each["reason"]["code"] for each in surface["tools"]] == ["needs_approval"]

        call, ticket = await lab.request_approval("sign", "program", by=program)
        assert _opened == []
        demands = orjson.loads((await lab.fetch_request(ticket))["demands"])
        assert [each["rule"] for each in demands] == [INTERACTION_RULE]
        await lab.approve(await lab.make_approver("bo"), ticket)
        await lab.lab.wait_for_state(call, "succeeded")
        assert _opened == ["program"]

        outcome = await lab.lab.call("sign", "person", by=person)
        assert parse_body(outcome)["state"] == "succeeded"
        assert _opened == ["program", "person"]
