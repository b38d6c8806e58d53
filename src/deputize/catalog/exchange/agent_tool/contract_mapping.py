"""Map the fields of a contract to the objects that describe a tool.

Every field of a contract has one home in one object, so that nothing is lost and nothing contradicts itself. What other
objects repeat of it is computed. A record here is a contract as JSON, with the state of the version as `lifecycle`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from deputize.catalog.exchange.agent_tool.field_mapping import FieldMapping, ObjectMapping, Record
from deputize.catalog.exchange.agent_tool.object_kinds import ObjectKind
from deputize.catalog.policy_facts import iter_facts
from deputize.catalog.schemas import HIDDEN_SENSITIVITIES, format_pointer, strip_internal, walk_schema
from deputize.core.contract.contract import Effects, LifecycleState, Schema
from deputize.core.contract.handler import NO_DRIVER

# Where a declaration says that its other objects are: in the same document.
INTERFACE_REF: Final = "#/tool_interface"
_EXECUTION_REF: Final = "#/tool_execution_profile"
_PERMISSION_REF: Final = "#/tool_permission_profile"
_INPUT: Final = "#/tool_declaration/input_contract"
_OUTPUT: Final = "#/tool_declaration/output_contract"
# By driver; a tool without one runs nowhere yet.
_EXECUTORS: Final[Mapping[str, str | None]] = {"python": "local", "mcp": "mcp", NO_DRIVER: None}
_DISABLED_STATES: Final = frozenset({LifecycleState.DRAFT, LifecycleState.DISABLED, LifecycleState.RETIRED})
_EMPTY_AUTHOR: Final = {"name": "", "email": "", "url": ""}
_NO_END_OF_LIFE: Final = {
    "deprecation_date": None,
    "sunset_date": None,
    "migration_guide_url": None,
    "replacement": None,
}


def _move(*names: str, into: str = "") -> tuple[FieldMapping, ...]:
    """Map fields that have the same name on both sides."""
    return tuple(FieldMapping(name, f"{into}{name}") for name in names)


def _format_tool_id(record: Record) -> str:
    return f"{record['namespace']}.{record['name']}"


def _list_marked_parts(schema: Schema, is_marked: Callable[[Schema], bool]) -> list[str]:
    return [format_pointer(path) for path, node in walk_schema(schema) if is_marked(node)]


def _list_sensitive_fields(record: Record) -> list[str]:
    return _list_marked_parts(
        record["input_schema"], lambda node: str(node.get("x-sensitivity")) in HIDDEN_SENSITIVITIES
    )


def _list_internal_fields(record: Record) -> list[str]:
    return _list_marked_parts(record["input_schema"], lambda node: node.get("x-internal") is True)


def _list_policy_facts(record: Record) -> list[str]:
    return sorted(fact.name for fact in iter_facts(record["input_schema"]))


def _choose_executor(record: Record) -> str | None:
    driver = record.get("handler", {}).get("driver", NO_DRIVER)
    return _EXECUTORS.get(driver, driver)


def _build_safety(record: Record) -> Record:
    return {
        "is_read_only": record["effects"] == Effects.READ,
        "is_destructive": record["effects"] == Effects.DESTRUCTIVE,
        "is_open_world": record.get("open_world") is not False,
        "requires_user_interaction": record.get("requires_user_interaction", False),
        **({"sandbox_profile": record["sandbox"]} if record.get("sandbox") else {}),
    }


def _build_availability(record: Record) -> Record:
    state = record["lifecycle"]
    secret = record["auth"].get("secret")
    return {
        "is_enabled": state not in _DISABLED_STATES,
        "setup_state": "required" if state == LifecycleState.REQUIRES_SETUP else "complete",
        "is_deferred": state == LifecycleState.DEFERRED,
        **({"required_credentials": [secret]} if secret else {}),
    }


def _build_interface_schemas(record: Record) -> Record:
    return {
        "model_input_schema": f"{_INPUT}/model_input_schema",
        "runtime_input_schema": f"{_INPUT}/runtime_input_schema",
        "output_schema": f"{_OUTPUT}/output_schema",
        "strict": True,
        "schema_visibility": "runtime" if "handler" in record else "model",
    }


DECLARATION: Final = ObjectMapping(
    kind=ObjectKind.TOOL_DECLARATION,
    fields=(
        *_move("namespace", "name", "version", "description", "lifecycle"),
        FieldMapping("kind", "tool_kind"),
        *(FieldMapping(name, name, default="") for name in ("title", "search_hint")),
        *(FieldMapping(name, name, default=[]) for name in ("aliases", "tags", "capability_refs")),
        FieldMapping("annotations", "annotations", default={}),
        *(
            FieldMapping(name, f"publication/{name}", default="")
            for name in ("changelog", "provider", "documentation_url", "source_code_url", "license")
        ),
        FieldMapping("breaking_changes", "publication/breaking_changes", default=False),
        FieldMapping("author", "publication/author", default=_EMPTY_AUTHOR),
        FieldMapping("life", "publication/end_of_life", default=_NO_END_OF_LIFE),
    ),
    computations={
        "tool_id": _format_tool_id,
        "interface_ref": lambda record: INTERFACE_REF,
        "execution_profile_ref": lambda record: _EXECUTION_REF,
        "permission_profile_ref": lambda record: _PERMISSION_REF,
    },
)
INPUT_CONTRACT: Final = ObjectMapping(
    kind=ObjectKind.TOOL_INPUT_CONTRACT,
    fields=(
        FieldMapping("input_schema", "runtime_input_schema"),
        FieldMapping("examples", "examples"),
        FieldMapping("validates", "validation/value_checks"),
        FieldMapping("recipient_argument", "recipient_argument"),
    ),
    computations={
        "model_input_schema": lambda record: strip_internal(record["input_schema"]),
        "strict": lambda record: True,
        "argument_mode": lambda record: "named",
        "sensitive_fields": _list_sensitive_fields,
        "internal_only_fields": _list_internal_fields,
        "mutation_policy": lambda record: {"sources": ["coercion", "hooks"], "is_recorded": True},
    },
)
OUTPUT_CONTRACT: Final = ObjectMapping(
    kind=ObjectKind.TOOL_OUTPUT_CONTRACT,
    fields=(
        *_move("output_schema", "error_schema", "predicates", "verifies", "labels"),
        FieldMapping("max_inline", "result_size_policy/max_inline_chars"),
    ),
)
EXECUTION_PROFILE: Final = ObjectMapping(
    kind=ObjectKind.TOOL_EXECUTION_PROFILE,
    fields=_move(
        "handler", "timeout", "retry", "breaker", "limits", "checkpoints", "idempotency", "observability",
        "external_service", "service_limits", "priority", "freshness", "objectives", "alerts", "authority_rank",
        "behaviours", "fallback", "fallback_task", "flow",
    ),
    computations={
        "executor": _choose_executor,
    },
)  # fmt: skip
PERMISSION_PROFILE: Final = ObjectMapping(
    kind=ObjectKind.TOOL_PERMISSION_PROFILE,
    fields=(
        *_move(
            "effects", "network", "undo", "status", "preview", "preview_rules", "reads_state", "rolls_back",
            "compensation", "sandbox", "requires_user_interaction", "open_world",
        ),
        FieldMapping("resources", "write_effects"),
        FieldMapping("auth", "credentials"),
    ),
    computations={"policy_facts": _list_policy_facts},
)  # fmt: skip
SCHEDULER_POLICY: Final = ObjectMapping(
    kind=ObjectKind.TOOL_SCHEDULER_POLICY,
    fields=_move("concurrency_safe", "interrupt"),
    computations={"sibling_failure": lambda record: "ignore"},
)
INTERFACE: Final = ObjectMapping(
    kind=ObjectKind.TOOL_INTERFACE,
    fields=(),
    computations={
        "tool_id": _format_tool_id,
        "namespace": lambda record: record["namespace"],
        "name": lambda record: record["name"],
        "display_name": lambda record: record["title"] or None,
        "aliases": lambda record: record["aliases"] or None,
        "native_ids": lambda record: record.get("native_ids"),
        "schemas": _build_interface_schemas,
        "availability": _build_availability,
        "validation": lambda record: {"schema": "JSON Schema 2020-12", "value_checks": record["validates"]},
        "safety": _build_safety,
        "permission_matching": lambda record: {"arguments": _list_policy_facts(record)},
        "execution": lambda record: {"profile_ref": _EXECUTION_REF},
    },
)
NAMESPACE: Final = ObjectMapping(
    kind=ObjectKind.TOOL_NAMESPACE,
    fields=(),
    computations={
        "namespace": lambda record: record["namespace"],
        "producer": lambda record: record["provider"] or None,
        "collision_policy": lambda record: "refuse",
    },
)
RESULT_PERSISTENCE: Final = ObjectMapping(
    kind=ObjectKind.TOOL_RESULT_PERSISTENCE,
    fields=(),
    computations={"mode": lambda record: "inline", "max_inline_chars": lambda record: record.get("max_inline")},
)
# Objects with fields of a contract; the other two mappings, of ids in other protocols, are in external_mappings.py.
HOME_MAPPINGS: Final = (
    DECLARATION,
    INPUT_CONTRACT,
    OUTPUT_CONTRACT,
    EXECUTION_PROFILE,
    PERMISSION_PROFILE,
    SCHEDULER_POLICY,
)
# Statements that the gateway enforces, or that say whether a tool can be called.
GOVERNED_PATHS: Final = (
    *((str(ObjectKind.TOOL_DECLARATION), name) for name in ("lifecycle", "description", "tool_kind")),
    *((str(ObjectKind.TOOL_PERMISSION_PROFILE), each.theirs) for each in PERMISSION_PROFILE.fields),
    *((str(ObjectKind.TOOL_EXECUTION_PROFILE), each.theirs) for each in EXECUTION_PROFILE.fields),
    *((str(ObjectKind.TOOL_SCHEDULER_POLICY), each.theirs) for each in SCHEDULER_POLICY.fields),
    *(
        (str(ObjectKind.TOOL_INTERFACE), "safety", name)
        for name in ("is_read_only", "is_destructive", "is_open_world", "requires_user_interaction")
    ),
)
