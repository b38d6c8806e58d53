"""The world as policies see it: the Cedar schema, and the entities and context one question becomes.

Everything a rule may read is described here once, in plain words first (`Asked`), because the same words are what a
decision's record keeps and what a replay starts from. The schema below and those words must agree; a test holds them.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import cedarpy

from deputize.core.caller import Caller
from deputize.core.contract import Contract
from deputize.core.decision import Question
from deputize.core.frozen import frozen

FactType = Literal["Long", "String", "Bool", "Set<String>"]
FactTypes = Mapping[str, FactType]

SCHEMA = """
entity Tenant;
entity Group in [Tenant];
entity User in [Group, Tenant] { issuer: String, trust: String, human: Bool, scopes: Set<String> };
entity Agent in [Tenant];
entity Server in [Tenant];
entity Namespace in [Tenant];
entity Resource;
entity Tool in [Server, Namespace, Tenant] {
  name: String, namespace: String, version: String, effects: String, mutation_class: String, kind: String,
  provider: String, tags: Set<String>, undoable: Bool, previewable: Bool,
};
action "call" appliesTo {
  principal: [User],
  resource: [Tool],
  context: {
    agent?: Agent, agents: Set<Agent>, delegated: Bool, task?: String, session?: String,
    trust: String, environment: String, time: { epoch: Long, hour: Long, weekday: Long }, cost: Long,
    labels: Set<String>, changes: Set<Resource>, operations: Set<String>, scopes: Set<String>, sweeping: Bool,
    facts: { FACTS },
  },
};
"""
CONTEXT = frozenset(
    {"agent", "agents", "delegated", "task", "session", "trust", "environment", "time", "cost", "labels", "changes",
     "operations", "scopes", "sweeping", "facts"}
)  # fmt: skip
USER = ("issuer", "trust", "human", "scopes")
TOOL = (
    "name", "namespace", "version", "effects", "mutation_class", "kind", "provider", "tags", "undoable", "previewable",
)  # fmt: skip
ACTION = {"type": "Action", "id": "call"}

_THURSDAY = 3  # the first day of 1970, counted from Monday


@frozen
class Asked:
    """A question in plain words: all that rules may read, nothing that ties it to a live call."""

    caller: Mapping[str, Any]
    tool: Mapping[str, Any]
    environment: str
    session: str | None
    now_ms: int
    facts: Mapping[str, Any]
    scopes: tuple[str, ...] = ()
    sweeping: bool = True
    cost_micros: int = 0
    labels: frozenset[str] = frozenset()


def schema(facts: FactTypes) -> cedarpy.Schema:
    return _schema(tuple(sorted(facts.items())))


@lru_cache(maxsize=64)
def _schema(facts: tuple[tuple[str, FactType], ...]) -> cedarpy.Schema:
    named = ", ".join(f'"{name}"?: {kind}' for name, kind in facts)
    return cedarpy.Schema.from_str(SCHEMA.replace("FACTS", named))


def asked(question: Question) -> Asked:
    return Asked(
        caller=describe_caller(question.caller),
        tool=describe_tool(question.contract),
        environment=question.environment,
        session=question.session,
        now_ms=question.now_ms,
        facts=question.facts,
        scopes=scopes_of(question),
        sweeping=question.sweeping,
        cost_micros=question.cost_micros,
        labels=question.labels,
    )


def scopes_of(question: Question) -> tuple[str, ...]:
    return tuple(sorted({scope for _, _, scope in question.touches}))


def describe_caller(caller: Caller) -> dict[str, Any]:
    return {
        "tenant": caller.tenant, "user": caller.user, "issuer": caller.issuer, "trust": caller.trust,
        "human": caller.human, "groups": sorted(caller.groups), "scopes": sorted(caller.scopes),
        "agents": list(caller.agents), "task": caller.task,
    }  # fmt: skip


def describe_tool(contract: Contract) -> dict[str, Any]:
    return {
        "name": contract.full_name, "namespace": contract.namespace, "version": contract.version,
        "digest": contract.digest, "effects": contract.effects.value,
        "mutation_class": contract.mutation_class.value, "kind": contract.kind.value, "provider": contract.provider,
        "server": contract.external_service or contract.provider, "tags": sorted(set(contract.tags)),
        "undoable": contract.undo is not None, "previewable": contract.preview,
        "changes": sorted({effect.resource for effect in contract.resources}),
        "operations": sorted({effect.op for effect in contract.resources}),
    }  # fmt: skip


def uid(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "id": name}


def ancestors(tool: Mapping[str, Any], tenant: str) -> list[tuple[str, str]]:
    """Everything a tool is in, besides itself."""
    places = [("Namespace", tool["namespace"]), ("Tenant", tenant)]
    return [("Server", tool["server"]), *places] if tool["server"] else places


def entities(caller: Mapping[str, Any], tool: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Who calls what, with everything they are in. Complete, so that rules may also ask about an agent's tenant."""
    tenant = uid("Tenant", caller["tenant"])
    parents = ancestors(tool, caller["tenant"])
    around = {("Group", group) for group in caller["groups"]} | {("Agent", agent) for agent in caller["agents"]}
    around |= {place for place in parents if place[0] != "Tenant"}
    return [
        {
            "uid": uid("User", caller["user"]),
            "attrs": {name: caller[name] for name in USER},
            "parents": [*(uid("Group", group) for group in caller["groups"]), tenant],
        },
        {
            "uid": uid("Tool", tool["name"]),
            "attrs": {name: tool[name] for name in TOOL} | {"name": tool["name"].rpartition(".")[2]},
            "parents": [uid(*place) for place in parents],
        },
        *({"uid": uid(*each), "attrs": {}, "parents": [tenant]} for each in sorted(around)),
    ]


def context(question: Asked, names: Iterable[str], facts: frozenset[str] | None) -> dict[str, Any]:
    """The context, with the attributes that are read and no others; `facts` of None means all of them."""
    return {name: value for name in names if (value := _attribute(question, name, facts)) is not None}


def _attribute(question: Asked, name: str, facts: frozenset[str] | None) -> Any:
    caller = question.caller
    match name:
        case "agent":
            return {"__entity": uid("Agent", caller["agents"][0])} if caller["agents"] else None
        case "agents":
            return [{"__entity": uid("Agent", agent)} for agent in caller["agents"]]
        case "delegated":
            return bool(caller["agents"])
        case "task" | "trust":
            return caller[name]
        case "session":
            return question.session
        case "environment":
            return question.environment
        case "time":
            return clock(question.now_ms)
        case "cost":
            return question.cost_micros
        case "labels":
            return sorted(question.labels)
        case "changes":
            return [{"__entity": uid("Resource", resource)} for resource in question.tool["changes"]]
        case "operations":
            return question.tool["operations"]
        case "scopes":
            return question.scopes
        case "sweeping":
            return question.sweeping
        case "facts":
            given = question.facts
            return given if facts is None else {name: given[name] for name in facts if name in given}
        case _:
            raise ValueError(f"the context has no {name}")


def clock(now_ms: int) -> dict[str, int]:
    epoch = now_ms // 1000
    return {"epoch": epoch, "hour": epoch // 3600 % 24, "weekday": (epoch // 86_400 + _THURSDAY) % 7}
