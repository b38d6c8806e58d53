"""Calls that are looked at and not made: what is shown of them, what is recorded, and what even a look is refused."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deputize import Preview, SemanticViolation, ToolContext, ToolPrecondition
from deputize.core.call import Callback
from deputize.core.contract.preview import MAX_PREVIEW_BYTES
from deputize.core.errors import PreconditionFailed
from deputize.core.hooks import HookCall, LoadedHook, Message
from deputize.core.states import State
from deputize.lifecycle.execute import dispatch_tool
from deputize.lifecycle.phases import Claim
from deputize.lifecycle.preview.preview import PreviewResult, preview_call, require_preview
from tests.support import scripted_tools
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.limited_lab import make_rule, open_limited_lab
from tests.support.scripted_tools import list_effects, previews

pytestmark = pytest.mark.requirement("GOV-4")

DELETE_PREVIEW = {"resource": "lab.notes", "op": "delete", "scope": "n", "count": 1}


def set_preview(tag: str, **fields: Any) -> None:
    previews[tag] = lambda _: Preview(**fields)


async def run_preview(lab: GatewayLab, tag: str) -> PreviewResult:
    return await preview_call(lab.runtime, await lab.authorize_call("erase", {"tag": tag}))


async def test_a_dry_run_shows_what_would_change_and_does_nothing(lab: GatewayLab) -> None:
    set_preview(
        "dry-shown", changes=[DELETE_PREVIEW], resources=["lab.index"], impact={"readers": 3}, guards={"etag": "v1"}
    )
    outcome = await lab.call("erase", "dry-shown", dry_run=True)
    told = parse_body(outcome)
    assert (outcome.state, outcome.http_status, told["state"], told["dry_run"]) == (
        State.SUCCEEDED,
        200,
        "succeeded",
        True,
    )
    assert told["result"] is None
    assert told["would"] == {"behavior": "run", "because": [], "approvals": []}
    shown = told["preview"]
    assert (shown["by"], shown["changes"], shown["resources"]) == ("tool", [DELETE_PREVIEW], ["lab.index"])
    assert (shown["impact"], shown["problem"], shown["fresh_seconds"]) == ({"readers": 3}, None, 300)
    assert b"etag" not in outcome.body, "guards are for the tool alone"
    assert list_effects("dry-shown") == []


async def test_it_is_one_entry_and_no_claim_and_its_key_stays_free(lab: GatewayLab) -> None:
    outcome = await lab.call("erase", "dry-entry", dry_run=True, key="dry-key")
    entries = await lab.fetch_entries(outcome.call_id)
    assert [(each["kind"], each["command"], each["outcome"]) for each in entries] == [("read", "dry_run", "succeeded")]
    assert {"arguments", "result", "rules", "digest"} <= entries[0].keys()
    assert not await lab.has_claim(outcome.call_id)
    assert not await lab.db.fetchval("select count(*) from deputize.calls where id = $1", outcome.call_id)
    known = await _fetch_call(lab, outcome.call_id)
    assert known["detail"] == "a dry run: nothing was executed, and its preview is not stored"
    made = await lab.call("erase", "dry-entry", key="dry-key")
    assert (made.state, made.is_replay) == (State.SUCCEEDED, False)
    assert len(list_effects("dry-entry")) == 1
    # And a key that was used answers no dry run.
    again = await lab.call("erase", "dry-entry", dry_run=True, key="dry-key")
    assert parse_body(again)["dry_run"] is True


async def _fetch_call(lab: GatewayLab, call_id: str) -> dict[str, Any]:
    return (await lab.gateway.calls.show_call(await lab.make_caller(), call_id)).envelope.fields


async def test_an_irreversible_call_is_previewed_without_a_key(lab: GatewayLab) -> None:
    assert error_slug(await lab.call("erase", "keyless")) == "key-required"
    assert parse_body(await lab.call("erase", "keyless", dry_run=True))["would"]["behavior"] == "run"


async def test_a_dry_run_is_refused_as_the_call_would_be_and_the_entry_says_what_it_was(lab: GatewayLab) -> None:
    stranger = await lab.make_caller("stranger", scopes=())
    refused = await lab.call("erase", "no", dry_run=True, by=stranger)
    assert error_slug(refused) == "scope-missing"
    (entry,) = await lab.fetch_entries(refused.call_id)
    assert (entry["kind"], entry["command"]) == ("refusal", "dry_run")
    assert error_slug(await lab.call("erase", {"tag": 7}, dry_run=True)) == "schema-violation"
    assert error_slug(await lab.call("nothing", "x", dry_run=True)) == "tool-not-found"
    scripted_tools.precondition_errors["wrong"] = ValueError("there is no such note")
    assert error_slug(await lab.call("checked_note", "wrong", dry_run=True)) == "semantic-violation"
    previews["nonsense"] = lambda _: _raise(SemanticViolation("this makes no sense"))
    assert error_slug(await lab.call("erase", "nonsense", dry_run=True)) == "semantic-violation"


def _raise(error: BaseException) -> Any:
    raise error


async def test_nobody_is_called_back_and_nothing_is_queued(lab: GatewayLab) -> None:
    queued = await lab.call("erase", "async", dry_run=True, mode="async")
    assert (queued.http_status, queued.is_accepted) == (200, False)
    callback = Callback(url="https://a.example/")
    refused = await lab.call("erase", "async", dry_run=True, mode="async", callback=callback)
    assert (error_slug(refused), parse_body(refused)["error"]["details"]) == ("malformed", {"field": "callback"})


async def test_a_tool_without_a_preview_is_described_from_its_contract(lab: GatewayLab) -> None:
    shown = parse_body(await lab.call("note", "unsaid", dry_run=True))["preview"]
    assert shown["by"] == "contract"
    assert shown["changes"] == [{"resource": "lab.notes", "op": "create", "scope": "unsaid"}]
    assert shown["resources"] == ["lab.notes/unsaid"]
    assert shown["unknown"] == ["before", "after", "count", "preconditions", "impact"]
    assert (shown["problem"], shown["fresh_seconds"]) == (None, None)
    read = parse_body(await lab.call("look", "unsaid", dry_run=True))["preview"]
    assert (read["changes"], read["unknown"]) == ([], [])
    assert list_effects("unsaid") == []


UNMET_PRECONDITION = {"name": "not in use", "holds": False, "detail": "two people read it"}
MET_PRECONDITION = {"name": "exists", "holds": True, "detail": ""}


async def test_a_precondition_that_fails_is_shown_by_a_dry_run_and_refuses_the_call(lab: GatewayLab) -> None:
    set_preview("unmet", changes=[DELETE_PREVIEW], preconditions=[MET_PRECONDITION, UNMET_PRECONDITION])
    told = parse_body(await lab.call("erase", "unmet", dry_run=True))
    assert told["would"] == {"behavior": "refuse", "because": ["not in use: two people read it"], "approvals": []}
    assert told["preview"]["preconditions"] == [MET_PRECONDITION, UNMET_PRECONDITION]
    with pytest.raises(PreconditionFailed, match="would fail; not met: not in use: two people read it") as refused:
        await require_preview(lab.runtime, await lab.authorize_call("erase", {"tag": "unmet"}))
    assert refused.value.nothing_happened
    assert refused.value.details == {"preconditions": [MET_PRECONDITION, UNMET_PRECONDITION]}


async def test_a_tool_may_raise_what_it_finds_not_met(lab: GatewayLab) -> None:
    previews["raised"] = lambda _: _raise(ToolPrecondition("the note is locked"))
    seen = await run_preview(lab, "raised")
    assert seen.unmet_preconditions == ("precondition: the note is locked",)
    with pytest.raises(PreconditionFailed):
        await require_preview(lab.runtime, await lab.authorize_call("erase", {"tag": "raised"}))


async def test_even_a_preview_that_is_too_long_to_show_can_say_no(lab: GatewayLab) -> None:
    set_preview("long no", preconditions=[UNMET_PRECONDITION], impact={"x": "y" * MAX_PREVIEW_BYTES})
    assert (await run_preview(lab, "long no")).unmet_preconditions == ("precondition: not in use: two people read it",)


class Unserializable:
    """Something no JSON can hold."""


def _make_cycle() -> dict[str, Any]:
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
    "no json": lambda _: Preview(impact={"a": Unserializable()}),
    "not a number": lambda _: Preview(impact={"a": float("nan")}),
    "endless": lambda _: Preview(impact=_make_cycle()),
    "half a character": lambda _: Preview(impact={"a": "\ud800"}),
    "huge": lambda _: Preview(impact={"a": "x" * 10_000_000}),
    "too many": lambda _: Preview(changes=[DELETE_PREVIEW] * 100_000),
    "generator": lambda _: Preview(changes=(DELETE_PREVIEW for _ in range(3))),  # type: ignore[arg-type]  # the mistake under test
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_preview_that_breaks_says_so_and_refuses_nothing(lab: GatewayLab, how: str) -> None:
    previews[how] = BROKEN[how]
    seen = await require_preview(lab.runtime, await lab.authorize_call("erase", {"tag": how}))
    assert seen.document["by"] == "contract"
    assert "preview" in seen.document["problem"]
    assert len(seen.document["problem"]) < 400
    assert [each["op"] for each in seen.document["changes"]] == ["delete"]
    assert (seen.guards, seen.unmet_preconditions, seen.fresh_seconds) == ({}, (), 300)
    # However it breaks the next time, it is the same to whoever decided; one that works again is not.
    previews[how] = BROKEN["raises"]
    assert (await run_preview(lab, how)).digest == seen.digest
    del previews[how]
    assert (await run_preview(lab, how)).digest != seen.digest


async def test_a_slow_preview_ends_with_the_time_its_caller_has(lab: GatewayLab) -> None:
    previews["slow"] = lambda _: asyncio.Event().wait()
    outcome = await lab.call("erase", "slow", dry_run=True, deadline_ms=4000)
    told = parse_body(outcome)
    assert (outcome.state, told["preview"]["by"]) == (State.SUCCEEDED, "contract")
    assert "did not end within" in told["preview"]["problem"]
    assert [each["command"] for each in await lab.fetch_entries(outcome.call_id)] == ["dry_run"]


async def test_two_previews_are_equal_only_if_their_content_is(lab: GatewayLab) -> None:
    other = {**DELETE_PREVIEW, "scope": "m"}
    set_preview("digest", changes=[DELETE_PREVIEW, other], impact={"seen_at": 1, "readers": 2}, guards={"etag": 1})
    first = await run_preview(lab, "digest")
    set_preview("digest", changes=[other, DELETE_PREVIEW], impact={"readers": 2, "seen_at": 5}, guards={"etag": 1})
    assert (await run_preview(lab, "digest")).digest == first.digest
    for different in (
        {"changes": [DELETE_PREVIEW], "impact": {"readers": 2}, "guards": {"etag": 1}},
        {"changes": [DELETE_PREVIEW, other], "impact": {"readers": 3}, "guards": {"etag": 1}},
        {"changes": [DELETE_PREVIEW, other], "impact": {"readers": 2}, "guards": {"etag": 2}},
    ):
        set_preview("digest", **different)
        assert (await run_preview(lab, "digest")).digest != first.digest
    assert first.guards == {"etag": 1}


async def test_a_preview_knows_who_asks_and_has_no_key_to_do_anything_with(lab: GatewayLab) -> None:
    seen: list[ToolContext] = []

    def watch(context: ToolContext) -> Preview:
        seen.append(context)
        return Preview()

    previews["who"] = watch
    await lab.call("erase", "who", dry_run=True)
    (context,) = seen
    assert (context.user, context.tenant, context.key, context.credential) == ("ana", "dev", "", None)


async def test_what_a_preview_hands_over_reaches_the_effect(lab: GatewayLab) -> None:
    """As a worker does it that begins an approved run: the guards come with the hold."""
    call = await lab.authorize_call("erase", {"tag": "guarded"})
    got: list[Any] = []

    def compare(context: ToolContext) -> dict[str, Any]:
        got.append(context.guards)
        return {"value": 1}

    scripted_tools.set_behaviour("guarded", compare)
    tool_ = lab.runtime.driver.find_tool(call.validated.tool.contract)
    held = Claim(call_id=str(uuid4()), epoch=1)
    await dispatch_tool(lab.runtime, call, tool_, held)
    await dispatch_tool(lab.runtime, call, tool_, replace(held, guards={"etag": "v1"}))
    assert got == [{}, {"etag": "v1"}]


async def test_another_tenants_key_names_the_same_preview_differently(lab: GatewayLab) -> None:
    call = await lab.authorize_call("erase", {"tag": "tenants"})
    received = call.validated.call
    elsewhere = replace(received, caller=replace(received.caller, tenant="elsewhere"))
    other = replace(call, validated=replace(call.validated, call=elsewhere))
    assert (await preview_call(lab.runtime, call)).digest != (await preview_call(lab.runtime, other)).digest


async def test_hooks_know_that_the_call_is_a_preview(fresh_database: str, tmp_path: Any) -> None:
    heard: list[bool] = []

    def watch(call: HookCall) -> Message:
        heard.append(call.dry_run)
        return Message("seen")

    hook = LoadedHook(name="watch", moment="before", function=watch, is_async=False, seconds=60)
    async with open_lab(fresh_database, tmp_path, hooks=[hook]) as lab:
        outcome = await lab.call("erase", "hooked", dry_run=True)
        assert (heard, parse_body(outcome)["warnings"]) == ([True], ["hook:watch: seen"])
        assert "hook:watch" in (await lab.fetch_entries(outcome.call_id))[0]["hooks"][0]


async def test_a_preview_uses_no_limits_and_no_budget(fresh_database: str, tmp_path: Path) -> None:
    rules = [make_rule("budget", 1, "money"), make_rule("rate", 4, "often")]
    async with open_limited_lab(fresh_database, tmp_path, *rules) as lab:
        for _ in range(3):
            assert parse_body(await lab.call("buy", "dear", dry_run=True))["dry_run"] is True
        assert (await lab.call("buy", "dear", key="b")).state is State.SUCCEEDED
        refused = await lab.call("buy", "dear", dry_run=True)
        assert parse_body(refused)["error"]["details"]["rule"] in ("often", "money")


async def test_a_preview_that_ends_after_revocation_is_not_released(lab: GatewayLab) -> None:
    caller, admin = await lab.make_caller("leaver"), await lab.make_admin()

    async def revoke_caller(_: ToolContext) -> Preview:
        await lab.gateway.commands.revoke(admin, "user", "leaver")
        return Preview(impact={"canary": 1})

    previews["revoked"] = revoke_caller
    outcome = await lab.call("erase", "revoked", dry_run=True, by=caller)
    assert error_slug(outcome) == "revoked"
    assert b"canary" not in outcome.body
