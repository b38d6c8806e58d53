"""Calls that are looked at and not made: what is shown of them, what is recorded, and what even a look is refused."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deputize import Preview, SemanticViolation, ToolContext, ToolPrecondition
from deputize.core.call import Callback
from deputize.core.errors import PreconditionFailed
from deputize.core.events import State
from deputize.core.hooks import HookCall, LoadedHook, Message
from deputize.core.preview import LARGEST_PREVIEW
from deputize.lifecycle.execute import dispatch
from deputize.lifecycle.phases import Held
from deputize.lifecycle.preview import Previewed, look, preview
from tests.integration.lifecycle import tools
from tests.integration.lifecycle.lab import Lab, body, open_lab, slug
from tests.integration.lifecycle.limits_kit import limited_lab, rule
from tests.integration.lifecycle.tools import effects_of, previews

pytestmark = pytest.mark.requirement("GOV-4")

GONE = {"resource": "lab.notes", "op": "delete", "scope": "n", "count": 1}


def says(tag: str, **said: Any) -> None:
    previews[tag] = lambda _: Preview(**said)


async def looked(lab: Lab, tag: str) -> Previewed:
    return await look(lab.rooms, await lab.authorized("erase", {"tag": tag}))


async def test_a_dry_run_shows_what_would_change_and_does_nothing(lab: Lab) -> None:
    says("dry-shown", changes=[GONE], resources=["lab.index"], impact={"readers": 3}, guards={"etag": "v1"})
    outcome = await lab.call("erase", "dry-shown", dry_run=True)
    told = body(outcome)
    assert (outcome.state, outcome.http_status, told["state"], told["dry_run"]) == (
        State.SUCCEEDED,
        200,
        "succeeded",
        True,
    )
    assert told["result"] is None
    assert told["would"] == {"behavior": "run", "because": [], "asks": []}
    shown = told["preview"]
    assert (shown["by"], shown["changes"], shown["resources"]) == ("tool", [GONE], ["lab.index"])
    assert (shown["impact"], shown["problem"], shown["fresh_seconds"]) == ({"readers": 3}, None, 300)
    assert b"etag" not in outcome.body, "guards are for the tool alone"
    assert effects_of("dry-shown") == []


async def test_it_is_one_entry_and_no_claim_and_its_key_stays_free(lab: Lab) -> None:
    outcome = await lab.call("erase", "dry-entry", dry_run=True, key="dry-key")
    entries = await lab.entries(outcome.call_id)
    assert [(each["kind"], each["command"], each["outcome"]) for each in entries] == [("read", "dry_run", "succeeded")]
    assert {"arguments", "result", "rules", "digest"} <= entries[0].keys()
    assert not await lab.claimed(outcome.call_id)
    assert not await lab.db.fetchval("select count(*) from deputize.calls where id = $1", outcome.call_id)
    known = body(await _shown_call(lab, outcome.call_id))
    assert known["detail"] == "a dry run: nothing was done, and its preview is not kept"
    made = await lab.call("erase", "dry-entry", key="dry-key")
    assert (made.state, made.replayed) == (State.SUCCEEDED, False)
    assert len(effects_of("dry-entry")) == 1
    # And a key that was used answers no dry run.
    again = await lab.call("erase", "dry-entry", dry_run=True, key="dry-key")
    assert body(again)["dry_run"] is True


async def _shown_call(lab: Lab, call_id: str) -> Any:
    return await lab.gateway.calls.show(await lab.caller(), call_id)


async def test_what_cannot_be_taken_back_is_looked_at_without_a_key(lab: Lab) -> None:
    assert slug(await lab.call("erase", "keyless")) == "key-required"
    assert body(await lab.call("erase", "keyless", dry_run=True))["would"]["behavior"] == "run"


async def test_a_dry_run_is_refused_as_the_call_would_be_and_the_entry_says_what_it_was(lab: Lab) -> None:
    stranger = await lab.caller("stranger", scopes=())
    refused = await lab.call("erase", "no", dry_run=True, by=stranger)
    assert slug(refused) == "scope-missing"
    (entry,) = await lab.entries(refused.call_id)
    assert (entry["kind"], entry["command"]) == ("refusal", "dry_run")
    assert slug(await lab.call("erase", {"tag": 7}, dry_run=True)) == "schema-violation"
    assert slug(await lab.call("nothing", "x", dry_run=True)) == "tool-not-found"
    tools.verdicts["wrong"] = ValueError("there is no such note")
    assert slug(await lab.call("checked", "wrong", dry_run=True)) == "semantic-violation"
    previews["nonsense"] = lambda _: _raise(SemanticViolation("this makes no sense"))
    assert slug(await lab.call("erase", "nonsense", dry_run=True)) == "semantic-violation"


def _raise(error: BaseException) -> Any:
    raise error


async def test_nobody_is_called_back_and_nothing_is_queued(lab: Lab) -> None:
    queued = await lab.call("erase", "async", dry_run=True, mode="async")
    assert (queued.http_status, queued.accepted) == (200, False)
    callback = Callback(url="https://a.example/")
    refused = await lab.call("erase", "async", dry_run=True, mode="async", callback=callback)
    assert (slug(refused), body(refused)["error"]["details"]) == ("malformed", {"field": "callback"})


async def test_a_tool_without_a_preview_is_told_from_its_contract(lab: Lab) -> None:
    shown = body(await lab.call("note", "unsaid", dry_run=True))["preview"]
    assert shown["by"] == "contract"
    assert shown["changes"] == [{"resource": "lab.notes", "op": "create", "scope": "unsaid"}]
    assert shown["resources"] == ["lab.notes/unsaid"]
    assert shown["unknown"] == ["before", "after", "count", "preconditions", "impact"]
    assert (shown["problem"], shown["fresh_seconds"]) == (None, None)
    read = body(await lab.call("look", "unsaid", dry_run=True))["preview"]
    assert (read["changes"], read["unknown"]) == ([], [])
    assert effects_of("unsaid") == []


UNMET = {"name": "not in use", "holds": False, "detail": "two people read it"}
HOLDS = {"name": "exists", "holds": True, "detail": ""}


async def test_a_precondition_that_fails_is_shown_by_a_dry_run_and_refuses_the_call(lab: Lab) -> None:
    says("unmet", changes=[GONE], preconditions=[HOLDS, UNMET])
    told = body(await lab.call("erase", "unmet", dry_run=True))
    assert told["would"] == {"behavior": "refuse", "because": ["not in use: two people read it"], "asks": []}
    assert told["preview"]["preconditions"] == [HOLDS, UNMET]
    with pytest.raises(PreconditionFailed, match="would fail: not in use: two people read it") as refused:
        await preview(lab.rooms, await lab.authorized("erase", {"tag": "unmet"}))
    assert refused.value.nothing_happened
    assert refused.value.details == {"preconditions": [HOLDS, UNMET]}


async def test_a_tool_may_raise_what_it_finds_not_met(lab: Lab) -> None:
    previews["raised"] = lambda _: _raise(ToolPrecondition("the note is locked"))
    seen = await looked(lab, "raised")
    assert seen.failing == ("precondition: the note is locked",)
    with pytest.raises(PreconditionFailed):
        await preview(lab.rooms, await lab.authorized("erase", {"tag": "raised"}))


async def test_even_a_preview_that_is_too_long_to_show_can_say_no(lab: Lab) -> None:
    says("long no", preconditions=[UNMET], impact={"x": "y" * LARGEST_PREVIEW})
    assert (await looked(lab, "long no")).failing == ("precondition: not in use: two people read it",)


class Odd:
    """Something no JSON can hold."""


def _endless() -> dict[str, Any]:
    inside: dict[str, Any] = {}
    inside["again"] = inside
    return inside


BROKEN: dict[str, Any] = {
    "raises": lambda _: _raise(RuntimeError("no such table")),
    "exits": lambda _: _raise(SystemExit(3)),
    "gives up": lambda _: _raise(asyncio.CancelledError()),
    "returns nothing": lambda _: None,
    "returns a dict": lambda _: {"changes": []},
    "wrong form": lambda _: Preview(changes=[{"resource": "a", "op": "explode"}]),
    "words for no": lambda _: Preview(preconditions=[{"name": "a", "holds": "no"}]),
    "no json": lambda _: Preview(impact={"a": Odd()}),
    "not a number": lambda _: Preview(impact={"a": float("nan")}),
    "endless": lambda _: Preview(impact=_endless()),
    "half a character": lambda _: Preview(impact={"a": "\ud800"}),
    "huge": lambda _: Preview(impact={"a": "x" * 10_000_000}),
    "too many": lambda _: Preview(changes=[GONE] * 100_000),
    "generator": lambda _: Preview(changes=(GONE for _ in range(3))),  # type: ignore[arg-type]  # the mistake under test
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_preview_that_breaks_says_so_and_refuses_nothing(lab: Lab, how: str) -> None:
    previews[how] = BROKEN[how]
    seen = await preview(lab.rooms, await lab.authorized("erase", {"tag": how}))
    assert seen.shown["by"] == "contract"
    assert "preview" in seen.shown["problem"]
    assert len(seen.shown["problem"]) < 400
    assert [each["op"] for each in seen.shown["changes"]] == ["delete"]
    assert (seen.guards, seen.failing, seen.fresh_seconds) == ({}, (), 300)
    # However it breaks the next time, it is the same to whoever decided; one that works again is not.
    previews[how] = BROKEN["raises"]
    assert (await looked(lab, how)).digest == seen.digest
    del previews[how]
    assert (await looked(lab, how)).digest != seen.digest


async def test_a_slow_preview_ends_with_the_time_its_caller_has(lab: Lab) -> None:
    previews["slow"] = lambda _: asyncio.Event().wait()
    outcome = await lab.call("erase", "slow", dry_run=True, deadline_ms=150)
    told = body(outcome)
    assert (outcome.state, told["preview"]["by"]) == (State.SUCCEEDED, "contract")
    assert "did not end within" in told["preview"]["problem"]
    assert [each["command"] for each in await lab.entries(outcome.call_id)] == ["dry_run"]


async def test_two_looks_at_the_same_are_the_same_and_only_then(lab: Lab) -> None:
    other = {**GONE, "scope": "m"}
    says("digest", changes=[GONE, other], impact={"seen_at": 1, "readers": 2}, guards={"etag": 1})
    first = await looked(lab, "digest")
    says("digest", changes=[other, GONE], impact={"readers": 2, "seen_at": 5}, guards={"etag": 1})
    assert (await looked(lab, "digest")).digest == first.digest
    for different in (
        {"changes": [GONE], "impact": {"readers": 2}, "guards": {"etag": 1}},
        {"changes": [GONE, other], "impact": {"readers": 3}, "guards": {"etag": 1}},
        {"changes": [GONE, other], "impact": {"readers": 2}, "guards": {"etag": 2}},
    ):
        says("digest", **different)
        assert (await looked(lab, "digest")).digest != first.digest
    assert first.guards == {"etag": 1}


async def test_a_preview_knows_who_asks_and_has_no_key_to_do_anything_with(lab: Lab) -> None:
    seen: list[ToolContext] = []

    def watch(context: ToolContext) -> Preview:
        seen.append(context)
        return Preview()

    previews["who"] = watch
    await lab.call("erase", "who", dry_run=True)
    (context,) = seen
    assert (context.user, context.tenant, context.key, context.credential) == ("ana", "dev", "", None)


async def test_what_a_preview_hands_over_reaches_the_effect(lab: Lab) -> None:
    """As a worker does it that begins an approved run: the guards come with the hold."""
    call = await lab.authorized("erase", {"tag": "guarded"})
    got: list[Any] = []

    def compare(context: ToolContext) -> dict[str, Any]:
        got.append(context.guards)
        return {"value": 1}

    tools.on("guarded", compare)
    tool_ = lab.rooms.driver.find(call.validated.tool.contract)
    held = Held(call_id=str(uuid4()), epoch=1)
    await dispatch(lab.rooms, call, tool_, held)
    await dispatch(lab.rooms, call, tool_, replace(held, guards={"etag": "v1"}))
    assert got == [{}, {"etag": "v1"}]


async def test_another_tenants_key_names_the_same_preview_differently(lab: Lab) -> None:
    call = await lab.authorized("erase", {"tag": "tenants"})
    received = call.validated.received
    elsewhere = replace(received, caller=replace(received.caller, tenant="elsewhere"))
    other = replace(call, validated=replace(call.validated, received=elsewhere))
    assert (await look(lab.rooms, call)).digest != (await look(lab.rooms, other)).digest


async def test_hooks_hear_that_the_call_is_only_looked_at(fresh_database: str, tmp_path: Any) -> None:
    heard: list[bool] = []

    def watch(call: HookCall) -> Message:
        heard.append(call.dry_run)
        return Message("seen")

    hook = LoadedHook(name="watch", moment="before", function=watch, is_async=False)
    async with open_lab(fresh_database, tmp_path, hooks=[hook]) as lab:
        outcome = await lab.call("erase", "hooked", dry_run=True)
        assert (heard, body(outcome)["warnings"]) == ([True], ["hook:watch: seen"])
        assert "hook:watch" in (await lab.entries(outcome.call_id))[0]["hooks"][0]


async def test_a_look_counts_and_costs_nothing(fresh_database: str, tmp_path: Path) -> None:
    rules = [rule("budget", 1, "money"), rule("rate", 4, "often")]
    async with limited_lab(fresh_database, tmp_path, *rules) as lab:
        for _ in range(3):
            assert body(await lab.call("buy", "dear", dry_run=True))["dry_run"] is True
        assert (await lab.call("buy", "dear", key="b")).state is State.SUCCEEDED
        refused = await lab.call("buy", "dear", dry_run=True)
        assert body(refused)["error"]["details"]["rule"] in ("often", "money")


async def test_a_look_that_ends_after_its_caller_was_revoked_is_told_to_nobody(lab: Lab) -> None:
    caller, admin = await lab.caller("leaver"), await lab.admin()

    async def meanwhile(_: ToolContext) -> Preview:
        await lab.gateway.commands.revoke(admin, "user", "leaver")
        return Preview(impact={"canary": 1})

    previews["revoked"] = meanwhile
    outcome = await lab.call("erase", "revoked", dry_run=True, by=caller)
    assert slug(outcome) == "revoked"
    assert b"canary" not in outcome.body
