"""Two engines, one answer: never a weaker one than either gave."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.core.decision import Behavior, Question, Rule, Source, Verdict, demanded
from deputize.core.errors import PolicyFailed
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Policy
from deputize.govern.policy.authzen import AuthZen
from deputize.govern.policy.engines import Engine, combined, consult
from tests.integration.lifecycle.tools import TOOLS

pytestmark = pytest.mark.requirement("GOV-2")

ANSWERS = st.sampled_from([Behavior.ALLOW, Behavior.ASK, Behavior.DENY])
QUESTION = Question(
    caller=Caller(tenant="acme", user="ana"), contract=TOOLS[0].contract, environment="production", session=None,
    now_ms=0, facts={},
)  # fmt: skip


def verdicts(source: Source) -> st.SearchStrategy[Verdict]:
    rules = st.lists(st.sampled_from("abcd"), max_size=3, unique=True)
    return st.builds(
        lambda behavior, ids: Verdict(
            behavior=behavior,
            rules=tuple(Rule(id=each) for each in ids),
            digest=f"{source}-digest",
            source=source,
            demands=demanded(Rule(id=each) for each in ids) if behavior is Behavior.ASK else (),
        ),
        ANSWERS,
        rules,
    )


class Answering:
    def __init__(self, verdict: Verdict) -> None:
        self.asked = 0
        self._verdict = verdict

    async def decide(self, question: Question) -> Verdict:
        self.asked += 1
        return self._verdict


@given(verdicts("cedar"), verdicts("authzen"))
def test_together_they_are_as_strict_as_the_stricter_with_the_rules_of_both(cedar: Verdict, remote: Verdict) -> None:
    both = combined(cedar, remote)

    assert both.behavior.strictness == max(cedar.behavior.strictness, remote.behavior.strictness)
    ids = [rule.id for rule in both.rules]
    assert sorted(ids) == sorted({rule.id for rule in (*cedar.rules, *remote.rules)})
    assert both.digest == "cedar-digest"
    assert both.source == ("authzen" if remote.behavior.strictness > cedar.behavior.strictness else "cedar")
    asking = {each.rule for each in (*cedar.demands, *remote.demands)} if both.behavior is Behavior.ASK else set()
    assert sorted(each.rule for each in both.demands) == sorted(asking)


@given(verdicts("cedar"), verdicts("authzen"), st.sampled_from(["cedar", "authzen", "both"]))
def test_who_is_asked_is_what_the_setting_says(cedar: Verdict, remote: Verdict, engine: Engine) -> None:
    point = Answering(remote)
    answer = asyncio.run(consult(cedar, QUESTION, point, engine))

    match engine:
        case "cedar":
            assert (answer, point.asked) == (cedar, 0)
        case "authzen":
            assert (answer, point.asked) == (remote, 1)
        case "both":
            assert answer.behavior.strictness >= cedar.behavior.strictness
            # A no of our own is final, so nobody else hears of the call.
            assert point.asked == (cedar.behavior is not Behavior.DENY)


@pytest.mark.parametrize("engine", ["authzen", "both"])
def test_a_decision_point_that_is_not_there_is_a_no(engine: Engine) -> None:
    allowed = Verdict(behavior=Behavior.ALLOW, rules=(), digest="")
    with pytest.raises(PolicyFailed):
        asyncio.run(consult(allowed, QUESTION, None, engine))


def test_an_engine_without_an_address_is_a_mistake_of_the_settings() -> None:
    async def post(*_: object, **__: object) -> bytes:
        raise AssertionError("nothing is asked")

    with pytest.raises(Misconfigured, match="put authzen_url under"):
        AuthZen(Policy(engine="both"), post)
