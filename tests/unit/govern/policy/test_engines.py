"""Two engines give one verdict, never weaker than either."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.core.config_error import ConfigError
from deputize.core.decision import (
    Behavior,
    MatchedRule,
    PolicyRequest,
    Verdict,
    VerdictSource,
    build_approval_requirements,
)
from deputize.core.errors import PolicyFailed
from deputize.core.settings import PolicySettings
from deputize.govern.policy.authzen import AuthZenClient
from deputize.govern.policy.engines import Engine, combine_verdicts, consult_engines
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("GOV-2")

ANSWERS = st.sampled_from([Behavior.ALLOW, Behavior.ASK, Behavior.DENY])
QUESTION = PolicyRequest(
    caller=Caller(tenant="acme", user="ana"), contract=TOOLS[0].contract, environment="production", session=None,
    now_ms=0, facts={},
)  # fmt: skip


def verdict_strategy(source: VerdictSource) -> st.SearchStrategy[Verdict]:
    rules = st.lists(st.sampled_from("abcd"), max_size=3, unique=True)
    return st.builds(
        lambda behavior, ids: Verdict(
            behavior=behavior,
            rules=tuple(MatchedRule(id=each) for each in ids),
            digest=f"{source}-digest",
            source=source,
            requirements=build_approval_requirements(MatchedRule(id=each) for each in ids)
            if behavior is Behavior.ASK
            else (),
        ),
        ANSWERS,
        rules,
    )


class FixedEngine:
    def __init__(self, verdict: Verdict) -> None:
        self.call_count = 0
        self._verdict = verdict

    async def decide(self, question: PolicyRequest) -> Verdict:
        self.call_count += 1
        return self._verdict


@given(verdict_strategy("cedar"), verdict_strategy("authzen"))
def test_combined_verdicts_are_the_stricter_with_all_rules(cedar: Verdict, remote: Verdict) -> None:
    both = combine_verdicts(cedar, remote)

    assert both.behavior.strictness == max(cedar.behavior.strictness, remote.behavior.strictness)
    ids = [rule.id for rule in both.rules]
    assert sorted(ids) == sorted({rule.id for rule in (*cedar.rules, *remote.rules)})
    assert both.digest == "cedar-digest"
    assert both.source == ("authzen" if remote.behavior.strictness > cedar.behavior.strictness else "cedar")
    asking = (
        {each.rule for each in (*cedar.requirements, *remote.requirements)} if both.behavior is Behavior.ASK else set()
    )
    assert sorted(each.rule for each in both.requirements) == sorted(asking)


@given(verdict_strategy("cedar"), verdict_strategy("authzen"), st.sampled_from(["cedar", "authzen", "both"]))
def test_the_setting_selects_the_engine(cedar: Verdict, remote: Verdict, engine: Engine) -> None:
    point = FixedEngine(remote)
    answer = asyncio.run(consult_engines(cedar, QUESTION, point, engine))

    match engine:
        case "cedar":
            assert (answer, point.call_count) == (cedar, 0)
        case "authzen":
            assert (answer, point.call_count) == (remote, 1)
        case "both":
            assert answer.behavior.strictness >= cedar.behavior.strictness
            # A no of our own is final, so nobody else hears of the call.
            assert point.call_count == (cedar.behavior is not Behavior.DENY)


@pytest.mark.parametrize("engine", ["authzen", "both"])
def test_a_missing_decision_point_denies(engine: Engine) -> None:
    allowed = Verdict(behavior=Behavior.ALLOW, rules=(), digest="")
    with pytest.raises(PolicyFailed):
        asyncio.run(consult_engines(allowed, QUESTION, None, engine))


def test_an_engine_without_a_url_is_a_settings_error() -> None:
    async def post(*_: object, **__: object) -> bytes:
        raise AssertionError("nothing is asked")

    with pytest.raises(ConfigError, match="set authzen_url under"):
        AuthZenClient(PolicySettings(engine="both"), post)
