"""Recorded calls and a draft: what the gateway says would change, against what plain Python says would.

The draft is written twice, as Cedar and as a function below; the function knows nothing of records, slices or pages.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson

from proofs.kit.gateway import GatewayHandle, put_policies, start_gateway
from proofs.kit.wire import Line
from proofs.kit.world import World
from proofs.policies.change import Site

_CONNECTIONS = 12
IN_FORCE = """
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
FAILS = """
@id("all") permit (principal, action, resource);
@id("overflows") forbid (principal, action, resource == Tool::"policy.pay")
when { context.facts has amount && context.facts.amount * 9223372036854775807 > 0 };
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    tool: str
    user: str
    agent: str
    amount: int
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    calls: int
    seconds: float
    changed: int
    untold: int
    wrong: int


def _before(made: Made) -> str:
    return "deny" if made.tool == "policy.pay" and made.amount > 900 else "allow"


def _after(made: Made) -> str:
    """What the draft says; `send` is decided by a fact that is not written down."""
    if made.tool == "policy.send":
        return "unknown"
    if made.tool == "policy.look":
        return "deny" if made.agent == "bot-2" else "allow"
    if made.amount > 500 and made.user != "user-1":
        return "deny"
    return "ask" if made.amount > 300 else "allow"


async def open_gateway(world: World, site: Site) -> GatewayHandle:
    for gateway in site.gateways:
        await gateway.child.stop()
    return await start_gateway(world, site.dsn, site.issuer, name="past", tools="policy.py", policies=IN_FORCE)


async def backtest(world: World, gateway: GatewayHandle, count: int) -> Past:
    began = gateway.issuer.clock.now().isoformat()
    made = await _make_calls(gateway, count)
    world.say(f"{len(made)} calls recorded; trying the draft on them")
    line = Line.to(gateway.url, token=gateway.issuer.token("admin", scopes=("deputize:admin",)))
    asked = {"files": [{"path": "draft.cedar", "text": DRAFT}], "since": began}
    started = time.monotonic()
    answer = await line.post("/v1/policies/backtest", asked)
    seconds = time.monotonic() - started
    line.close()
    result = orjson.loads(answer.body.splitlines()[-1])["result"]
    wrong = sum(each.answer != _before(each) for each in made)
    wrong += _mismatches(Counter(_key(each) for each in made), _told(result))
    return Past(
        calls=result["calls"], seconds=seconds, changed=result["changed"], untold=result["untold"],
        wrong=wrong + abs(result["calls"] - len(made)) + result["unrecorded"],
    )  # fmt: skip


Key = tuple[str, str, str, str, str]


def _key(made: Made) -> Key | None:
    before, after = _before(made), _after(made)
    return None if before == after else (made.tool, made.user, made.agent, before, after)


def _told(result: dict[str, Any]) -> Counter[Key | None]:
    """The gateway's groups by the same key; those it cannot tell about among them."""
    found: Counter[Key | None] = Counter()
    for each in result["changes"]:
        who = each["tool"], each["user"], next(iter(each["agents"]), "")
        found[(*who, each["before"]["behavior"], each["after"]["behavior"])] += each["calls"]
    for each in result["cannot_tell"]:
        who = each["tool"], each["user"], next(iter(each["agents"]), "")
        found[(*who, "allow", "unknown")] += each["calls"]
    return found


def _mismatches(expected: Counter[Key | None], told: Counter[Key | None]) -> int:
    del expected[None]
    return sum(abs(expected[key] - told[key]) for key in expected | told)


async def _make_calls(gateway: GatewayHandle, count: int) -> list[Made]:
    dice = random.Random(11)
    waiting = iter(range(count))
    tokens = {
        (user, agent): gateway.issuer.token(user, agent=agent or None, scopes=("proof:write",))
        for user, agent in itertools.product((f"user-{n}" for n in range(8)), ("", "bot-1", "bot-2"))
    }
    made: list[Made] = []

    async def one_after_another() -> None:
        line = Line.to(gateway.url)
        for _ in waiting:
            (user, agent), token = dice.choice(list(tokens.items()))
            tool = dice.choices(("policy.pay", "policy.look", "policy.send"), (6, 3, 1))[0]
            amount = dice.randrange(1, 1200)
            given: dict[str, Any] = {"word": "w"} if tool == "policy.look" else {"amount": amount}
            given |= {"iban": f"DE{amount}"} if tool == "policy.send" else {}
            asked = orjson.dumps({"tool": tool, "arguments": given})
            answer = await line.send("POST", "/v1/calls", headers={"authorization": f"Bearer {token}"}, body=asked)
            said = {200: "allow", 403: "deny"}.get(answer.status, str(answer.status))
            made.append(Made(tool=tool, user=user, agent=agent, amount=amount, answer=said))
        line.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(one_after_another())
    return made


async def failures_deny(gateway: GatewayHandle, count: int) -> int:
    """Calls that a failing rule would have to let through, although another permits them: how many were not denied."""
    admin = gateway.issuer.token("admin", scopes=("deputize:admin",))
    await put_policies(gateway.url, admin, FAILS)
    line = Line.to(gateway.url, token=gateway.issuer.token("user-1"))
    let_through = 0
    for amount in range(2, count + 2):
        answer = await line.post("/v1/calls", {"tool": "policy.pay", "arguments": {"amount": amount}})
        let_through += answer.status == 200 or answer.json()["error"]["slug"] != "policy-failed"
    line.close()
    return let_through
