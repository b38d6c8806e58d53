"""What hooks think of a call joins what the policies say of it, and only ever makes it stricter."""

import asyncio
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.core.decision import Behavior, Rule, Verdict, demanded
from deputize.core.hooks import (
    MAX_CONTEXT_BYTES,
    MAX_TEXT,
    Answer,
    Context,
    Hooked,
    LoadedHook,
    Message,
    Moment,
    Nonsense,
    Permission,
    Stop,
    Update,
    answers_of,
)
from deputize.execute.hooks import HookBroke, HookRunner
from deputize.lifecycle.hooks import Hooks, tightened

pytestmark = pytest.mark.requirement("INV-6")

VERDICTS = st.builds(
    lambda behavior, errors: Verdict(
        behavior=Behavior.DENY if errors else behavior,
        rules=(Rule(id="policy"),),
        digest="d",
        errors=errors,
        demands=demanded([Rule(id="policy")]) if behavior is Behavior.ASK and not errors else (),
    ),
    st.sampled_from([Behavior.ALLOW, Behavior.ASK, Behavior.DENY]),
    st.sampled_from([(), ("a rule broke",)]),
)
OPINIONS = st.lists(st.sampled_from(list(Behavior)), max_size=6)


def _opinion(number: int, behavior: Behavior) -> Verdict:
    rules = (Rule(id=f"hook:h{number}"),)
    demands = demanded(rules) if behavior is Behavior.ASK else ()
    return Verdict(behavior=behavior, rules=rules, digest="", source="hook", demands=demands)


@pytest.mark.requirement("GOV-2")
@given(VERDICTS, OPINIONS)
def test_no_hook_makes_a_decision_weaker(verdict: Verdict, behaviors: list[Behavior]) -> None:
    opinions = tuple(_opinion(number, behavior) for number, behavior in enumerate(behaviors))
    answer = tightened(verdict, Hooked(permissions=opinions))

    strictest = max([verdict.behavior, *behaviors], key=lambda each: each.strictness)
    assert answer.behavior is strictest
    assert answer.digest == "d"
    assert answer.errors == verdict.errors
    # Its rules are all those that gave this answer, and no others.
    spoke = [f"hook:h{number}" for number, behavior in enumerate(behaviors) if behavior is strictest]
    expected = (["policy"] if verdict.behavior is strictest else []) + spoke
    assert [rule.id for rule in answer.rules] == expected
    # Whoever asked has to be answered, each of them.
    assert [each.rule for each in answer.demands] == (expected if strictest is Behavior.ASK else [])


def test_without_hooks_the_verdict_is_the_very_same() -> None:
    verdict = _opinion(0, Behavior.ALLOW)
    assert tightened(verdict, Hooked()) is verdict


@pytest.mark.parametrize("said", [None, [], (), Context(1), [Message("a"), Context({"b": [None]})]])
@pytest.mark.parametrize("moment", get_args(Moment))
def test_any_hook_may_say_nothing_or_add(said: Any, moment: Moment) -> None:
    expected = said if isinstance(said, list | tuple) else [] if said is None else [said]
    assert list(answers_of(said, moment)) == list(expected)


ONLY_BEFORE: list[Answer] = [Update({"a": 1}, drop=["b"]), Stop("no"), Permission("ask"), Permission("passthrough")]


@pytest.mark.parametrize("said", ONLY_BEFORE, ids=repr)
def test_only_before_the_effect_a_call_can_be_changed_or_stopped(said: Answer) -> None:
    assert answers_of(said, "before") == (said,)
    later: list[Moment] = ["after", "failure"]
    for moment in later:
        with pytest.raises(Nonsense, match="may answer Context, Message"):
            answers_of(said, moment)


def odd(kind: Any, *given: Any, **named: Any) -> Any:
    """What no type checker would let through."""
    return kind(*given, **named)


@pytest.mark.parametrize(
    "said",
    [
        True, "stop", {"stop": True}, [Stop("a"), "b"], Stop, Stop("x" * (MAX_TEXT + 1)), Stop("\ud800"), odd(Stop, 7),
        odd(Message, None), odd(Permission, "maybe"), odd(Permission, "allow", None), odd(Permission, []),
        Context(float("nan")), Context(object()), Context({1: 2}), Context("x" * MAX_CONTEXT_BYTES), Context(2**60),
        odd(Update, "a"), odd(Update, None), odd(Update, {1: 2}), Update({"a": object()}), Update({"a": b"bytes"}),
        odd(Update, {}, drop="a"), odd(Update, {}, drop=[1]), odd(Update, {}, drop=None),
    ],
    ids=lambda said: repr(said)[:40],
)  # fmt: skip
def test_anything_else_is_nonsense(said: Any) -> None:
    with pytest.raises(Nonsense):
        answers_of(said, "before")


@given(st.recursive(st.none() | st.booleans() | st.text() | st.floats() | st.binary(), st.lists, max_leaves=5))
def test_whatever_a_hook_returns_is_an_answer_or_nonsense(said: Any) -> None:
    if said is None or said == []:
        assert answers_of(said, "before") == ()
    else:
        with pytest.raises(Nonsense, match="it answered with"):
            answers_of(said, "before")


def _hook(function: Any, *, is_async: bool = True, tools: str = "*") -> LoadedHook:
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
    with pytest.raises(HookBroke) as broke:
        await runner.run(_hook(function, is_async=is_async), (), 0.05)
    assert str(broke.value) == f"it {why}"
    runner.close()


async def test_a_hook_in_a_thread_is_given_up_in_time() -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def waits() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    runner = HookRunner()
    with pytest.raises(HookBroke, match="took longer"):
        await runner.run(_hook(waits, is_async=False), (), 0.05)
    gate.set()
    runner.close()


async def test_a_canceled_request_is_not_a_broken_hook() -> None:
    runner = HookRunner()
    task = asyncio.create_task(runner.run(_hook(_hangs), (), 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    runner.close()


def test_only_tools_a_glob_matches_have_anything_around_them() -> None:
    hooks = Hooks([_hook(_hangs, tools="crm.*_user")], Clock(), "production")
    assert hooks.around("crm.list_users") is None
    assert hooks.around("crm.get_user") is hooks.around("crm.get_user") is not None
    assert Hooks([], Clock(), "production").around("crm.get_user") is None
    hooks.close()
