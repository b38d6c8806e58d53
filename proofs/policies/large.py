"""Ten thousand rules over five hundred tools: what a decision costs, and that a slice answers what all rules do."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cedarpy
import orjson

from deputize.core.caller import Caller, standing_of
from deputize.core.contract import Contract
from deputize.core.decision import Question, Verdict
from deputize.govern.policy.cedar import CompiledPolicies, judge
from deputize.govern.policy.decisions import Decisions
from deputize.govern.policy.rules import PolicyFile
from deputize.govern.policy.slices import Slice, Slices
from deputize.govern.policy.world import ACTION, context, uid

PER_TOOL = 20
_SPACES, _SERVERS = 25, 10
_NOON = 1_800_014_400_000
# About no tool in particular: everything, by type, and by whatever tools are in. `slices.py` must forget none of them.
_GLOBAL = """
@id("g-reads") permit (principal, action, resource) when { resource.effects == "read" };
@id("g-agents") forbid (principal, action == Action::"call", resource)
when { context.agents.contains(Agent::"rogue") };
@id("g-is") permit (principal in Group::"admins", action, resource is Tool) unless { context.delegated };
@id("g-is-in") forbid (principal, action, resource is Tool in Namespace::"space3")
when { principal.trust == "untrusted" };
@id("g-space") @decision("ask") forbid (principal, action, resource in Namespace::"space5")
when { context.environment == "production" };
@id("g-server") permit (principal, action, resource in Server::"server2") when { resource.tags.contains("open") };
@id("g-tenant") permit (principal == User::"root", action, resource in Tenant::"acme");
@id("g-itself") permit (principal in Group::"g1", action in [Action::"call"], resource in Tool::"space1.tool1");
@id("g-elsewhere") permit (principal, action, resource in Tenant::"other");
@id("g-fails") forbid (principal in Group::"unlucky", action, resource in Server::"server3")
when { context.facts.amount > 5 };
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Medians in microseconds, of alternating runs."""

    bare: float
    decided: float
    recorded: float
    cached: float
    compile_seconds: float


def rules(tools: int) -> str:
    """For each tool twenty rules of its own, and a few about all of them."""
    lines = [_GLOBAL]
    for number in range(tools):
        name = _name(number)
        for each in range(PER_TOOL):
            effect = "forbid" if each % 5 == 4 else "permit"
            ask = '@decision("ask") ' if each % 7 == 6 else ""
            lines.append(
                f'@id("t{number}-{each}") {ask}{effect} (principal in Group::"g{each % 8}", action == Action::"call", '
                f'resource == Tool::"{name}") when {{ context.facts has amount && context.facts.amount < {each * 10} '
                f'&& context.environment != "development" }};'
            )
    return "\n".join(lines) + "\n"


def compiled(tools: int) -> CompiledPolicies:
    return CompiledPolicies((PolicyFile(path="large.cedar", text=rules(tools)),))


def contract(number: int) -> Contract:
    fields = {
        "namespace": f"space{number % _SPACES}", "name": f"tool{number}", "version": "1.0.0",
        "description": "One of many tools.", "handler": {"target": "tools:tool"}, "input_schema": {"type": "object"},
        "output_schema": {"type": "object"}, "effects": ("read", "write", "destructive")[number % 3], "auth": {},
        "timeout": {}, "idempotency": {}, "observability": {}, "external_service": f"server{number % _SERVERS}",
        "tags": ["open"] if number % 4 == 0 else [],
    }  # fmt: skip
    return Contract.model_validate(fields)


def _name(number: int) -> str:
    return f"space{number % _SPACES}.tool{number}"


def questions(count: int, contracts: Sequence[Contract], dice: random.Random) -> list[Question]:
    """Random callers with random calls; every shape of rule is met by some of them."""
    return [_question(contracts, dice) for _ in range(count)]


def _question(contracts: Sequence[Contract], dice: random.Random) -> Question:
    groups = dice.sample([f"g{n}" for n in range(8)] + ["admins", "unlucky"], dice.randrange(4))
    caller = Caller(
        tenant=dice.choice(["acme"] * 9 + ["other"]),
        user=dice.choice(["ana", "bo", "root"]),
        agents=tuple(dice.sample(["bot", "rogue"], dice.randrange(3))),
        groups=frozenset(groups),
        trust=dice.choice(["untrusted", "standard", "trusted"]),
        issuer="https://issuer.proof",
    )
    return Question(
        caller=replace(caller, standing=standing_of(caller)),
        contract=dice.choice(contracts),
        environment=dice.choice(["development", "staging", "production"]),
        session=None,
        now_ms=_NOON,
        facts={"amount": dice.randrange(200)} if dice.random() < 0.7 else {},
    )


def cost(policies: CompiledPolicies, asked: Sequence[Question], rounds: int, compile_seconds: float) -> Cost:
    """Bare Cedar gets its handles and its context ready-made; ours starts from the question."""
    decisions = Decisions(policies, key=b"k" * 32)
    ready = []
    for question in asked:
        slice_, plain, known = policies.prepare(question)
        ready.append((_request(slice_, plain), slice_.policies, known))
        policies.decide(question)
    bare: list[int] = []
    decided: list[int] = []
    recorded: list[int] = []
    for _ in range(rounds):
        for question, handles in zip(asked, ready, strict=True):
            bare.append(_timed(cedarpy.is_authorized, *handles))
            decided.append(_timed(policies.decide, question))
            recorded.append(_timed(decisions.decide_anew, question))
    for question in asked:
        decisions.decide(question)
    cached = [_timed(decisions.decide, question) for _ in range(rounds) for question in asked]
    micros = [statistics.median(each) / 1000 for each in (bare, decided, recorded, cached)]
    return Cost(
        bare=micros[0], decided=micros[1], recorded=micros[2], cached=micros[3], compile_seconds=compile_seconds
    )


def _request(slice_: Slice, asked: Any) -> dict[str, Any]:
    told = context(asked, slice_.reads.context, slice_.reads.facts)
    return {
        "principal": uid("User", asked.caller["user"]),
        "action": ACTION,
        "resource": uid("Tool", asked.tool["name"]),
        "context": orjson.dumps(told).decode(),
    }


def _timed(function: Callable[..., Any], *arguments: Any) -> int:
    began = time.perf_counter_ns()
    function(*arguments)
    return time.perf_counter_ns() - began


def differences(policies: CompiledPolicies, slices: Slices, asked: Sequence[Question]) -> int:
    """How many questions a slice answers otherwise than all rules together: another answer, rule or failure."""
    whole = Slice(policies.rules)
    found = 0
    for question in asked:
        _, plain, known = policies.prepare(question)
        part = slices.of(plain.tool, plain.caller["tenant"])
        found += _said(judge(part, plain, known)) != _said(judge(whole, plain, known))
    return found


def _said(verdict: Verdict) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return verdict.behavior, tuple(rule.id for rule in verdict.rules), verdict.errors


class Forgetful(Slices):
    """Broken on purpose: it keeps rules about everything and about one tool, none by type or by what tools are in."""

    def _index(self, place: int, scope: Mapping[str, Any]) -> None:
        if scope["op"] in ("All", "=="):
            super()._index(place, scope)
