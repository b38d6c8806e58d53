"""Questions to ask of policies: a caller, a tool and the moment, each with what one test cares about."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from deputize.core.caller import Caller, compute_decision_cache_key
from deputize.core.contract.contract import Contract
from deputize.core.decision import Environment, PolicyRequest
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.policy_parser import PolicyFile

# A Tuesday, 22:13:20 in UTC.
MOMENT = 1_700_000_000_000
ANYTHING = 'permit (principal, action == Action::"call", resource);'


def make_tool(name: str = "crm.get_user", *, effects: str = "read", **more: Any) -> Contract:
    namespace, _, last = name.partition(".")
    fields = {
        "namespace": namespace, "name": last, "version": "1.0.0", "description": "Does what its name says.",
        "handler": {"target": f"{namespace}:{last}"}, "input_schema": {"type": "object"},
        "output_schema": {"type": "object"}, "effects": effects, "auth": {}, "timeout": {}, "idempotency": {},
        "observability": {},
    }  # fmt: skip
    return Contract.model_validate(fields | more)


def make_caller(user: str = "ana", **more: Any) -> Caller:
    made = Caller(**({"tenant": "acme", "user": user, "issuer": "https://login.example"} | more))
    return replace(made, decision_cache_key=compute_decision_cache_key(made))


def make_question(
    who: Caller | None = None,
    what: Contract | None = None,
    *,
    environment: Environment = "development",
    facts: Mapping[str, Any] | None = None,
    **more: Any,
) -> PolicyRequest:
    fields: dict[str, Any] = {"session": None, "now_ms": MOMENT} | more
    return PolicyRequest(
        caller=who or make_caller(), contract=what or make_tool(), environment=environment, facts=facts or {}, **fields
    )


def compile_policies(*texts: str) -> CompiledPolicies:
    return CompiledPolicies(make_files(*texts))


def make_files(*texts: str) -> tuple[PolicyFile, ...]:
    return tuple(PolicyFile(path=f"{number}.cedar", text=text) for number, text in enumerate(texts, start=1))


def rule_ids(rules: Iterable[Any]) -> list[str]:
    return [rule.id for rule in rules]
