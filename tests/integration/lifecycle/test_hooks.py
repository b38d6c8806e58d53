"""Hooks around real calls: what they change, stop and add, what becomes of it, and what is written down."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.canonical import canonical, commitment
from deputize.core.errors import ToolFailed
from deputize.core.hooks import Context, HookCall, HookProblem, LoadedHook, Message, Moment, Permission, Stop, Update
from deputize.core.outcome import Outcome
from tests.integration.lifecycle.lab import Lab, body, open_lab, slug, until
from tests.integration.lifecycle.tools import effects_of, on, raising

pytestmark = pytest.mark.requirement("INV-6")

Say = Callable[..., Any]
words: dict[tuple[str, str], Say] = {}
"""What the hook of that name says of calls with that tag."""
heard: list[tuple[str, str]] = []
"""Which hooks ran, with the tag of the call."""


def says(hook: str, tag: str, say: Any) -> None:
    words[hook, tag] = say if callable(say) else lambda *_: say


def hook(name: str, moment: Moment, *, tools: str = "lab.*", seconds: float = 1.0) -> LoadedHook:
    async def speak(call: HookCall, *end: Any) -> Any:
        tag = call.arguments["tag"]
        heard.append((name, tag))
        say = words.get((name, tag))
        said = None if say is None else say(call, *end)
        return await said if inspect.isawaitable(said) else said

    return LoadedHook(name=name, moment=moment, function=speak, is_async=True, tools=tools, seconds=seconds)


def ran(tag: str) -> list[str]:
    return [name for name, its in heard if its == tag]


HOOKS = (
    hook("first", "before"),
    hook("second", "before", seconds=0.1),
    hook("watch", "after", seconds=0.1),
    hook("notes", "after"),
    hook("sorry", "failure"),
    hook("other", "before", tools="elsewhere.*"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[Lab]:
    async with open_lab(module_database, lab_folder, hooks=HOOKS) as opened:
        yield opened


async def test_they_run_in_order_around_the_effect(lab: Lab) -> None:
    def note(_: Any) -> dict[str, str]:
        heard.append(("tool", "hook-order"))
        return {"value": "x"}

    on("hook-order", note)
    await lab.call("look", "hook-order")
    assert ran("hook-order") == ["first", "second", "tool", "watch", "notes"]


async def test_changed_input_reaches_the_tool_and_the_next_hook_and_the_record(lab: Lab) -> None:
    says("first", "change", Update({"count": 7}))
    seen: list[HookCall] = []
    says("second", "change", lambda call: seen.append(call))
    outcome = await lab.call("note", {"tag": "change", "count": 2}, key="change")

    assert body(outcome)["input"]["mutations"] == [
        {"path": "/count", "source": "hook:first", "change": "integer→integer"}
    ]
    assert seen[0].arguments == {"tag": "change", "count": 7}
    assert (seen[0].tool, seen[0].user, seen[0].effects) == ("lab.note", "ana", "write")
    intent, end = await lab.entries(outcome.call_id)
    assert intent["mutations"] == ["/count hook:first integer→integer"]
    assert intent["hooks"] == ["hook:first update"]
    assert "hooks" not in end


async def test_the_models_own_words_are_what_is_committed_to_and_replayed(lab: Lab) -> None:
    says("first", "words", Update({"count": 9}))
    asked = {"tag": "words", "count": 2}
    first = await lab.call("note", asked, key="words")
    salt = await lab.db.fetchval(
        "select salt from deputize.audit_entries where call_id = $1 order by id limit 1", first.call_id
    )
    assert (await lab.entries(first.call_id))[0]["arguments"] == commitment(salt, canonical(asked))
    assert asked == {"tag": "words", "count": 2}

    says("first", "words", Update({"count": 10}))
    again = await lab.call("note", asked, key="words")
    assert (again.replayed, again.body) == (True, first.body)
    assert len(effects_of("words")) == 1


async def test_a_replay_runs_no_hook_but_those_before(lab: Lab) -> None:
    await lab.call("note", "replay", key="replay")
    heard.clear()
    assert (await lab.call("note", "replay", key="replay")).replayed
    assert ran("replay") == ["first", "second"]


@pytest.mark.parametrize(
    ("update", "where"),
    [
        (Update({"count": "many"}), "/count must be an integer, not a string"),
        (Update({"count": -1}), "/count"),
        (Update({"colour": "red"}), "/colour is not an argument of this tool"),
        (Update({}, drop=["tag"]), "/tag is required"),
    ],
)
async def test_changed_input_is_held_to_the_schema_again(lab: Lab, update: Update, where: str) -> None:
    says("first", "misfit", update)
    outcome = await lab.call("put", "misfit")

    assert slug(outcome) == "hook-blocked"
    assert f"the hook first changed the arguments so that they do not fit: {where}" in body(outcome)["detail"]
    assert effects_of("misfit") == []


async def test_an_update_that_changes_nothing_is_no_mutation(lab: Lab) -> None:
    says("first", "same", Update({"count": 2.0, "tag": "same"}, drop=["absent"]))
    outcome = await lab.call("look", {"tag": "same", "count": 2})
    assert body(outcome)["input"]["mutations"] == []
    assert "hooks" not in (await lab.entries(outcome.call_id))[0]


async def test_what_a_hook_keeps_of_a_call_changes_nothing(lab: Lab) -> None:
    def meddle(call: HookCall, *end: Any) -> None:
        call.arguments["count"] = 99
        for each in end:
            each["value"] = "forged"

    for name in ("first", "watch"):
        says(name, "meddle", meddle)
    outcome = await lab.call("look", "meddle")
    assert body(outcome)["result"] == {"value": "meddle"}
    assert body(outcome)["input"]["mutations"] == []


async def test_a_stop_ends_the_call_before_the_effect_and_names_the_hook(lab: Lab) -> None:
    says("second", "stop", Stop("closed on Sundays"))
    outcome = await lab.call("put", "stop", key="stop")

    assert (slug(outcome), outcome.state) == ("hook-blocked", "denied")
    error = body(outcome)["error"]
    assert error["message"] == "the hook second stopped this call: closed on Sundays"
    assert error["details"] == {"hook": "second", "rule": "hook:second", "reason": "closed on Sundays"}
    assert effects_of("stop") == []
    [entry] = await lab.entries(outcome.call_id)
    assert (entry["kind"], entry["outcome"], entry["rules"], entry["error"]) == (
        "refusal", "denied", ["token-scopes", "hook:second"], "E3215",
    )  # fmt: skip
    says("second", "stop", None)
    assert slug(await lab.call("put", "stop", key="stop")) is None


async def _hang(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda *_: 1 / 0, "it failed with ZeroDivisionError"),
        (_hang, "it took longer than 0.1 s"),
        ("yes", "it answered with str"),
        ([Permission("allow"), "yes"], "it answered with str"),
    ],
)
async def test_a_hook_that_breaks_before_the_effect_stops_the_call(lab: Lab, say: Any, why: str) -> None:
    says("second", "hook-broken", say)
    outcome = await lab.call("put", "hook-broken")

    assert slug(outcome) == "hook-blocked"
    assert body(outcome)["detail"].startswith(f"the hook second gave no answer, so the call was not made: {why}")
    assert effects_of("hook-broken") == []
    assert (await lab.entries(outcome.call_id))[0]["rules"] == ["token-scopes", "hook:second"]


@pytest.mark.parametrize(
    ("say", "why"),
    [(lambda *_: 1 / 0, "ZeroDivisionError"), (_hang, "took longer"), (Stop("late"), "may answer Context, Message")],
)
@pytest.mark.parametrize("tool", ["look", "note"])
async def test_a_hook_that_breaks_after_the_effect_is_a_warning(lab: Lab, tool: str, say: Any, why: str) -> None:
    says("watch", "hook-late", say)
    says("notes", "hook-late", Context("still here"))
    outcome = await lab.call(tool, "hook-late")

    told = body(outcome)
    assert (slug(outcome), told["result"]) == (None, {"value": "hook-late"})
    assert told["warnings"][0].startswith("hook:watch could not add to this reply: ")
    assert why in told["warnings"][0]
    assert told["context"] == [{"source": "hook:notes", "value": "still here"}]
    assert (await lab.entries(outcome.call_id))[-1]["hooks"] == ["hook:watch failed", "hook:notes context"]


async def test_what_hooks_add_stands_beside_the_result_with_its_source(lab: Lab) -> None:
    says("first", "add", [Context({"limit": 10}), Message("be quick")])
    says("watch", "add", lambda call, result: Context(f"saw {result['value']}"))
    outcome = await lab.call("note", "add", key="add")

    told = body(outcome)
    assert told["result"] == {"value": "add"}
    assert told["context"] == [
        {"source": "hook:first", "value": {"limit": 10}},
        {"source": "hook:watch", "value": "saw add"},
    ]
    assert told["warnings"] == ["hook:first: be quick"]
    intent, end = await lab.entries(outcome.call_id)
    assert intent["hooks"] == ["hook:first context", "hook:first message"]
    assert end["hooks"] == ["hook:watch context"]
    assert (await lab.call("note", "add", key="add")).body == outcome.body


async def test_a_call_without_anything_to_add_says_so(lab: Lab) -> None:
    assert body(await lab.call("look", "plain"))["context"] == []


@pytest.mark.parametrize("tool", ["look", "note"])
async def test_a_failure_is_told_to_the_hooks_of_failures_alone(lab: Lab, tool: str) -> None:
    on("hook-fails", raising(ToolFailed("no more paper")))
    seen: list[HookProblem] = []

    def sorry(call: HookCall, problem: HookProblem) -> Context:
        seen.append(problem)
        return Context("buy paper")

    says("sorry", "hook-fails", sorry)
    heard.clear()
    outcome = await lab.call(tool, "hook-fails")

    assert ran("hook-fails") == ["first", "second", "sorry"]
    assert seen == [
        HookProblem(slug="tool-failed", code="INTERNAL_TOOL_ERROR", message="no more paper", retryable=False)
    ]
    assert (slug(outcome), body(outcome)["context"]) == (
        "tool-failed",
        [{"source": "hook:sorry", "value": "buy paper"}],
    )
    assert (await lab.entries(outcome.call_id))[-1]["hooks"] == ["hook:sorry context"]


async def test_a_refusal_is_told_to_them_too(lab: Lab) -> None:
    says("first", "refused", Stop("no"))
    says("sorry", "refused", lambda call, problem: [Message(problem.slug), Context(1)])
    outcome = await lab.call("put", "refused")

    assert slug(outcome) == "hook-blocked"
    assert body(outcome)["warnings"] == ["hook:sorry: hook-blocked"]
    assert body(outcome)["context"] == [{"source": "hook:sorry", "value": 1}]
    assert (await lab.entries(outcome.call_id))[0]["hooks"] == ["hook:sorry message", "hook:sorry context"]


async def test_who_may_not_call_the_tool_sets_no_hook_before_it_in_motion(lab: Lab) -> None:
    outcome = await lab.call("put", "stranger", by=await lab.caller("eve", scopes=()))
    assert slug(outcome) == "scope-missing"
    assert ran("stranger") == ["sorry"]


async def test_the_deadline_of_the_call_covers_its_hooks(lab: Lab) -> None:
    says("second", "deadline", _hang)
    outcome = await lab.call("look", "deadline", deadline_ms=30)
    assert slug(outcome) == "deadline-exceeded"
    assert "while the hook second ran" in body(outcome)["detail"]


async def test_a_canceled_request_does_not_make_a_known_outcome_unknown(lab: Lab) -> None:
    began = asyncio.Event()

    async def wait(*_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    says("notes", "hook-canceled", wait)
    call: asyncio.Task[Outcome] = asyncio.create_task(lab.call("note", "hook-canceled", key="hook-canceled"))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    call_id = str(
        await lab.db.fetchval("select id from deputize.calls where tool = 'lab.note' order by id desc limit 1")
    )

    async def ended() -> bool:
        return await lab.state(call_id) != "running"

    await until(ended)
    assert await lab.state(call_id) == "succeeded"
    assert (await lab.call("note", "hook-canceled", key="hook-canceled")).replayed
    assert len(effects_of("hook-canceled")) == 1
