"""Hooks around real calls: what they change, stop and add, what becomes of it, and what is written down."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.errors import ToolFailed
from deputize.core.hooks import (
    Context,
    HookCall,
    HookMoment,
    HookProblem,
    LoadedHook,
    Message,
    Permission,
    Stop,
    Update,
)
from deputize.core.outcome import Outcome
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body, wait_until
from tests.support.scripted_tools import list_effects, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("INV-6")

HookAnswer = Callable[..., Any]
hook_answers: dict[tuple[str, str], HookAnswer] = {}
"""What the hook of that name says of calls with that tag."""
hook_calls: list[tuple[str, str]] = []
"""Which hooks ran, with the tag of the call."""


def set_answer(hook: str, tag: str, say: Any) -> None:
    hook_answers[hook, tag] = say if callable(say) else lambda *_: say


def make_hook(name: str, moment: HookMoment, *, tools: str = "lab.*", seconds: float = 30.0) -> LoadedHook:
    async def answer_call(call: HookCall, *end: Any) -> Any:
        tag = call.arguments["tag"]
        hook_calls.append((name, tag))
        say = hook_answers.get((name, tag))
        said = None if say is None else say(call, *end)
        return await said if inspect.isawaitable(said) else said

    return LoadedHook(name=name, moment=moment, function=answer_call, is_async=True, tools=tools, seconds=seconds)


def list_hooks_run(tag: str) -> list[str]:
    return [name for name, its in hook_calls if its == tag]


HOOKS = (
    make_hook("first", "before"),
    make_hook("second", "before", seconds=6.0),
    make_hook("watch", "after", seconds=5.0),
    make_hook("notes", "after"),
    make_hook("sorry", "failure"),
    make_hook("other", "before", tools="elsewhere.*"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lab_folder, hooks=HOOKS) as opened:
        yield opened


async def test_they_run_in_order_around_the_effect(lab: GatewayLab) -> None:
    def note(_: Any) -> dict[str, str]:
        hook_calls.append(("tool", "hook-order"))
        return {"value": "x"}

    set_behaviour("hook-order", note)
    await lab.call("look", "hook-order")
    assert list_hooks_run("hook-order") == ["first", "second", "tool", "watch", "notes"]


async def test_changed_input_reaches_the_tool_and_the_next_hook_and_the_record(lab: GatewayLab) -> None:
    set_answer("first", "change", Update({"count": 7}))
    seen: list[HookCall] = []
    set_answer("second", "change", lambda call: seen.append(call))
    outcome = await lab.call("note", {"tag": "change", "count": 2}, key="change")

    assert parse_body(outcome)["input"]["mutations"] == [
        {"path": "/count", "source": "hook:first", "change": "integer→integer"}
    ]
    assert seen[0].arguments == {"tag": "change", "count": 7}
    assert (seen[0].tool, seen[0].user, seen[0].effects) == ("lab.note", "ana", "write")
    intent, end = await lab.fetch_entries(outcome.call_id)
    assert intent["mutations"] == ["/count hook:first integer→integer"]
    assert intent["hooks"] == ["hook:first update"]
    assert "hooks" not in end


async def test_the_models_own_words_are_what_is_committed_to_and_replayed(lab: GatewayLab) -> None:
    set_answer("first", "words", Update({"count": 9}))
    asked = {"tag": "words", "count": 2}
    first = await lab.call("note", asked, key="words")
    salt = await lab.db.fetchval(
        "select salt from deputize.audit_entries where call_id = $1 order by id limit 1", first.call_id
    )
    assert (await lab.fetch_entries(first.call_id))[0]["arguments"] == compute_commitment(salt, canonicalize(asked))
    assert asked == {"tag": "words", "count": 2}

    set_answer("first", "words", Update({"count": 10}))
    again = await lab.call("note", asked, key="words")
    assert (again.is_replay, again.body) == (True, first.body)
    assert len(list_effects("words")) == 1


async def test_a_replay_runs_no_hook_but_those_before(lab: GatewayLab) -> None:
    await lab.call("note", "replay", key="replay")
    hook_calls.clear()
    assert (await lab.call("note", "replay", key="replay")).is_replay
    assert list_hooks_run("replay") == ["first", "second"]


@pytest.mark.parametrize(
    ("update", "where"),
    [
        (Update({"count": "many"}), "/count must be an integer; got a string"),
        (Update({"count": -1}), "/count"),
        (Update({"colour": "red"}), "/colour is not an argument of this tool"),
        (Update({}, drop=["tag"]), "/tag is required"),
    ],
)
async def test_changed_input_is_held_to_the_schema_again(lab: GatewayLab, update: Update, where: str) -> None:
    set_answer("first", "misfit", update)
    outcome = await lab.call("put", "misfit")

    assert error_slug(outcome) == "hook-blocked"
    assert (
        f"the hook first changed the arguments, and they no longer match the schema: {where}"
        in parse_body(outcome)["detail"]
    )
    assert list_effects("misfit") == []


async def test_an_update_that_changes_nothing_is_no_mutation(lab: GatewayLab) -> None:
    set_answer("first", "same", Update({"count": 2.0, "tag": "same"}, drop=["absent"]))
    outcome = await lab.call("look", {"tag": "same", "count": 2})
    assert parse_body(outcome)["input"]["mutations"] == []
    assert "hooks" not in (await lab.fetch_entries(outcome.call_id))[0]


async def test_what_a_hook_keeps_of_a_call_changes_nothing(lab: GatewayLab) -> None:
    def mutate_call(call: HookCall, *end: Any) -> None:
        call.arguments["count"] = 99
        for each in end:
            each["value"] = "forged"

    for name in ("first", "watch"):
        set_answer(name, "meddle", mutate_call)
    outcome = await lab.call("look", "meddle")
    assert parse_body(outcome)["result"] == {"value": "meddle"}
    assert parse_body(outcome)["input"]["mutations"] == []


async def test_a_stop_ends_the_call_before_the_effect_and_names_the_hook(lab: GatewayLab) -> None:
    set_answer("second", "stop", Stop("closed on Sundays"))
    outcome = await lab.call("put", "stop", key="stop")

    assert (error_slug(outcome), outcome.state) == ("hook-blocked", "denied")
    error = parse_body(outcome)["error"]
    assert error["message"] == "the hook second stopped this call: closed on Sundays"
    assert error["details"] == {"hook": "second", "rule": "hook:second", "reason": "closed on Sundays"}
    assert list_effects("stop") == []
    [entry] = await lab.fetch_entries(outcome.call_id)
    assert (entry["kind"], entry["outcome"], entry["rules"], entry["error"]) == (
        "refusal", "denied", ["token-scopes", "hook:second"], "E3215",
    )  # fmt: skip
    set_answer("second", "stop", None)
    assert error_slug(await lab.call("put", "stop", key="stop")) is None


async def _wait_forever(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda *_: 1 / 0, "it failed with ZeroDivisionError"),
        (_wait_forever, "it took longer than 6 s"),
        ("yes", "it returned str"),
        ([Permission("allow"), "yes"], "it returned str"),
    ],
)
async def test_a_hook_that_breaks_before_the_effect_stops_the_call(lab: GatewayLab, say: Any, why: str) -> None:
    set_answer("second", "hook-broken", say)
    outcome = await lab.call("put", "hook-broken")

    assert error_slug(outcome) == "hook-blocked"
    assert parse_body(outcome)["detail"].startswith(f"the hook second failed, so the tool was not executed: {why}")
    assert list_effects("hook-broken") == []
    assert (await lab.fetch_entries(outcome.call_id))[0]["rules"] == ["token-scopes", "hook:second"]


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda *_: 1 / 0, "ZeroDivisionError"),
        (_wait_forever, "took longer"),
        (Stop("late"), "may return Context, Message"),
    ],
)
@pytest.mark.parametrize("tool", ["look", "note"])
async def test_a_hook_that_breaks_after_the_effect_is_a_warning(lab: GatewayLab, tool: str, say: Any, why: str) -> None:
    set_answer("watch", "hook-late", say)
    set_answer("notes", "hook-late", Context("still here"))
    outcome = await lab.call(tool, "hook-late")

    told = parse_body(outcome)
    assert (error_slug(outcome), told["result"]) == (None, {"value": "hook-late"})
    assert told["warnings"][0].startswith("hook:watch could not add to this reply: ")
    assert why in told["warnings"][0]
    assert told["context"] == [{"source": "hook:notes", "value": "still here"}]
    assert (await lab.fetch_entries(outcome.call_id))[-1]["hooks"] == ["hook:watch failed", "hook:notes context"]


async def test_what_hooks_add_stands_beside_the_result_with_its_source(lab: GatewayLab) -> None:
    set_answer("first", "add", [Context({"limit": 10}), Message("be quick")])
    set_answer("watch", "add", lambda call, result: Context(f"saw {result['value']}"))
    outcome = await lab.call("note", "add", key="add")

    told = parse_body(outcome)
    assert told["result"] == {"value": "add"}
    assert told["context"] == [
        {"source": "hook:first", "value": {"limit": 10}},
        {"source": "hook:watch", "value": "saw add"},
    ]
    assert told["warnings"] == ["hook:first: be quick"]
    intent, end = await lab.fetch_entries(outcome.call_id)
    assert intent["hooks"] == ["hook:first context", "hook:first message"]
    assert end["hooks"] == ["hook:watch context"]
    assert (await lab.call("note", "add", key="add")).body == outcome.body


async def test_a_call_without_anything_to_add_says_so(lab: GatewayLab) -> None:
    assert parse_body(await lab.call("look", "plain"))["context"] == []


@pytest.mark.parametrize("tool", ["look", "note"])
async def test_a_failure_runs_only_failure_hooks(lab: GatewayLab, tool: str) -> None:
    set_behaviour("hook-fails", raise_error(ToolFailed("no more paper")))
    seen: list[HookProblem] = []

    def add_context(call: HookCall, problem: HookProblem) -> Context:
        seen.append(problem)
        return Context("buy paper")

    set_answer("sorry", "hook-fails", add_context)
    hook_calls.clear()
    outcome = await lab.call(tool, "hook-fails")

    assert list_hooks_run("hook-fails") == ["first", "second", "sorry"]
    assert seen == [
        HookProblem(slug="tool-failed", code="INTERNAL_TOOL_ERROR", message="no more paper", retryable=False)
    ]
    assert (error_slug(outcome), parse_body(outcome)["context"]) == (
        "tool-failed",
        [{"source": "hook:sorry", "value": "buy paper"}],
    )
    assert (await lab.fetch_entries(outcome.call_id))[-1]["hooks"] == ["hook:sorry context"]


async def test_a_refusal_runs_failure_hooks_too(lab: GatewayLab) -> None:
    set_answer("first", "refused", Stop("no"))
    set_answer("sorry", "refused", lambda call, problem: [Message(problem.slug), Context(1)])
    outcome = await lab.call("put", "refused")

    assert error_slug(outcome) == "hook-blocked"
    assert parse_body(outcome)["warnings"] == ["hook:sorry: hook-blocked"]
    assert parse_body(outcome)["context"] == [{"source": "hook:sorry", "value": 1}]
    assert (await lab.fetch_entries(outcome.call_id))[0]["hooks"] == ["hook:sorry message", "hook:sorry context"]


async def test_who_may_not_call_the_tool_sets_no_hook_before_it_in_motion(lab: GatewayLab) -> None:
    outcome = await lab.call("put", "stranger", by=await lab.make_caller("eve", scopes=()))
    assert error_slug(outcome) == "scope-missing"
    assert list_hooks_run("stranger") == ["sorry"]


async def test_the_deadline_of_the_call_covers_its_hooks(lab: GatewayLab) -> None:
    set_answer("second", "deadline", _wait_forever)
    outcome = await lab.call("look", "deadline", deadline_ms=5000)
    assert error_slug(outcome) == "deadline-exceeded"
    assert "while the hook second ran" in parse_body(outcome)["detail"]


async def test_a_canceled_request_does_not_make_a_known_outcome_unknown(lab: GatewayLab) -> None:
    began = asyncio.Event()

    async def wait(*_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    set_answer("notes", "hook-canceled", wait)
    call: asyncio.Task[Outcome] = asyncio.create_task(lab.call("note", "hook-canceled", key="hook-canceled"))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    call_id = str(
        await lab.db.fetchval("select id from deputize.calls where tool = 'lab.note' order by id desc limit 1")
    )

    async def has_ended() -> bool:
        return await lab.fetch_state(call_id) != "running"

    await wait_until(has_ended)
    assert await lab.fetch_state(call_id) == "succeeded"
    assert (await lab.call("note", "hook-canceled", key="hook-canceled")).is_replay
    assert len(list_effects("hook-canceled")) == 1
