"""What hooks think of a call joins what the policies say of it, and only ever makes it stricter."""

import asyncio
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.core.decision import Behavior, MatchedRule, Verdict, build_approval_requirements
from deputize.core.hooks import (
    MAX_CONTEXT_BYTES,
    MAX_TEXT,
    Context,
    HookAnswer,
    HookEffects,
    HookMoment,
    InvalidHookAnswer,
    LoadedHook,
    Message,
    Permission,
    Stop,
    Update,
    parse_hook_answers,
)
from deputize.execute.hook_runner import HookFailure, HookRunner
from deputize.lifecycle.hooks import Hooks, tighten_verdict

pytestmark = pytest.mark.requirement("INV-6")

VERDICTS = st.builds(
    lambda behavior, errors: Verdict(
        behavior=Behavior.DENY if errors else behavior,
        rules=(MatchedRule(id="policy"),),
        digest="d",
        errors=errors,
        requirements=build_approval_requirements([MatchedRule(id="policy")])
        if behavior is Behavior.ASK and not errors
        else (),
    ),
    st.sampled_from([Behavior.ALLOW, Behavior.ASK, Behavior.DENY]),
    st.sampled_from([(), ("a rule broke",)]),
)
OPINIONS = st.lists(st.sampled_from(list(Behavior)), max_size=6)


def _make_verdict(number: int, behavior: Behavior) -> Verdict:
    rules = (MatchedRule(id=f"hook:h{number}"),)
    demands = build_approval_requirements(rules) if behavior is Behavior.ASK else ()
    return Verdict(behavior=behavior, rules=rules, digest="", source="hook", requirements=demands)


@pytest.mark.requirement("GOV-2")
@given(VERDICTS, OPINIONS)
def test_no_hook_makes_a_decision_weaker(verdict: Verdict, behaviors: list[Behavior]) -> None:
    opinions = tuple(_make_verdict(number, behavior) for number, behavior in enumerate(behaviors))
    answer = tighten_verdict(verdict, HookEffects(permissions=opinions))

    strictest = max([verdict.behavior, *behaviors], key=lambda each: each.strictness)
    assert answer.behavior is strictest
    assert answer.digest == "d"
    assert answer.errors == verdict.errors
    # Its rules are all those that gave this answer, and no others.
    spoke = [f"hook:h{number}" for number, behavior in enumerate(behaviors) if behavior is strictest]
    expected = (["policy"] if verdict.behavior is strictest else []) + spoke
    assert [rule.id for rule in answer.rules] == expected
    # Whoever asked has to be answered, each of them.
    assert [each.rule for each in answer.requirements] == (expected if strictest is Behavior.ASK else [])


def test_without_hooks_the_verdict_is_the_very_same() -> None:
    verdict = _make_verdict(0, Behavior.ALLOW)
    assert tighten_verdict(verdict, HookEffects()) is verdict


@pytest.mark.parametrize("said", [None, [], (), Context(1), [Message("a"), Context({"b": [None]})]])
@pytest.mark.parametrize("moment", get_args(HookMoment))
def test_any_hook_may_say_nothing_or_add(said: Any, moment: HookMoment) -> None:
    expected = said if isinstance(said, list | tuple) else [] if said is None else [said]
    assert list(parse_hook_answers(said, moment)) == list(expected)


ONLY_BEFORE: list[HookAnswer] = [Update({"a": 1}, drop=["b"]), Stop("no"), Permission("ask"), Permission("passthrough")]


@pytest.mark.parametrize("said", ONLY_BEFORE, ids=repr)
def test_only_before_the_effect_a_call_can_be_changed_or_stopped(said: HookAnswer) -> None:
    assert parse_hook_answers(said, "before") == (said,)
    later: list[HookMoment] = ["after", "failure"]
    for moment in later:
        with pytest.raises(InvalidHookAnswer, match="may return Context, Message"):
            parse_hook_answers(said, moment)


def build_unchecked(kind: Any, *args: Any, **kwargs: Any) -> Any:
    """What no type checker would let through."""
    return kind(*args, **kwargs)


