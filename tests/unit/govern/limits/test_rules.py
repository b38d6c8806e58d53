"""Which calls a rule concerns, and what it counts apart: by digest, and never by what somebody else may name."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.core.errors import BudgetSpent, Problem, RateLimited, Runaway, TooManyAtOnce
from deputize.core.limit_settings import LimitRule
from deputize.core.mistakes import Misconfigured
from deputize.govern.limits.rules import Asked, Rule, micros, read_rules
from deputize.govern.limits.tally import Tally
from tests.unit.catalog.contracts import contract

pytestmark = pytest.mark.requirement("GOV-8")

ANA = Caller(tenant="acme", user="ana", agents=("bot", "planner"), task="tidy up")


def _rule(kind: str = "rate", **more: Any) -> Rule:
    fields = {"name": "some", "kind": kind, "limit": 5, "seconds": 60, **more}
    return read_rules([LimitRule.model_validate(fields)])[0]


def _asked(caller: Caller = ANA, *, session: str | None = "s", canonical: bytes = b"{}", **more: Any) -> Asked:
    return Asked(call_id="c", caller=caller, contract=contract(**more), session=session, canonical=canonical)


def test_globs_choose_tenants_and_tools() -> None:
    rule = _rule(tenants="ac*", tools="crm.*")
    assert rule.concerns("acme", "crm.get_user")
    assert not rule.concerns("other", "crm.get_user")
    assert not rule.concerns("acme", "shop.get_user")
    assert _rule().concerns("anyone", "any.thing")


BOT_FOR_BEA = replace(ANA, user="bea")
OTHER_BOT = replace(ANA, agents=("other",))
ALONE = replace(ANA, agents=())


@pytest.mark.parametrize(
    ("per", "together", "apart"),
    [
        ((), [_asked(BOT_FOR_BEA), _asked(name="delete_user"), _asked(session=None)], []),
        (("caller",), [_asked(session="t")], [_asked(BOT_FOR_BEA), _asked(OTHER_BOT), _asked(ALONE)]),
        (("agent",), [_asked(BOT_FOR_BEA)], [_asked(OTHER_BOT), _asked(ALONE)]),
        (("tool",), [_asked(BOT_FOR_BEA), _asked(version="2.0.0")], [_asked(name="delete_user")]),
        (("provider",), [_asked(name="delete_user")], [_asked(provider="Globex"), _asked(external_service="mail")]),
        (("session",), [_asked(name="delete_user")], [_asked(session="t"), _asked(session=None), _asked(BOT_FOR_BEA)]),
        (("task",), [_asked(OTHER_BOT)], [_asked(replace(ANA, task="other")), _asked(BOT_FOR_BEA)]),
        (("caller", "tool"), [_asked(session="t")], [_asked(name="delete_user"), _asked(BOT_FOR_BEA)]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_counted_apart(per: tuple[str, ...], together: list[Asked], apart: list[Asked]) -> None:
    rule = _rule(per=per)
    ours = rule.key(_asked())
    assert {rule.key(each) for each in together} == {ours}
    keys = [rule.key(each) for each in apart]
    assert ours not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("per", [["caller"], ["agent"], ["session"], ["task"]])
def test_lending_on_gives_no_second_allowance(per: list[str]) -> None:
    rule = _rule(per=per)
    lent_on = [_asked(replace(ANA, agents=(name, "bot", "planner"))) for name in ("bot", "fresh-1", "fresh-2")]
    assert {rule.key(each) for each in lent_on} == {rule.key(_asked())}


def test_what_a_session_cost_is_not_forgotten_by_lending_on() -> None:
    tally = Tally()
    tally.add(ANA, "s", 10**16)
    assert tally.of(replace(ANA, agents=("fresh", *ANA.agents)), "s") == 2**53 - 1
    assert tally.of(replace(ANA, agents=("other",)), "s") == 0


def test_another_tenant_or_rule_never_shares_a_counter() -> None:
    elsewhere = _asked(replace(ANA, tenant="other"))
    assert _rule().key(_asked()) != _rule().key(elsewhere)
    assert _rule().key(_asked()) != _rule(name="another").key(_asked())
    assert "{other}" in _rule().key(elsewhere)


def test_people_without_an_agent_are_agents_of_their_own() -> None:
    rule = _rule(per=["agent"])
    assert rule.key(_asked(ALONE)) != rule.key(_asked(replace(ALONE, user="bea")))
    named_like_ana = replace(ANA, user="bea", agents=("ana",))
    assert rule.key(_asked(ALONE)) != rule.key(_asked(named_like_ana))


def test_a_repeat_is_the_same_tool_and_arguments_of_one_caller_in_one_session() -> None:
    rule = _rule("repeats")
    assert rule.per == ("caller", "session")
    ours = rule.key(_asked(canonical=b'{"a":1}'))
    assert rule.key(_asked(canonical=b'{"a":1}', version="2.0.0")) == ours
    for other in (
        _asked(canonical=b'{"a":2}'),
        _asked(canonical=b'{"a":1}', name="delete_user"),
        _asked(BOT_FOR_BEA, canonical=b'{"a":1}'),
        _asked(canonical=b'{"a":1}', session="t"),
    ):
        assert rule.key(other) != ours
    assert _rule("repeats", per=["agent"]).per == ("agent",)


@given(st.lists(st.text(), min_size=2, max_size=2), st.lists(st.text(), min_size=2, max_size=2))
def test_no_two_callers_spell_the_same_counter(one: list[str], other: list[str]) -> None:
    rule = _rule(per=["caller", "session"])
    keys = [rule.key(_asked(Caller(tenant="acme", user=user), session=session)) for user, session in (one, other)]
    assert (keys[0] == keys[1]) is (one == other)


def test_no_counter_spells_out_whom_it_counts() -> None:
    key = _rule(per=["caller", "session", "task"]).key(_asked(session="secret-session"))
    assert not any(word in key for word in ("ana", "bot", "secret", "tidy"))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("rate", RateLimited), ("concurrency", TooManyAtOnce), ("budget", BudgetSpent), ("repeats", Runaway),
        ("cost_rate", Runaway),
    ],
)  # fmt: skip
def test_every_kind_refuses_in_its_own_words(kind: str, problem: type[Problem]) -> None:
    refusal = _rule(kind, per=["agent"], limit=2).refusal(used=2_000_000, retry_after_ms=1500)
    assert type(refusal) is problem
    assert (refusal.face.http, refusal.retry_after_ms, refusal.nothing_happened) == (429, 1500, True)
    assert refusal.message.startswith("limit some says: ")
    assert "per agent" in refusal.message
    assert (refusal.details["rule"], refusal.details["kind"], refusal.details["limit"]) == ("some", kind, 2)
    assert refusal.details["used"] == (2.0 if kind in ("budget", "cost_rate") else 2_000_000)


def test_rules_that_cannot_be_meant_are_mistakes() -> None:
    with pytest.raises(Misconfigured, match="Two limits are named same"):
        read_rules([LimitRule(name="same", kind="rate", limit=1)] * 2)
    with pytest.raises(Misconfigured, match="lets nothing through"):
        read_rules([LimitRule(name="none", kind="rate", limit=0.5)])
    assert _rule("budget", limit=0.5).limit == 500_000


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(0.0, 0), (-1.0, 0), (1.1, 1_100_000), (0.29, 290_000), (0.0003, 300), (1e-9, 1), (1e300, 10**15)],
)
def test_cost_is_counted_in_millionths_and_never_lost(cost: float, expected: int) -> None:
    assert micros(cost) == expected
