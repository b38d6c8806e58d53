"""The external decision point, as a real process that answers well, badly, late or not at all."""

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
from deputize.core.contract.contract import Contract
from deputize.core.decision import Behavior, PolicyRequest, Verdict, build_approval_requirements
from deputize.core.errors import PolicyFailed
from deputize.core.settings import PolicySettings
from deputize.execute.egress import Egress
from deputize.govern.policy.authzen import AuthZenClient
from deputize.govern.policy.engines import consult_engines
from tests.support import authzen_server
from tests.support.scripted_tools import TOOLS

CONTRACTS: dict[str, Contract] = {tool.contract.name: tool.contract for tool in TOOLS}
ANA = Caller(
    tenant="acme", user="ana", agents=("bot",), scopes=frozenset({"lab:write"}), groups=frozenset({"staff"}),
    trust="trusted", issuer="https://idp.example", task="stocktaking", token_id="not-for-others",
)  # fmt: skip
ALLOW_VERDICT = Verdict(behavior=Behavior.ALLOW, rules=(), digest="sha256:0")

pytestmark = pytest.mark.requirement("GOV-2")


def make_question(tool: str = "note", *, user: str = "ana", **facts: Any) -> PolicyRequest:
    contract = CONTRACTS[tool]
    caller = ANA if user == "ana" else Caller(tenant="acme", user=user)
    touches = tuple((each.resource, each.op, str(facts.get("tag", "*"))) for each in contract.resources)
    return PolicyRequest(
        caller=caller, contract=contract, environment="production", session="s-1", now_ms=1_767_225_600_250,
        facts=facts, side_effects=touches, cost_micros=12, labels=frozenset({"seen-web"}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def authzen_url() -> Iterator[str]:
    """Run a decision point as a process of its own, and return its base URL."""
    with subprocess.Popen([sys.executable, authzen_server.__file__], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def make_client(authzen_url: str) -> AsyncIterator[Callable[..., AuthZenClient]]:
    """Make a client of the decision point in one of its modes."""
    egress = Egress(frozenset({"127.0.0.1"}))

    def make(mood: str, *, at: str = authzen_url, seconds: float = 30.0, **more: Any) -> AuthZenClient:
        return AuthZenClient(
            PolicySettings(engine="authzen", authzen_url=f"{at}/{mood}/", authzen_seconds=seconds, **more), egress.post
        )

    yield make
    await egress.aclose()


def fetch_last_request(peer: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{peer}/asked", timeout=60) as answer:
        asked: list[dict[str, Any]] = json.load(answer)
    return asked[-1]


async def test_it_receives_the_same_subject_action_and_context_as_our_policies(
    authzen_url: str, make_client: Callable[..., AuthZenClient]
) -> None:
    verdict = await make_client("allow", authzen_token=SecretStr("s3cret")).decide(make_question(tag="a", count=3))

    assert (verdict.behavior, verdict.source, [rule.id for rule in verdict.rules]) == (
        Behavior.ALLOW, "authzen", ["authzen:decision"],
    )  # fmt: skip
    asked = fetch_last_request(authzen_url)
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


async def test_sensitive_arguments_are_never_sent(authzen_url: str, make_client: Callable[..., AuthZenClient]) -> None:
    await make_client("allow").decide(make_question("enrol", tag="t", email="ana@secret.example", password="hunter2"))

    told = fetch_last_request(authzen_url)["question"]
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
async def test_rule_ids_come_from_the_reasons_in_the_response(
    make_client: Callable[..., AuthZenClient], mood: str, behavior: Behavior, rules: list[str], reason: str
) -> None:
    verdict = await make_client(mood).decide(make_question())

    assert (verdict.behavior, [rule.id for rule in verdict.rules], verdict.reason) == (behavior, rules, reason)
    assert {rule.where for rule in verdict.rules} == {"127.0.0.1"}
    # It names no approvers, so its approvals go to the default groups.
    assert verdict.requirements == (build_approval_requirements(verdict.rules) if behavior is Behavior.ASK else ())


@pytest.mark.parametrize(
    ("mood", "behavior"),
    [("ask-obliged", Behavior.ASK), ("log-obliged", Behavior.ALLOW), ("deny-obliged", Behavior.DENY)],
)
async def test_what_an_answer_obliges_to_is_done(
    make_client: Callable[..., AuthZenClient], mood: str, behavior: Behavior
) -> None:
    verdict = await make_client(mood).decide(make_question())

    assert verdict.behavior is behavior
    assert bool(verdict.requirements) == (behavior is Behavior.ASK)


async def test_what_cannot_be_done_is_named(make_client: Callable[..., AuthZenClient]) -> None:
    with pytest.raises(PolicyFailed, match="cannot do: mask"):
        await make_client("mask-obliged").decide(make_question())


async def test_each_request_gets_the_answer_for_its_own_user(make_client: Callable[..., AuthZenClient]) -> None:
    assert (await make_client("by-user").decide(make_question())).behavior is Behavior.ALLOW
    assert (await make_client("by-user").decide(make_question(user="bo"))).behavior is Behavior.DENY


@pytest.mark.parametrize(
    "mood",
    [
        "garbage", "empty", "twice", "deep", "endless", "no-decision", "text", "number", "list", "odd-context",
        "odd-ask", "odd-rules", "odd-obligations", "odd-obligation",
        "ask-somebody-obliged",
        "number-obligation", "mask-obliged", "created", "denied-by-status", "broken", "elsewhere",
    ],
)  # fmt: skip
async def test_a_malformed_response_denies(make_client: Callable[..., AuthZenClient], mood: str) -> None:
    with pytest.raises(PolicyFailed, match=r"the decision point 127\.0\.0\.1") as refused:
        await make_client(mood).decide(make_question())
    assert refused.value.details == {"decision_point": "127.0.0.1", "rule": "authzen:no-answer"}
    assert refused.value.nothing_happened


async def test_a_timeout_denies(make_client: Callable[..., AuthZenClient]) -> None:
    with pytest.raises(PolicyFailed, match="took too long"):
        await make_client("slow", seconds=0.2).decide(make_question())


async def test_an_unreachable_decision_point_denies(make_client: Callable[..., AuthZenClient]) -> None:
    with pytest.raises(PolicyFailed, match="cannot be reached"):
        await make_client("allow", at="http://127.0.0.1:9").decide(make_question())


async def test_a_host_outside_the_settings_denies() -> None:
    egress = Egress()
    settings = PolicySettings(engine="authzen", authzen_url="https://localhost:9")
    with pytest.raises(PolicyFailed, match="not public"):
        await AuthZenClient(settings, egress.post).decide(make_question())
    await egress.aclose()


async def test_the_stricter_of_both_engines_decides(make_client: Callable[..., AuthZenClient]) -> None:
    asks = await consult_engines(ALLOW_VERDICT, make_question(), make_client("ask"), "both")
    assert (asks.behavior, asks.source, asks.digest) == (Behavior.ASK, "authzen", "sha256:0")
    with pytest.raises(PolicyFailed):
        await consult_engines(ALLOW_VERDICT, make_question(), make_client("broken"), "both")
