"""Policies and hooks about the same call, through real gateways: the strictest answer holds, whoever gives it."""

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
from deputize.core.definition import PythonTool
from deputize.core.hooks import LoadedHook
from deputize.core.mistakes import Misconfigured
from deputize.core.outcome import Outcome
from deputize.core.settings import Hook, Policy
from tests.integration.conftest import serving
from tests.integration.govern import decision_point
from tests.integration.lifecycle.lab import Lab, body, lab_settings, slug
from tests.integration.lifecycle.tools import TOOLS, effects_of

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


def answer(outcome: Outcome) -> str:
    """What became of a call: the refusal, or how far it got."""
    return slug(outcome) or body(outcome)["state"]


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


def speak(call: HookCall) -> Any:
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


HOOKS = (LoadedHook(name="tags", moment="before", function=speak, is_async=False),)


@asynccontextmanager
async def opened(dsn: str, folder: Path, **policy: Any) -> AsyncIterator[Lab]:
    file = folder / "rules.cedar"
    file.write_text(POLICIES)
    settings = lab_settings(dsn, folder).model_copy(update={"policy": Policy(files=(str(file),), **policy)})
    db = await asyncpg.connect(dsn)
    own: list[PythonTool] = [getattr(each, ATTRIBUTE) for each in (priced, tip)]
    try:
        async with open_gateway(settings, tools=[*TOOLS, *own], hooks=HOOKS, development=True) as gateway:
            assert not gateway.refused, [problem.details for problem in gateway.refused]
            yield Lab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[Lab]:
    async with opened(module_database, lab_folder) as found:
        yield found


@pytest.mark.parametrize("opinion", BEHAVIORS)
@pytest.mark.parametrize("verdict", TOOLS_BY_VERDICT)
async def test_the_strictest_answer_holds(lab: Lab, verdict: str, opinion: str) -> None:
    tag = f"vote:{opinion}"
    before = len(effects_of(tag))
    outcome = await lab.call(TOOLS_BY_VERDICT[verdict], tag, key=f"{verdict}-{opinion}")

    strictest = max(verdict, opinion, key=BEHAVIORS.index)
    assert answer(outcome) == ANSWERS[strictest]
    assert len(effects_of(tag)) - before == (strictest == "allow")
    rules = (await lab.entries(outcome.call_id))[0]["rules"]
    assert ("hook:tags" in rules) == (opinion == strictest)
    if opinion == strictest != verdict:
        told = body(outcome)["approval"] if strictest == "ask" else body(outcome)["error"]["details"]
        assert told["rules"] == [{"id": "hook:tags", "where": "", "reason": "as the tag says"}]
    if strictest == "ask":
        # Neither the rule nor the hook names anybody, so it is for the usual approvers.
        assert body(outcome)["approval"]["groups"] == ["approvers"]


async def test_the_policies_decide_about_what_a_hook_made_of_the_input(lab: Lab) -> None:
    denied = await lab.call("put", "rename:forbidden")
    assert (slug(denied), effects_of("forbidden")) == ("permission-denied", [])
    assert body(denied)["error"]["details"]["rules"][0]["id"] == "not-this-one"
    assert slug(await lab.call("put", "forbidden")) == "permission-denied"
    assert slug(await lab.call("put", "rename:fine")) is None
    assert [effect.tag for effect in effects_of("fine")] == ["fine"]


async def test_the_policies_decide_about_the_default_that_a_tool_goes_by(lab: Lab) -> None:
    assert body(await lab.call("tip", {"tag": "x", "amount": 5}))["result"] == 5
    silent = await lab.call("tip", "x")
    assert slug(silent) == "permission-denied"
    assert body(silent)["error"]["details"]["rules"][0]["id"] == "small-tips"


async def test_a_hook_may_set_what_callers_may_not_even_see(lab: Lab) -> None:
    assert slug(await lab.call("priced", {"tag": "x", "region": "mars"})) == "schema-violation"
    outcome = await lab.call("priced", "region:mars")
    assert body(outcome)["result"] == "mars"
    assert body(outcome)["input"]["mutations"] == [
        {"path": "/region", "source": "hook:tags", "change": "absent→string"}
    ]


@pytest.fixture
def peer() -> Iterator[str]:
    with subprocess.Popen([sys.executable, decision_point.__file__], stdout=subprocess.PIPE, text=True) as process:
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
    fresh_database: str, tmp_path: Path, peer: str, engine: str, mood: str, opinion: str, expected: str
) -> None:
    async with opened(fresh_database, tmp_path, engine=engine, authzen_url=f"{peer}/{mood}") as lab:
        outcome = await lab.call("look", f"vote:{opinion}")
        assert answer(outcome) == expected


async def test_a_hook_of_the_settings_that_nobody_loaded_stops_the_start(module_database: str, tmp_path: Path) -> None:
    settings = lab_settings(module_database, tmp_path)
    named = settings.model_copy(update={"hooks": (Hook(name="guard", function="hooks/check.py:guard"),)})
    with pytest.raises(Misconfigured, match="and was not loaded: start with deputize dev or serve"):
        async with open_gateway(named, development=True):
            pass


async def test_over_http_a_stopped_call_and_what_hooks_add_look_alike_through_every_door(
    fresh_database: str, tmp_path: Path
) -> None:
    def guard(call: HookCall) -> Stop | Context:
        asked: Mapping[str, Any] = call.arguments
        return Stop("not this user") if asked.get("id") == 13 else Context({"seen": asked.get("id")})

    hooks = [LoadedHook(name="guard", moment="before", function=guard, is_async=False, tools="shop.get_user")]
    async with serving(fresh_database, tmp_path, hooks=hooks) as served:
        good = await served.call("shop.get_user", {"id": 7})
        assert (good.status_code, good.json()["context"]) == (200, [{"source": "hook:guard", "value": {"seen": 7}}])
        stopped = await served.call("shop.get_user", {"id": 13})
        assert (stopped.status_code, stopped.json()["error"]["number"]) == (403, "E3215")
        told = await served.rpc("calls.create", {"tool": "shop.get_user", "arguments": {"id": 13}})
        assert told["error"]["data"]["error"]["details"]["hook"] == "guard"
        assert (await served.call("shop.list_users", {})).json()["context"] == []
