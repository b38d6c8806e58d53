"""Draw contracts and records of calls by seed, with every field set now and then."""

import random
from typing import Any

from deputize.core.contract.contract import Contract, LifecycleState, ToolKind
from deputize.core.states import EVENT_BY_STATE, State

_TEXTS = ("", "Orders", "Größe in cm", "日本語のツール", 'a "quoted" text', "line\nbreak", "🙂 astral", "\u00e9\u0301")
_WORDS = ("order", "user", "invoice", "ticket", "mail", "stock", "price", "rate")
_TIME = "2026-11-16T13:00:00.123Z"


class ToolGenerator:
    """Draws tools from one seed: the same seed draws the same tools."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw_contract(self, number: int) -> Contract:
        """Draw one contract; its name is unique among numbers."""
        draw = self._random
        fields: dict[str, Any] = {
            "namespace": draw.choice(_WORDS),
            "name": f"{draw.choice(('get', 'update', 'cancel'))}_{draw.choice(_WORDS)}_n{number}",
            "version": f"{draw.randrange(4)}.{draw.randrange(10)}.{draw.randrange(10)}",
            "description": f"Do something with one {draw.choice(_WORDS)}. {draw.choice(_TEXTS)}",
            "handler": {"driver": "python", "target": f"tools.shop:f{number}"},
            "input_schema": self._draw_schema(),
            "output_schema": self._draw_schema(),
            "effects": draw.choice(("read", "write", "destructive")),
            "auth": {"scopes": [f"{draw.choice(_WORDS)}:read"]},
            "timeout": {"timeout_class": draw.choice(("interactive", "standard", "long-running", "async"))},
            "idempotency": {"upstream": draw.choice(("deduplicates", "idempotent", "cannot"))},
            "observability": {"cost_per_call": round(draw.random(), 4)},
        }
        optional_fields = self._draw_optional_fields()
        for name in draw.sample(sorted(optional_fields), draw.randrange(len(optional_fields) + 1)):
            fields[name] = optional_fields[name]
        return Contract.model_validate(fields)

    def draw_state(self) -> LifecycleState:
        return self._random.choice(list(LifecycleState))

    def _draw_schema(self) -> dict[str, Any]:
        draw = self._random
        properties = {
            name: draw.choice(
                (
                    {"type": "string", "description": draw.choice(_TEXTS), "maxLength": draw.randrange(1, 99)},
                    {"type": "integer", "minimum": draw.randrange(9), "x-policy": True},
                    {"type": "number", "multipleOf": 0.5, "examples": [1.5, 2]},
                    {"type": "string", "x-sensitivity": draw.choice(("pii", "secret", "internal"))},
                    {"type": "boolean", "x-internal": True},
                    {"type": "array", "items": {"$ref": "#/$defs/part"}},
                    {"enum": [None, 1, 1.5, "one", draw.choice(_TEXTS)]},
                )
            )
            for name in draw.sample((*_WORDS, "a/b", "m~n", ""), draw.randrange(1, 6))
        }
        return {
            "type": "object",
            "properties": properties,
            "required": draw.sample(sorted(properties), draw.randrange(len(properties) + 1)),
            "additionalProperties": False,
            "$defs": {"part": {"type": "object", "additionalProperties": {"type": "number"}}},
        }

    def _draw_optional_fields(self) -> dict[str, Any]:
        draw = self._random
        word, text = draw.choice(_WORDS), draw.choice(_TEXTS)
        return {
            **self._draw_publication_fields(word, text),
            **self._draw_execution_fields(word),
            "kind": draw.choice(list(ToolKind)),
            "error_schema": {"type": "object", "properties": {"message": {"type": "string"}, "code": {"enum": [word]}}},
            "examples": [{word: draw.randrange(100)}, {}],
            "predicates": [{"name": "holds", "description": text, "holds": {"required": ["input", "output"]}}],
            "resources": [{"resource": word, "op": draw.choice(("create", "update", "delete")), "scope": "{id}"}],
            "undo": f"{word}.undo",
            "status": f"{word}.status",
            "preview": True,
            "preview_rules": {"fresh_seconds": draw.randrange(1, 900), "volatile": ["/impact/count"]},
            "reads_state": True,
            "rolls_back": True,
            "validates": True,
            "verifies": True,
            "behaviours": draw.sample(("deterministic", "idempotent", "monotone", "conserving", "reversible"), 2),
            "compensation": {
                "compensation_class": "semantic",
                "tool": f"{word}.cancel",
                "bind": {"id": "/result/id"},
                "within_seconds": draw.randrange(1, 900),
            },
            "requires_user_interaction": True,
            "open_world": draw.choice((True, False)),
            "recipient_argument": word,
            "labels": {"accepts": ["public"], "adds": [f"source:{word}"]},
        }

    def _draw_execution_fields(self, word: str) -> dict[str, Any]:
        draw = self._random
        return {
            "retry": {"max_attempts": draw.randrange(1, 10), "base_seconds": 0.25},
            "breaker": {"failure_threshold": draw.randrange(1, 100)},
            "limits": {"cpu": "500m", "memory": f"{draw.randrange(1, 99)}Gi"},
            "network": {"allowed_domains": [f"{word}.example"], "allowed_ports": [draw.randrange(1, 65_535)]},
            "checkpoints": {"enabled": True, "macro_events": [word]},
            "sandbox": {"tier": draw.randrange(4), "permissions": ["filesystem:read:/data"]},
            "freshness": {"max_age_seconds": draw.randrange(1, 900)},
            "fallback": [f"{word}.older"],
            "fallback_task": f"Ask the desk of {word}.",
            "concurrency_safe": True,
            "interrupt": draw.choice(("cancel", "block")),
            "max_inline": draw.randrange(1, 10_000),
            "objectives": {"p99_seconds": round(draw.random() + 0.1, 3), "availability": 0.999},
            "alerts": {"error_rate": 0.05},
            "authority_rank": draw.randrange(1, 100),
            "external_service": word,
            "service_limits": {"max_concurrent": draw.randrange(1, 100)},
            "priority": draw.randrange(1, 11),
        }

    def _draw_publication_fields(self, word: str, text: str) -> dict[str, Any]:
        return {
            "title": text,
            "aliases": [f"{word}.old", f"{word}.older"],
            "search_hint": text,
            "tags": [word, "größe"],
            "capability_refs": [f"capability:{word}", ""],
            "native_ids": {
                "mcp": {"server_id": word, "tool_name": f"{word}/Get"},
                "openapi": {"method": "GET", "path": f"/{word}/{{id}}", "security_scheme_refs": ["oauth"]},
                "command": {"command_id": word, "argv_ref": "argv"},
            },
            "external_mappings": {"mcp": {"tool": word, "annotations": {"title": text}}, "vendor": [1, 2.5, None]},
            "annotations": {"display": {"color": "#fff"}, "note": text, "nothing": None},
            "life": {"sunset_date": "2031-01-31", "replacement": f"{word}.next"},
            "changelog": text,
            "breaking_changes": True,
            "provider": text[:100],
            "documentation_url": "https://docs.example/tool",
            "source_code_url": "https://code.example/tool",
            "license": "Apache-2.0",
            "author": {"name": text},
        }

    def draw_call(self, contract: Contract) -> dict[str, dict[str, Any]]:
        """Draw what is recorded of one call, by the kind of object that shows it."""
        draw = self._random
        call_id = f"01a1e482-fffb-74d1-a286-{draw.randrange(16**12):012x}"
        facts = {"call_id": call_id, "trace_id": f"{draw.randrange(16**32):032x}"}
        state, text = draw.choice(list(State)), draw.choice(_TEXTS)
        return {
            **self._draw_invocation(contract, facts, state, text),
            **self._draw_outcome(facts, state, text),
            **self._draw_surface(contract),
        }

    def _draw_invocation(
        self, contract: Contract, facts: dict[str, str], state: State, text: str
    ) -> dict[str, dict[str, Any]]:
        draw, call_id = self._random, facts["call_id"]
        return {
            "tool_invocation": {
                **facts,
                "state": state.value,
                "tool": {"name": contract.full_name, "version": contract.version},
                "created_at": _TIME,
                "ended_at": draw.choice((None, _TIME)),
                "actors": [{"kind": "user", "id": text or "ana"}],
                "transitions": [{"status": state.value, "at": _TIME}],
                "mutations": [{"path": "/id", "source": "coercion", "change": "string to integer"}],
                "native_call_id": draw.choice((None, "call_abc")),
                "mutation_class": contract.mutation_class.value,
            },
            "tool_permission_decision": {
                "decision_id": f"{call_id}:decision",
                "call_id": call_id,
                "behavior": draw.choice(("allow", "ask", "deny", "passthrough")),
                "rules": [text, "reads-are-free"],
                "policies": ["sha256:0"],
                "reason": draw.choice((None, text)),
                "decided_at": _TIME,
            },
            "tool_progress": {
                "call_id": call_id,
                "progress_id": f"{call_id}:1",
                "sequence": draw.randrange(100),
                "status": "running",
                "message": text,
                "percent": draw.choice((None, 12.5, 50)),
                "elapsed_ms": draw.randrange(9999),
                "redactions": ["/a"],
                "timestamp": _TIME,
            },
        }

    def _draw_outcome(self, facts: dict[str, str], state: State, text: str) -> dict[str, dict[str, Any]]:
        draw, result_id = self._random, f"{facts['call_id']}:result"
        error = {
            "code": "FAILED",
            "class": draw.choice(("timeout", "execution_failed", "permission_denied")),
            "number": "E3401",
            "slug": "tool-failed",
            "message": text,
            "advice": None,
            "details": {"path": "/a~1b", "values": [1, 2.5, None]},
            "retryable": draw.choice((True, False)),
            "retry_after_ms": draw.choice((None, draw.randrange(100_000))),
            "trace_id": facts["trace_id"],
        }
        return {
            "tool_error": error,
            "tool_result": {
                **facts,
                "result_id": result_id,
                "state": state.value,
                "is_error": state is not State.SUCCEEDED,
                "result": draw.choice((None, 1, [1.5], {"a/b": text, "m~n": {}})),
                "summary": text,
                "decision": {"rules": [text]},
                "warnings": [text],
                "created_at": _TIME,
                **({"error": error} if state is State.FAILED else {}),
            },
            "tool_result_persistence": {"call_id": facts["call_id"], "result_id": result_id, "mode": "inline"},
            "tool_event": {
                **facts,
                "id": f"1.{state.value}.0",
                "event": EVENT_BY_STATE[state].value,
                "state": state.value,
                "time": _TIME,
                "facts": {"call_id": facts["call_id"], "session": None},
            },
        }

    def _draw_surface(self, contract: Contract) -> dict[str, dict[str, Any]]:
        draw = self._random
        tool = {"name": contract.full_name, "version": contract.version}
        statuses = draw.sample(("loaded", "deferred", "blocked", "excluded"), 3)
        return {
            "tool_surface": {
                "surface_id": f"surface-{draw.randrange(16**32):032x}",
                "scope": {"tenant": "dev", "user": "ana", "agents": [], "session": None},
                "created_at": _TIME,
                "producer": "deputize 0.1.0",
                "policy_digest": "sha256:1",
                "tools": [{**tool, "status": status, "reason": {"code": "policy"}} for status in statuses],
                "selection": {"namespaces": [], "worst": None},
                "next_after": draw.choice((None, contract.full_name)),
            },
            "deferred_tool_ref": {
                **tool,
                "short_name": contract.name,
                "namespace": contract.namespace,
                "search_hint": contract.search_hint,
                "status": "deferred",
                "source": "registry",
            },
            "tool_hook": {
                "name": "notify",
                "moment": draw.choice(("before", "after", "failure")),
                "tools": f"{contract.namespace}.*",
                "seconds": 1.0,
                "source": "hook:notify",
            },
        }
