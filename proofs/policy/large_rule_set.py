"""Ten thousand rules over five hundred tools: what a decision costs, and that a slice answers what all rules do."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cedarpy
import orjson

from deputize.core.caller import Caller, compute_decision_cache_key
from deputize.core.contract.contract import Contract
from deputize.core.decision import PolicyRequest, Verdict
from deputize.govern.policy.cedar import CompiledPolicies, evaluate_slice
from deputize.govern.policy.cedar_schema import ACTION, build_context, make_uid
from deputize.govern.policy.decision_cache import DecisionCache
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.govern.policy.slices import PolicySlice, SliceIndex

PER_TOOL = 20
_SPACES, _SERVERS = 25, 10
_NOON = 1_800_014_400_000
# About no tool in particular: everything, by type, and by whatever tools are in. `slices.py` must forget none of them.
_GLOBAL_RULES = """
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
class DecisionCost:
    """Medians in microseconds, of alternating runs."""

    bare_us: float
    decide_us: float
    record_us: float
    cached_us: float
    compile_seconds: float


def render_rules(tools: int) -> str:
    """For each tool twenty rules of its own, and a few about all of them."""
    lines = [_GLOBAL_RULES]
    for number in range(tools):
        name = _build_name(number)
        for each in range(PER_TOOL):
            effect = "forbid" if each % 5 == 4 else "permit"
            ask = '@decision("ask") ' if each % 7 == 6 else ""
            lines.append(
                f'@id("t{number}-{each}") {ask}{effect} (principal in Group::"g{each % 8}", action == Action::"call", '
                f'resource == Tool::"{name}") when {{ context.facts has amount && context.facts.amount < {each * 10} '
                f'&& context.environment != "development" }};'
            )
    return "\n".join(lines) + "\n"


def compile_rules(tools: int) -> CompiledPolicies:
    return CompiledPolicies((PolicyFile(path="large.cedar", text=render_rules(tools)),))


def build_contract(number: int) -> Contract:
    fields = {
        "namespace": f"space{number % _SPACES}", "name": f"tool{number}", "version": "1.0.0",
        "description": "One of many tools.", "handler": {"target": "tools:tool"}, "input_schema": {"type": "object"},
        "output_schema": {"type": "object"}, "effects": ("read", "write", "destructive")[number % 3], "auth": {},
        "timeout": {}, "idempotency": {}, "observability": {}, "external_service": f"server{number % _SERVERS}",
        "tags": ["open"] if number % 4 == 0 else [],
    }  # fmt: skip
    return Contract.model_validate(fields)


def _build_name(number: int) -> str:
    return f"space{number % _SPACES}.tool{number}"


def build_questions(count: int, contracts: Sequence[Contract], rng: random.Random) -> list[PolicyRequest]:
    """Random callers with random calls; every shape of rule is met by some of them."""
    return [_build_question(contracts, rng) for _ in range(count)]


def _build_question(contracts: Sequence[Contract], rng: random.Random) -> PolicyRequest:
    groups = rng.sample([f"g{n}" for n in range(8)] + ["admins", "unlucky"], rng.randrange(4))
    caller = Caller(
        tenant=rng.choice(["acme"] * 9 + ["other"]),
        user=rng.choice(["ana", "bo", "root"]),
        agents=tuple(rng.sample(["bot", "rogue"], rng.randrange(3))),
        groups=frozenset(groups),
        trust=rng.choice(["untrusted", "standard", "trusted"]),
        issuer="https://issuer.proof",
    )
    return PolicyRequest(
        caller=replace(caller, decision_cache_key=compute_decision_cache_key(caller)),
        contract=rng.choice(contracts),
        environment=rng.choice(["development", "staging", "production"]),
        session=None,
        now_ms=_NOON,
        facts={"amount": rng.randrange(200)} if rng.random() < 0.7 else {},
    )


def measure_cost(
    policies: CompiledPolicies, question_list: Sequence[PolicyRequest], rounds: int, compile_seconds: float
) -> DecisionCost:
    """Bare Cedar gets its handles and its context ready-made; ours starts from the question."""
    decisions = DecisionCache(policies, key=b"k" * 32)
    requests = []
    for question in question_list:
        slice_, plain_question, entities = policies.prepare_query(question)
        requests.append((_build_request(slice_, plain_question), slice_.policies, entities))
        policies.decide(question)
    bare_times: list[int] = []
    decide_times: list[int] = []
    record_times: list[int] = []
    for _ in range(rounds):
        for question, request in zip(question_list, requests, strict=True):
            bare_times.append(_time_call(cedarpy.is_authorized, *request))
            decide_times.append(_time_call(policies.decide, question))
            record_times.append(_time_call(decisions.decide_uncached, question))
    for question in question_list:
        decisions.decide(question)
    cached_times = [_time_call(decisions.decide, question) for _ in range(rounds) for question in question_list]
    micros = [statistics.median(each) / 1000 for each in (bare_times, decide_times, record_times, cached_times)]
    return DecisionCost(
        bare_us=micros[0],
        decide_us=micros[1],
        record_us=micros[2],
        cached_us=micros[3],
        compile_seconds=compile_seconds,
    )


def _build_request(slice_: PolicySlice, plain_question: Any) -> dict[str, Any]:
    request_context = build_context(plain_question, slice_.reads.context, slice_.reads.facts)
    return {
        "principal": make_uid("User", plain_question.caller["user"]),
        "action": ACTION,
        "resource": make_uid("Tool", plain_question.tool["name"]),
        "context": orjson.dumps(request_context).decode(),
    }


def _time_call(function: Callable[..., Any], *arguments: Any) -> int:
    began = time.perf_counter_ns()
    function(*arguments)
    return time.perf_counter_ns() - began


def count_differences(policies: CompiledPolicies, slices: SliceIndex, question_list: Sequence[PolicyRequest]) -> int:
    """How many questions a slice answers differently from all rules together: another answer, rule or failure."""
    whole = PolicySlice(policies.rules)
    difference_count = 0
    for question in question_list:
        _, plain_question, entities = policies.prepare_query(question)
        part = slices.get_slice(plain_question.tool, plain_question.caller["tenant"])
        difference_count += _summarize_verdict(
            evaluate_slice(part, plain_question, entities, may_take_long=True)
        ) != _summarize_verdict(evaluate_slice(whole, plain_question, entities, may_take_long=True))
    return difference_count


def _summarize_verdict(verdict: Verdict) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return verdict.behavior, tuple(rule.id for rule in verdict.rules), verdict.errors


class IncompleteSlices(SliceIndex):
    """Broken on purpose: it keeps rules about everything and about one tool, none by type or by what tools are in."""

    def _index_rule(self, place: int, scope: Mapping[str, Any]) -> None:
        if scope["op"] in ("All", "=="):
            super()._index_rule(place, scope)