@pytest.mark.parametrize(
    "said",
    [
        True,
        "stop",
        {"stop": True},
        [Stop("a"), "b"],
        Stop,
        Stop("x" * (MAX_TEXT + 1)),
        Stop("\ud800"),
        build_unchecked(Stop, 7),
        build_unchecked(Message, None),
        build_unchecked(Permission, "maybe"),
        build_unchecked(Permission, "allow", None),
        build_unchecked(Permission, []),
        Context(float("nan")),
        Context(object()),
        Context({1: 2}),
        Context("x" * MAX_CONTEXT_BYTES),
        Context(2**60),
        build_unchecked(Update, "a"),
        build_unchecked(Update, None),
        build_unchecked(Update, {1: 2}),
        Update({"a": object()}),
        Update({"a": b"bytes"}),
        build_unchecked(Update, {}, drop="a"),
        build_unchecked(Update, {}, drop=[1]),
        build_unchecked(Update, {}, drop=None),
    ],
    ids=lambda said: repr(said).partition(" at 0x")[0][:40],
)
def test_anything_else_is_nonsense(said: Any) -> None:
    with pytest.raises(InvalidHookAnswer):
        parse_hook_answers(said, "before")


@given(st.recursive(st.none() | st.booleans() | st.text() | st.floats() | st.binary(), st.lists, max_leaves=5))
def test_whatever_a_hook_returns_is_an_answer_or_nonsense(said: Any) -> None:
    if said is None or said == []:
        assert parse_hook_answers(said, "before") == ()
    else:
        with pytest.raises(InvalidHookAnswer, match="it returned"):
            parse_hook_answers(said, "before")


def _make_hook(function: Any, *, is_async: bool = True, tools: str = "*") -> LoadedHook:
    return LoadedHook(name="h", moment="before", function=function, is_async=is_async, tools=tools)


async def _raises() -> None:
    raise ValueError("the password is hunter2")


async def _cancels() -> None:
    raise asyncio.CancelledError


async def _exits() -> None:
    raise SystemExit(1)


async def _times_out_by_itself() -> None:
    raise TimeoutError("something of its own")


async def _hangs() -> None:
    await asyncio.Event().wait()


async def _will_not_be_stopped() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "allowed after all"
    return ""


def _stops_iteration() -> None:
    raise StopIteration


@pytest.mark.parametrize(
    ("function", "is_async", "why"),
    [
        (_raises, True, "failed with ValueError"),
        (_cancels, True, "failed with CancelledError"),
        (_exits, True, "failed with SystemExit"),
        (_times_out_by_itself, True, "failed with TimeoutError"),
        (_hangs, True, "took longer than 0.05 s"),
        (_will_not_be_stopped, True, "took longer than 0.05 s"),
        (_stops_iteration, False, "failed with RuntimeError"),
        (lambda: 1 / 0, False, "failed with ZeroDivisionError"),
    ],
)
async def test_a_hook_that_breaks_is_said_to_have_broken(function: Any, is_async: bool, why: str) -> None:
    runner = HookRunner()
    # The others end by themselves, in a thread of a busy machine after a while.
    seconds = 0.05 if "took longer" in why else 60
    with pytest.raises(HookFailure) as broke:
        await runner.run(_make_hook(function, is_async=is_async), (), seconds)
    assert str(broke.value) == f"it {why}"
    runner.close()


async def test_a_hook_in_a_thread_is_given_up_in_time() -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    runner = HookRunner()
    with pytest.raises(HookFailure, match="took longer"):
        await runner.run(_make_hook(waits, is_async=False), (), 0.05)
    gate.set()
    runner.close()


async def test_a_canceled_request_is_not_a_broken_hook() -> None:
    runner = HookRunner()
    task = asyncio.create_task(runner.run(_make_hook(_hangs), (), 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    runner.close()


def test_only_tools_a_glob_matches_have_anything_around_them() -> None:
    hooks = Hooks([_make_hook(_hangs, tools="crm.*_user")], Clock(), "production")
    assert hooks.find_tool_hooks("crm.list_users") is None
    assert hooks.find_tool_hooks("crm.get_user") is hooks.find_tool_hooks("crm.get_user") is not None
    assert not Hooks([], Clock(), "production").is_configured
    hooks.close()
