"""Define what policies can read: the Cedar schema, and the entities and context built for one request.

A request first becomes a `PolicyQuery` of plain values, which is also what decision records store and replays start
from. A test checks that the schema and `PolicyQuery` agree.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import cedarpy

from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract
from deputize.core.decision import PolicyRequest, UndoneCall
from deputize.core.value_types import frozen

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
  provider: String, tags: Set<String>, permissions: Set<String>, undoable: Bool, previewable: Bool,
  open_world: Bool, requires_user_interaction: Bool, behaviours: Set<String>, authority_rank: Long,
};
action "call" appliesTo {
  principal: [User],
  resource: [Tool],
  context: {
    agent?: Agent, agent_label?: String, agents: Set<Agent>, delegated: Bool, task?: String, session?: String,
    trust: String, environment: String, time: { epoch: Long, hour: Long, weekday: Long }, cost: Long,
    labels: Set<String>, changes: Set<Resource>, operations: Set<String>, scopes: Set<String>, sweeping: Bool,
    undoes?: { tool: String, agents: Set<Agent>, delegated: Bool },
    facts: { FACTS },
  },
};
"""
CONTEXT_ATTRIBUTES = frozenset(
    {"agent", "agent_label", "agents", "delegated", "task", "session", "trust", "environment", "time", "cost", "labels",
     "changes", "operations", "scopes", "sweeping", "undoes", "facts"}
)  # fmt: skip
USER_ATTRIBUTES = ("issuer", "trust", "human", "scopes")
TOOL_ATTRIBUTES = (
    "name", "namespace", "version", "effects", "mutation_class", "kind", "provider", "tags", "permissions", "undoable",
    "previewable", "open_world", "requires_user_interaction", "behaviours", "authority_rank",
)  # fmt: skip
# Of records of earlier releases, in which no tool had declared these attributes.
_UNDECLARED: Mapping[str, Any] = {
    "permissions": [], "open_world": True, "requires_user_interaction": False, "behaviours": [], "authority_rank": 0,
}  # fmt: skip
ACTION = {"type": "Action", "id": "call"}

_THURSDAY = 3  # the weekday of 1970-01-01, counted from Monday


@frozen
class PolicyQuery:
    """A policy request as plain values: all that rules can read, without references to a live call."""

    caller: Mapping[str, Any]
    tool: Mapping[str, Any]
    environment: str
    session: str | None
    now_ms: int
    facts: Mapping[str, Any]
    scopes: tuple[str, ...] = ()
    is_sweeping: bool = True
    cost_micros: int = 0
    labels: frozenset[str] = frozenset()
    undone: UndoneCall | None = None


def build_schema(facts: FactTypes) -> cedarpy.Schema:
    return _parse_schema(tuple(sorted(facts.items())))


@lru_cache(maxsize=64)
def _parse_schema(facts: tuple[tuple[str, FactType], ...]) -> cedarpy.Schema:
    fact_fields = ", ".join(f'"{name}"?: {kind}' for name, kind in facts)
    return cedarpy.Schema.from_str(SCHEMA.replace("FACTS", fact_fields))


def build_query(request: PolicyRequest) -> PolicyQuery:
    return PolicyQuery(
        caller=describe_caller(request.caller),
        tool=describe_tool(request.contract),
        environment=request.environment,
        session=request.session,
        now_ms=request.now_ms,
        facts=request.facts,
        scopes=list_scopes(request),
        is_sweeping=request.has_unbounded_scope,
        cost_micros=request.cost_micros,
        labels=request.labels,
        undone=request.undone,
    )


def list_scopes(request: PolicyRequest) -> tuple[str, ...]:
    return tuple(sorted({scope for _, _, scope in request.side_effects}))


def describe_caller(caller: Caller) -> dict[str, Any]:
    return {
        "tenant": caller.tenant, "user": caller.user, "issuer": caller.issuer, "trust": caller.trust,
        "human": caller.human, "groups": sorted(caller.groups), "scopes": sorted(caller.scopes),
        "agents": list(caller.agents), "proven_agent": caller.proven_agent, "task": caller.task,
    }  # fmt: skip


def describe_tool(contract: Contract) -> dict[str, Any]:
    return {
        "name": contract.full_name, "namespace": contract.namespace, "version": contract.version,
        "digest": contract.digest, "effects": contract.effects.value,
        "mutation_class": contract.mutation_class.value, "kind": contract.kind.value, "provider": contract.provider,
        "server": contract.external_service or contract.provider, "tags": sorted(set(contract.tags)),
        "permissions": sorted(set(contract.auth.permissions)),
        "undoable": contract.undo is not None, "previewable": contract.preview,
        "open_world": contract.is_open_world, "requires_user_interaction": contract.requires_user_interaction,
        "behaviours": sorted(set(contract.behaviours)), "authority_rank": contract.authority_rank or 0,
        "changes": sorted({effect.resource for effect in contract.resources}),
        "operations": sorted({effect.op for effect in contract.resources}),
    }  # fmt: skip


