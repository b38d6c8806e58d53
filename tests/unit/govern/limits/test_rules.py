"""Limit rules: which calls they apply to, and which counter a call uses; keys are digests, never names."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import BudgetExhausted, ConcurrencyLimitReached, Problem, RateLimited, RunawayLoop
from deputize.core.settings.limits import LimitRule
from deputize.govern.limits.rules import CompiledLimit, MeteredCall, compile_limits, to_micros
from deputize.govern.limits.session_costs import SessionCosts
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("GOV-8")

ANA = Caller(tenant="acme", user="ana", agents=("bot", "planner"), task="tidy up")


def _make_rule(kind: str = "rate", **more: Any) -> CompiledLimit:
    fields = {"name": "some", "kind": kind, "limit": 5, "seconds": 60, **more}
    return compile_limits([LimitRule.model_validate(fields)])[0]


def _make_request(
    caller: Caller = ANA, *, session: str | None = "s", canonical: bytes = b"{}", **more: Any
) -> MeteredCall:
    return MeteredCall(
        call_id="c", caller=caller, contract=make_contract(**more), session=session, canonical_arguments=canonical
    )


def test_globs_choose_tenants_and_tools() -> None:
    rule = _make_rule(tenants="ac*", tools="crm.*")
    assert rule.is_applicable("acme", "crm.get_user")
    assert not rule.is_applicable("other", "crm.get_user")
    assert not rule.is_applicable("acme", "shop.get_user")
    assert _make_rule().is_applicable("anyone", "any.thing")


BOT_FOR_BEA = replace(ANA, user="bea")
OTHER_BOT = replace(ANA, agents=("other",))
ALONE = replace(ANA, agents=())


@pytest.mark.parametrize(
    ("per", "together", "apart"),
    [
        ((), [_make_request(BOT_FOR_BEA), _make_request(name="delete_user"), _make_request(session=None)], []),
        (
            ("caller",),
            [_make_request(session="t")],
            [_make_request(BOT_FOR_BEA), _make_request(OTHER_BOT), _make_request(ALONE)],
        ),
        (
            ("user",),
            [_make_request(session="t"), _make_request(OTHER_BOT), _make_request(ALONE), _make_request(name="other")],
            [_make_request(BOT_FOR_BEA)],
        ),
        (("agent",), [_make_request(BOT_FOR_BEA)], [_make_request(OTHER_BOT), _make_request(ALONE)]),
        (("tool",), [_make_request(BOT_FOR_BEA), _make_request(version="2.0.0")], [_make_request(name="delete_user")]),
        (
            ("provider",),
            [_make_request(name="delete_user")],
            [_make_request(provider="Globex"), _make_request(external_service="mail")],
        ),
        (
            ("session",),
            [_make_request(name="delete_user")],
            [_make_request(session="t"), _make_request(session=None), _make_request(BOT_FOR_BEA)],
        ),
        (
            ("task",),
            [_make_request(OTHER_BOT)],
            [_make_request(replace(ANA, task="other")), _make_request(BOT_FOR_BEA)],
        ),
        (
            ("caller", "tool"),
            [_make_request(session="t")],
            [_make_request(name="delete_user"), _make_request(BOT_FOR_BEA)],
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else None,
)
def test_each_scope_has_its_own_counter(
    per: tuple[str, ...], together: list[MeteredCall], apart: list[MeteredCall]
) -> None:
    rule = _make_rule(per=per)
    ours = rule.build_key(_make_request())
    assert {rule.build_key(each) for each in together} == {ours}
    keys = [rule.build_key(each) for each in apart]
    assert ours not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("per", [["caller"], ["agent"], ["session"], ["task"]])
def test_delegating_gives_no_second_allowance(per: list[str]) -> None:
    rule = _make_rule(per=per)
    lent_on = [_make_request(replace(ANA, agents=(name, "bot", "planner"))) for name in ("bot", "fresh-1", "fresh-2")]
    assert {rule.build_key(each) for each in lent_on} == {rule.build_key(_make_request())}


def test_delegating_keeps_the_session_cost() -> None:
    tally = SessionCosts(Clock())
    tally.add_cost(ANA, "s", 10**16)
    assert tally.get_cost(replace(ANA, agents=("fresh", *ANA.agents)), "s") == 2**53 - 1
    assert tally.get_cost(replace(ANA, agents=("other",)), "s") == 0


def test_another_tenant_or_rule_never_shares_a_counter() -> None:
    elsewhere = _make_request(replace(ANA, tenant="other"))
    assert _make_rule().build_key(_make_request()) != _make_rule().build_key(elsewhere)
    assert _make_rule().build_key(_make_request()) != _make_rule(name="another").build_key(_make_request())
    assert "{other}" in _make_rule().build_key(elsewhere)


def test_without_an_agent_the_user_is_counted() -> None:
    rule = _make_rule(per=["agent"])
    assert rule.build_key(_make_request(ALONE)) != rule.build_key(_make_request(replace(ALONE, user="bea")))
    named_like_ana = replace(ANA, user="bea", agents=("ana",))
    assert rule.build_key(_make_request(ALONE)) != rule.build_key(_make_request(named_like_ana))


def test_a_repeat_is_the_same_tool_and_arguments_of_one_caller_in_one_session() -> None:
    rule = _make_rule("repeats")
    assert rule.per == ("caller", "session")
    ours = rule.build_key(_make_request(canonical=b'{"a":1}'))
    assert rule.build_key(_make_request(canonical=b'{"a":1}', version="2.0.0")) == ours
    for other in (
        _make_request(canonical=b'{"a":2}'),
        _make_request(canonical=b'{"a":1}', name="delete_user"),
        _make_request(BOT_FOR_BEA, canonical=b'{"a":1}'),
        _make_request(canonical=b'{"a":1}', session="t"),
    ):
        assert rule.build_key(other) != ours
    assert _make_rule("repeats", per=["agent"]).per == ("agent",)


@given(st.lists(st.text(), min_size=2, max_size=2), st.lists(st.text(), min_size=2, max_size=2))
def test_different_callers_have_different_counters(one: list[str], other: list[str]) -> None:
    rule = _make_rule(per=["caller", "session"])
    keys = [
        rule.build_key(_make_request(Caller(tenant="acme", user=user), session=session))
        for user, session in (one, other)
    ]
    assert (keys[0] == keys[1]) is (one == other)


def test_counter_keys_reveal_no_names() -> None:
    key = _make_rule(per=["caller", "session", "task"]).build_key(_make_request(session="secret-session"))
    assert not any(word in key for word in ("ana", "bot", "secret", "tidy"))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("rate", RateLimited),
        ("concurrency", ConcurrencyLimitReached),
        ("budget", BudgetExhausted),
        ("repeats", RunawayLoop),
        ("cost_rate", RunawayLoop),
    ],
)
def test_every_limit_kind_has_its_own_refusal(kind: str, problem: type[Problem]) -> None:
    refusal = _make_rule(kind, per=["agent"], limit=2).build_refusal(usage=2_000_000, retry_after_ms=1500)
    assert type(refusal) is problem
    assert (refusal.spec.http, refusal.retry_after_ms, refusal.nothing_happened) == (429, 1500, True)
    assert refusal.message.startswith("limit some allows ")
    assert "per agent" in refusal.message
    assert (refusal.details["rule"], refusal.details["kind"], refusal.details["limit"]) == ("some", kind, 2)
    assert refusal.details["used"] == (2.0 if kind in ("budget", "cost_rate") else 2_000_000)


def test_limit_rules_that_cannot_work_are_rejected() -> None:
    with pytest.raises(ConfigError, match="Two limits are named same"):
        compile_limits([LimitRule(name="same", kind="rate", limit=1)] * 2)
    with pytest.raises(ConfigError, match="would refuse every call"):
        compile_limits([LimitRule(name="none", kind="rate", limit=0.5)])
    assert _make_rule("budget", limit=0.5).limit == 500_000


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(0.0, 0), (-1.0, 0), (1.1, 1_100_000), (0.29, 290_000), (0.0003, 300), (1e-9, 1), (1e300, 10**15)],
)
def test_cost_is_counted_in_millionths_and_never_lost(cost: float, expected: int) -> None:
    assert to_micros(cost) == expected
