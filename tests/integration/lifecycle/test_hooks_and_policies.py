"""Policies and hooks about the same call, through real gateways: the strictest answer holds, anyone who gives it."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import pytest
import pytest_asyncio
from pydantic import Field

from deputize import Context, Fact, HookCall, Internal, Permission, Stop, Update, tool
from deputize.app import open_gateway
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.config_error import ConfigError
from deputize.core.contract.tools import PythonTool
from deputize.core.hooks import LoadedHook
from deputize.core.outcome import Outcome
from deputize.core.settings import HookSettings, PolicySettings
from tests.integration.conftest import serve_gateway
from tests.support import authzen_server
from tests.support.gateway_lab import GatewayLab, error_slug, lab_settings, parse_body
from tests.support.scripted_tools import TOOLS, list_effects

pytestmark = [pytest.mark.requirement("INV-6"), pytest.mark.requirement("GOV-2")]

POLICIES = """
@id("reads") permit (principal, action, resource) when { resource.effects == "read" };
@id("writes-ask") @decision("ask") permit (principal, action, resource) when { resource.effects == "write" };
@id("deduplicated") permit (principal, action, resource == Tool::"lab.put");
@id("small-tips") forbid (principal, action, resource) when { context.facts has amount && context.facts.amount > 100 };
@id("not-this-one") forbid (principal, action, resource) when { context.scopes.contains("forbidden") };
"""
BEHAVIORS = ("passthrough", "allow", "ask", "deny")
# What the policies say of each tool.
TOOLS_BY_VERDICT = {"allow": "look", "ask": "assign", "deny": "erase"}
ANSWERS = {"allow": "succeeded", "ask": "awaiting_approval", "deny": "permission-denied"}


def call_result(outcome: Outcome) -> str:
    """What became of a call: the refusal, or how far it got."""
    return error_slug(outcome) or parse_body(outcome)["state"]


@tool(effects="read", namespace="lab")
async def priced(
    tag: Annotated[str, Field(description="Which test this belongs to", examples=["a"])],
    region: Annotated[str, Field(description="Where it is sold"), Internal()] = "nowhere",
) -> str:
    """Say where a thing is sold, which callers cannot choose."""
    return region


@tool(effects="read", namespace="lab")
async def tip(
    tag: Annotated[str, Field(description="Which test this belongs to", examples=["a"])],
    amount: Annotated[int, Field(description="How much"), Fact()] = 1000,
) -> int:
    """Say how much is given, which is a lot unless one says otherwise."""
    return amount


def answer_by_tag(call: HookCall) -> Any:
    """The tag says what to answer."""
    what, _, value = call.arguments["tag"].partition(":")
    match what:
        case "vote":
            return Permission(value, "as the tag says")
        case "rename":
            return Update({"tag": value})
        case "region":
            return Update({"region": value})
        case _:
            return None


HOOKS = (LoadedHook(name="tags", moment="before", function=answer_by_tag, is_async=False, seconds=60),)


@asynccontextmanager
async def open_policy_lab(dsn: str, folder: Path, **policy: Any) -> AsyncIterator[GatewayLab]:
    file = folder / "rules.cedar"
    file.write_text(POLICIES)
    settings = lab_settings(dsn, folder).model_copy(update={"policy": PolicySettings(files=(str(file),), **policy)})
    db = await asyncpg.connect(dsn)
    own: list[PythonTool] = [getattr(each, ATTRIBUTE) for each in (priced, tip)]
    try:
        async with open_gateway(settings, tools=[*TOOLS, *own], hooks=HOOKS, development=True) as gateway:
            assert not gateway.startup_problems, [problem.details for problem in gateway.startup_problems]
            yield GatewayLab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_policy_lab(module_database, lab_folder) as found:
        yield found


@pytest.mark.parametrize("opinion", BEHAVIORS)
@pytest.mark.parametrize("verdict", TOOLS_BY_VERDICT)
async def test_the_strictest_answer_holds(lab: GatewayLab, verdict: str, opinion: str) -> None:
    tag = f"vote:{opinion}"
    before = len(list_effects(tag))
    outcome = await lab.call(TOOLS_BY_VERDICT[verdict], tag, key=f"{verdict}-{opinion}")

    strictest = max(verdict, opinion, key=BEHAVIORS.index)
    assert call_result(outcome) == ANSWERS[strictest]
    assert len(list_effects(tag)) - before == (strictest == "allow")
    rules = (await lab.fetch_entries(outcome.call_id))[0]["rules"]
    assert ("hook:tags" in rules) == (opinion == strictest)
    if opinion == strictest != verdict:
        told = parse_body(outcome)["approval"] if strictest == "ask" else parse_body(outcome)["error"]["details"]
        assert told["rules"] == [{"id": "hook:tags", "where": "", "reason": "as the tag says"}]
    if strictest == "ask":
        # Neither the rule nor the hook names anybody, so it is for the usual approvers.
        assert parse_body(outcome)["approval"]["groups"] == ["approvers"]


async def test_the_policies_decide_about_what_a_hook_made_of_the_input(lab: GatewayLab) -> None:
    denied = await lab.call("put", "rename:forbidden")
    assert (error_slug(denied), list_effects("forbidden")) == ("permission-denied", [])
    assert parse_body(denied)["error"]["details"]["rules"][0]["id"] == "not-this-one"
    assert error_slug(await lab.call("put", "forbidden")) == "permission-denied"
    assert error_slug(await lab.call("put", "rename:fine")) is None
    assert [effect.tag for effect in list_effects("fine")] == ["fine"]


async def test_the_policies_decide_about_the_default_that_a_tool_goes_by(lab: GatewayLab) -> None:
    assert parse_body(await lab.call("tip", {"tag": "x", "amount": 5}))["result"] == 5
    silent = await lab.call("tip", "x")
    assert error_slug(silent) == "permission-denied"
    assert parse_body(silent)["error"]["details"]["rules"][0]["id"] == "small-tips"


async def test_a_hook_may_set_what_callers_may_not_even_see(lab: GatewayLab) -> None:
    assert error_slug(await lab.call("priced", {"tag": "x", "region": "mars"})) == "schema-violation"
    outcome = await lab.call("priced", "region:mars")
    assert parse_body(outcome)["result"] == "mars"
    assert parse_body(outcome)["input"]["mutations"] == [
        {"path": "/region", "source": "hook:tags", "change": "absent→string"}
    ]


@pytest.fixture
def authzen_url() -> Iterator[str]:
    with subprocess.Popen([sys.executable, authzen_server.__file__], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("engine", "mood", "opinion", "expected"),
    [
        ("authzen", "allow", "passthrough", "succeeded"),
        ("both", "allow", "allow", "succeeded"),
        ("both", "ask", "allow", "awaiting_approval"),
        ("both", "deny", "ask", "permission-denied"),
        ("authzen", "allow", "deny", "permission-denied"),
        ("both", "garbage", "allow", "policy-failed"),
    ],
)
async def test_hooks_tighten_what_a_remote_decision_point_says(
    fresh_database: str, tmp_path: Path, authzen_url: str, engine: str, mood: str, opinion: str, expected: str
) -> None:
    async with open_policy_lab(
        fresh_database, tmp_path, engine=engine, authzen_url=f"{authzen_url}/{mood}", authzen_seconds=30
    ) as lab:
        outcome = await lab.call("look", f"vote:{opinion}")
        assert call_result(outcome) == expected


async def test_a_hook_of_the_settings_that_nobody_loaded_stops_the_start(module_database: str, tmp_path: Path) -> None:
    settings = lab_settings(module_database, tmp_path)
    named = settings.model_copy(
        update={"hooks": (HookSettings(name="guard", function="hooks/check.py:guard", seconds=30),)}
    )
    with pytest.raises(ConfigError, match=r"but was not loaded\. Start with deputize dev or serve"):
        async with open_gateway(named, development=True):
            pass


async def test_stopped_calls_and_hook_context_are_the_same_on_every_http_interface(
    fresh_database: str, tmp_path: Path
) -> None:
    def guard(call: HookCall) -> Stop | Context:
        asked: Mapping[str, Any] = call.arguments
        return Stop("not this user") if asked.get("id") == 13 else Context({"seen": asked.get("id")})

    hooks = [
        LoadedHook(name="guard", moment="before", function=guard, is_async=False, tools="shop.get_user", seconds=60)
    ]
    async with serve_gateway(fresh_database, tmp_path, hooks=hooks) as gateway:
        good = await gateway.call("shop.get_user", {"id": 7})
        assert (good.status_code, good.json()["context"]) == (200, [{"source": "hook:guard", "value": {"seen": 7}}])
        stopped = await gateway.call("shop.get_user", {"id": 13})
        assert (stopped.status_code, stopped.json()["error"]["number"]) == (403, "E3215")
        told = await gateway.call_rpc("calls.create", {"tool": "shop.get_user", "arguments": {"id": 13}})
        assert told["error"]["data"]["error"]["details"]["hook"] == "guard"
        assert (await gateway.call("shop.list_users", {})).json()["context"] == []
