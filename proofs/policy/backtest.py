"""Recorded calls and a draft: what the gateway says would change, against what plain Python says would.

The draft is written twice, as Cedar and as a function below; the function knows nothing of records, slices or pages.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from proofs.kit.gateway import GatewayHandle, put_policies, start_gateway
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.sandbox import Sandbox
from proofs.policy.changes_under_load import Testbed

_CONNECTIONS = 12
ACTIVE_POLICIES = """
@id("all") permit (principal, action, resource);
@id("too-much") forbid (principal, action, resource == Tool::"policy.pay")
when { context.facts has amount && context.facts.amount > 900 };
"""
DRAFT = """
@id("all") permit (principal, action, resource);
@id("too-much") forbid (principal, action, resource == Tool::"policy.pay")
when { context.facts has amount && context.facts.amount > 500 }
unless { principal == User::"user-1" };
@id("large-asks") @decision("ask") forbid (principal, action, resource == Tool::"policy.pay")
when { context.facts has amount && context.facts.amount > 300 };
@id("bots-do-not-look") forbid (principal, action, resource == Tool::"policy.look")
when { context.agents.contains(Agent::"bot-2") };
@id("abroad") forbid (principal, action, resource == Tool::"policy.send")
when { context.facts has iban && !(context.facts.iban like "DE*") };
"""
FAILING_POLICIES = """
@id("all") permit (principal, action, resource);
@id("overflows") forbid (principal, action, resource == Tool::"policy.pay")
when { context.facts has amount && context.facts.amount * 9223372036854775807 > 0 };
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeCall:
    tool: str
    user: str
    agent: str
    amount: int
    decision: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BacktestResult:
    call_count: int
    seconds: float
    changed_count: int
    undecidable_count: int
    wrong_count: int


def _decide_before(call: MadeCall) -> str:
    return "deny" if call.tool == "policy.pay" and call.amount > 900 else "allow"


def _decide_after(call: MadeCall) -> str:
    """What the draft says; `send` is decided by a fact that is not written down."""
    if call.tool == "policy.send":
        return "unknown"
    if call.tool == "policy.look":
        return "deny" if call.agent == "bot-2" else "allow"
    if call.amount > 500 and call.user != "user-1":
        return "deny"
    return "ask" if call.amount > 300 else "allow"


async def start_backtest_gateway(sandbox: Sandbox, testbed: Testbed) -> GatewayHandle:
    for gateway in testbed.gateways:
        await gateway.child.stop()
    return await start_gateway(
        sandbox, testbed.dsn, testbed.issuer, name="past", tools="policy.py", policies=ACTIVE_POLICIES
    )


async def run_backtest(sandbox: Sandbox, gateway: GatewayHandle, count: int) -> BacktestResult:
    since = gateway.issuer.clock.now().isoformat()
    calls = await _make_calls(gateway, count)
    sandbox.log(f"{len(calls)} calls recorded; trying the draft on them")
    http = HttpConnection.for_url(gateway.url, token=gateway.issuer.issue_token("admin", scopes=("deputize:admin",)))
    request = {"files": [{"path": "draft.cedar", "text": DRAFT}], "since": since}
    request_started_at = time.monotonic()
    answer = await http.post("/v1/policies/backtest", request)
    seconds = time.monotonic() - request_started_at
    http.close()
    return judge_backtest(calls, orjson.loads(answer.body.splitlines()[-1])["result"], seconds)


def judge_backtest(calls: Sequence[MadeCall], result: Mapping[str, Any], seconds: float) -> BacktestResult:
    """Compare the gateway's report with what plain Python says of the same calls, and their answers, too."""
    wrong_count = sum(each.decision != _decide_before(each) for each in calls)
    wrong_count += _count_mismatches(Counter(_build_key(each) for each in calls), _count_reported_changes(result))
    return BacktestResult(
        call_count=result["calls"],
        seconds=seconds,
        changed_count=result["changed"],
        undecidable_count=result["undetermined"],
        wrong_count=wrong_count + abs(result["calls"] - len(calls)) + result["unrecorded"],
    )


Key = tuple[str, str, str, str, str]


def _build_key(call: MadeCall) -> Key | None:
    before, after = _decide_before(call), _decide_after(call)
    return None if before == after else (call.tool, call.user, call.agent, before, after)


def _count_reported_changes(result: Mapping[str, Any]) -> Counter[Key | None]:
    """The gateway's groups by the same key; those it cannot tell about among them."""
    counts: Counter[Key | None] = Counter()
    for each in result["changes"]:
        who = each["tool"], each["user"], next(iter(each["agents"]), "")
        counts[(*who, each["before"]["behavior"], each["after"]["behavior"])] += each["calls"]
    for each in result["cannot_tell"]:
        who = each["tool"], each["user"], next(iter(each["agents"]), "")
        counts[(*who, "allow", "unknown")] += each["calls"]
    return counts


def _count_mismatches(expected_counts: Counter[Key | None], reported_counts: Counter[Key | None]) -> int:
    del expected_counts[None]
    return sum(abs(expected_counts[key] - reported_counts[key]) for key in expected_counts | reported_counts)


async def _make_calls(gateway: GatewayHandle, count: int) -> list[MadeCall]:
    rng = random.Random(11)
    pending = iter(range(count))
    tokens = {
        (user, agent): gateway.issuer.issue_token(user, agent=agent or None, scopes=("proof:write",))
        for user, agent in itertools.product((f"user-{n}" for n in range(8)), ("", "bot-1", "bot-2"))
    }
    calls: list[MadeCall] = []

    async def run_lane() -> None:
        http = HttpConnection.for_url(gateway.url)
        for _ in pending:
            (user, agent), token = rng.choice(list(tokens.items()))
            tool = rng.choices(("policy.pay", "policy.look", "policy.send"), (6, 3, 1))[0]
            amount = rng.randrange(1, 1200)
            arguments: dict[str, Any] = {"word": "w"} if tool == "policy.look" else {"amount": amount}
            arguments |= {"iban": f"DE{amount}"} if tool == "policy.send" else {}
            request = orjson.dumps({"tool": tool, "arguments": arguments})
            answer = await http.send("POST", "/v1/calls", headers={"authorization": f"Bearer {token}"}, body=request)
            decision = {200: "allow", 403: "deny"}.get(answer.status, str(answer.status))
            calls.append(MadeCall(tool=tool, user=user, agent=agent, amount=amount, decision=decision))
        http.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(run_lane())
    return calls


async def count_failures_let_through(gateway: GatewayHandle, count: int) -> int:
    """Calls that a failing rule would have to let through, although another permits them: how many were not denied."""
    admin = gateway.issuer.issue_token("admin", scopes=("deputize:admin",))
    await put_policies(gateway.url, admin, FAILING_POLICIES)
    http = HttpConnection.for_url(gateway.url, token=gateway.issuer.issue_token("user-1"))
    let_through = 0
    for amount in range(2, count + 2):
        answer = await http.post("/v1/calls", {"tool": "policy.pay", "arguments": {"amount": amount}})
        let_through += is_let_through(answer)
    http.close()
    return let_through


def is_let_through(answer: HttpResponse) -> bool:
    """Tell whether a call went on although a rule failed, or was refused without saying so."""
    return answer.status == 200 or answer.json()["error"]["slug"] != "policy-failed"
