"""The remote decision point: a real one in another process, in every mood."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr

from deputize.core.caller import Caller
from deputize.core.contract import Contract
from deputize.core.decision import Behavior, Question, Verdict, demanded
from deputize.core.errors import PolicyFailed
from deputize.core.settings import Policy
from deputize.execute.egress import Egress
from deputize.govern.policy.authzen import AuthZen
from deputize.govern.policy.engines import consult
from tests.integration.govern import decision_point
from tests.integration.lifecycle.tools import TOOLS

CONTRACTS: dict[str, Contract] = {tool.contract.name: tool.contract for tool in TOOLS}
ANA = Caller(
    tenant="acme", user="ana", agents=("bot",), scopes=frozenset({"lab:write"}), groups=frozenset({"staff"}),
    trust="trusted", issuer="https://idp.example", task="stocktaking", token_id="not-for-others",
)  # fmt: skip
ALLOWED = Verdict(behavior=Behavior.ALLOW, rules=(), digest="sha256:0")

pytestmark = pytest.mark.requirement("GOV-2")


def question(tool: str = "note", *, user: str = "ana", **facts: Any) -> Question:
    contract = CONTRACTS[tool]
    caller = ANA if user == "ana" else Caller(tenant="acme", user=user)
    touches = tuple((each.resource, each.op, str(facts.get("tag", "*"))) for each in contract.resources)
    return Question(
        caller=caller, contract=contract, environment="production", session="s-1", now_ms=1_767_225_600_250,
        facts=facts, touches=touches, cost_micros=12, labels=frozenset({"seen-web"}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    """The base address of a decision point that runs by itself."""
    with subprocess.Popen([sys.executable, decision_point.__file__], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def point(peer: str) -> AsyncIterator[Callable[..., AuthZen]]:
    """Makes a client of the decision point in the mood it is told."""
    egress = Egress(frozenset({"127.0.0.1"}))

    def make(mood: str, *, at: str = peer, seconds: float = 2.0, **more: Any) -> AuthZen:
        return AuthZen(
            Policy(engine="authzen", authzen_url=f"{at}/{mood}/", authzen_seconds=seconds, **more), egress.post
        )

    yield make
    await egress.aclose()


def last_asked(peer: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{peer}/asked", timeout=10) as answer:
        asked: list[dict[str, Any]] = json.load(answer)
    return asked[-1]


async def test_it_is_told_who_what_and_when_as_our_own_rules_are(peer: str, point: Callable[..., AuthZen]) -> None:
    verdict = await point("allow", authzen_token=SecretStr("s3cret")).decide(question(tag="a", count=3))

    assert (verdict.behavior, verdict.source, [rule.id for rule in verdict.rules]) == (
        Behavior.ALLOW, "authzen", ["authzen:decision"],
    )  # fmt: skip
    asked = last_asked(peer)
    assert asked["authorization"] == "Bearer s3cret"
    told = asked["question"]
    assert (told["subject"]["type"], told["subject"]["id"], told["action"]) == ("user", "ana", {"name": "call"})
    assert told["subject"]["properties"] == {
        "tenant": "acme", "issuer": "https://idp.example", "trust": "trusted", "human": False, "groups": ["staff"],
        "scopes": ["lab:write"], "agents": ["bot"], "task": "stocktaking",
    }  # fmt: skip
    assert (told["resource"]["type"], told["resource"]["id"]) == ("tool", "lab.note")
    assert told["resource"]["properties"]["effects"] == "write"
    assert told["resource"]["properties"]["digest"] == CONTRACTS["note"].digest
    assert told["context"] == {
        "environment": "production", "time": "2026-01-01T00:00:00.250+00:00", "session": "s-1",
        "facts": {"tag": "a", "count": 3}, "withheld": [], "cost": 12, "labels": ["seen-web"],
        "touches": [{"resource": "lab.notes", "operation": "create", "scope": "a"}],
    }  # fmt: skip
    assert "not-for-others" not in json.dumps(told)


async def test_what_a_contract_calls_sensitive_never_leaves(peer: str, point: Callable[..., AuthZen]) -> None:
    await point("allow").decide(question("enrol", tag="t", email="ana@secret.example", password="hunter2"))

    told = last_asked(peer)["question"]
    assert told["context"]["facts"] == {"tag": "t"}
    assert told["context"]["withheld"] == ["email", "password"]
    assert "secret.example" not in json.dumps(told)
    assert "hunter2" not in json.dumps(told)


@pytest.mark.parametrize(
    ("mood", "behavior", "rules", "reason"),
    [
        ("deny", Behavior.DENY, ["authzen:403"], "Insufficient privileges. [31m"),
        ("deny-by-rules", Behavior.DENY, ["authzen:no-weekends", "authzen:vip/only"], "closed"),
        ("deny-by-id", Behavior.DENY, ["authzen:7"], "No."),
        ("deny-asking", Behavior.DENY, ["authzen:decision"], ""),
        ("ask", Behavior.ASK, ["authzen:big-amount"], ""),
    ],
)
async def test_its_answer_is_named_by_its_reasons(
    point: Callable[..., AuthZen], mood: str, behavior: Behavior, rules: list[str], reason: str
) -> None:
    verdict = await point(mood).decide(question())

    assert (verdict.behavior, [rule.id for rule in verdict.rules], verdict.reason) == (behavior, rules, reason)
    assert {rule.where for rule in verdict.rules} == {"127.0.0.1"}
    # Where it asks, it is for the usual approvers: it names nobody.
    assert verdict.demands == (demanded(verdict.rules) if behavior is Behavior.ASK else ())


async def test_each_question_is_answered_for_its_own_user(point: Callable[..., AuthZen]) -> None:
    assert (await point("by-user").decide(question())).behavior is Behavior.ALLOW
    assert (await point("by-user").decide(question(user="bo"))).behavior is Behavior.DENY


@pytest.mark.parametrize(
    "mood",
    [
        "garbage", "empty", "twice", "deep", "endless", "no-decision", "text", "number", "list", "odd-context",
        "odd-ask", "odd-rules", "created", "denied-by-status", "broken", "elsewhere",
    ],
)  # fmt: skip
async def test_anything_but_a_well_formed_answer_is_a_no(point: Callable[..., AuthZen], mood: str) -> None:
    with pytest.raises(PolicyFailed, match=r"the decision point 127\.0\.0\.1") as refused:
        await point(mood).decide(question())
    assert refused.value.details == {"decision_point": "127.0.0.1", "rule": "authzen:no-answer"}
    assert refused.value.nothing_happened


async def test_no_answer_in_time_is_a_no(point: Callable[..., AuthZen]) -> None:
    with pytest.raises(PolicyFailed, match="took too long"):
        await point("slow", seconds=0.2).decide(question())


async def test_nobody_listening_is_a_no(point: Callable[..., AuthZen]) -> None:
    with pytest.raises(PolicyFailed, match="cannot be reached"):
        await point("allow", at="http://127.0.0.1:9").decide(question())


async def test_a_host_the_operator_did_not_name_is_a_no() -> None:
    egress = Egress()
    settings = Policy(engine="authzen", authzen_url="https://localhost:9")
    with pytest.raises(PolicyFailed, match="not public"):
        await AuthZen(settings, egress.post).decide(question())
    await egress.aclose()


async def test_the_stricter_of_both_engines_holds(point: Callable[..., AuthZen]) -> None:
    asks = await consult(ALLOWED, question(), point("ask"), "both")
    assert (asks.behavior, asks.source, asks.digest) == (Behavior.ASK, "authzen", "sha256:0")
    with pytest.raises(PolicyFailed):
        await consult(ALLOWED, question(), point("broken"), "both")