def get_tool_attribute(tool: Mapping[str, Any], name: str) -> Any:
    """Return an attribute of a tool as rules read it."""
    if name == "name":
        return tool["name"].rpartition(".")[2]
    return tool.get(name, _UNDECLARED[name]) if name in _UNDECLARED else tool[name]


def get_proven_agent(caller: Mapping[str, Any]) -> str | None:
    """Return the proven agent of a described caller; records of earlier releases do not say which one was proven."""
    proven_agent: str | None = caller.get("proven_agent")
    return proven_agent


def make_uid(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "id": name}


def list_ancestors(tool: Mapping[str, Any], tenant: str) -> list[tuple[str, str]]:
    """List the entities a tool belongs to: server, namespace and tenant."""
    parents = [("Namespace", tool["namespace"]), ("Tenant", tenant)]
    return [("Server", tool["server"]), *parents] if tool["server"] else parents


def build_entities(caller: Mapping[str, Any], tool: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Build the entities of a caller and a tool with all their parents, so that `in` works for every one of them."""
    tenant = make_uid("Tenant", caller["tenant"])
    parents = list_ancestors(tool, caller["tenant"])
    neighbors = {("Group", group) for group in caller["groups"]} | {("Agent", agent) for agent in caller["agents"]}
    if proven_agent := get_proven_agent(caller):
        neighbors.add(("Agent", proven_agent))
    neighbors |= {parent for parent in parents if parent[0] != "Tenant"}
    return [
        {
            "uid": make_uid("User", caller["user"]),
            "attrs": {name: caller[name] for name in USER_ATTRIBUTES},
            "parents": [*(make_uid("Group", group) for group in caller["groups"]), tenant],
        },
        {
            "uid": make_uid("Tool", tool["name"]),
            "attrs": {name: get_tool_attribute(tool, name) for name in TOOL_ATTRIBUTES},
            "parents": [make_uid(*parent) for parent in parents],
        },
        *({"uid": make_uid(*each), "attrs": {}, "parents": [tenant]} for each in sorted(neighbors)),
    ]


def build_context(query: PolicyQuery, names: Iterable[str], facts: frozenset[str] | None) -> dict[str, Any]:
    """Build the context with only these attributes; `facts` of None means all facts."""
    return {name: value for name in names if (value := _build_attribute(query, name, facts)) is not None}


def _build_attribute(query: PolicyQuery, name: str, facts: frozenset[str] | None) -> Any:
    caller = query.caller
    match name:
        case "agent":
            proven_agent = get_proven_agent(caller)
            return None if proven_agent is None else {"__entity": make_uid("Agent", proven_agent)}
        case "agent_label":
            return caller["agents"][0] if caller["agents"] else None
        case "agents":
            return [{"__entity": make_uid("Agent", agent)} for agent in caller["agents"]]
        case "delegated":
            return bool(caller["agents"])
        case "task" | "trust":
            return caller[name]
        case "session":
            return query.session
        case "environment":
            return query.environment
        case "time":
            return build_time_attributes(query.now_ms)
        case "cost":
            return query.cost_micros
        case "labels":
            return sorted(query.labels)
        case "changes":
            return [{"__entity": make_uid("Resource", resource)} for resource in query.tool["changes"]]
        case "operations":
            return query.tool["operations"]
        case "scopes":
            return query.scopes
        case "sweeping":
            return query.is_sweeping
        case "undoes":
            return None if query.undone is None else _describe_undone(query.undone)
        case "facts":
            query_facts = query.facts
            return query_facts if facts is None else {name: query_facts[name] for name in facts if name in query_facts}
        case _:
            raise ValueError(f"unknown context attribute {name}")


def _describe_undone(undone: UndoneCall) -> dict[str, Any]:
    return {
        "tool": undone.tool,
        "agents": [{"__entity": make_uid("Agent", agent)} for agent in undone.agents],
        "delegated": bool(undone.agents),
    }


def build_time_attributes(now_ms: int) -> dict[str, int]:
    epoch = now_ms // 1000
    return {"epoch": epoch, "hour": epoch // 3600 % 24, "weekday": (epoch // 86_400 + _THURSDAY) % 7}
