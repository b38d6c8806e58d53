"""Convert tool definitions of MCP servers into contracts.

The server provides the name, the description and the schemas. Effects, facts, scopes and the credential come from the
operator's settings in `[[servers]]`; effects that they do not name, from what an operator confirmed for a definition.
The server's annotations are kept for display and never trusted.

`operations/servers/` registers these contracts; nothing here connects to a server.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from deputize.catalog import versions
from deputize.catalog.importers.declaration import explain_validation_error
from deputize.catalog.importers.examples import build_example_call
from deputize.catalog.importers.server_facts import mark_arguments
from deputize.catalog.importers.server_schemas import EnforcedSchema, convert_input_schema, convert_output_schema
from deputize.catalog.registration_rules import admit_contract, build_refusal
from deputize.catalog.schema_cost import MAX_PATTERN_COST, measure_schema
from deputize.catalog.schema_rules import Reason
from deputize.catalog.schemas import MAX_DEPTH, BadSchema, compile_schema, measure_depth
from deputize.core.contract.contract import Contract, Effects, Schema, TimeoutClass, ToolKind, UpstreamIdempotency
from deputize.core.mcp.servers import Definition
from deputize.core.patterns import matches_glob
from deputize.core.settings import McpServerSettings, ServiceSettings

_Settings = TypeVar("_Settings")

_MAX_TITLE_LENGTH = 255
_MAX_DESCRIPTION_LENGTH = 2000
_SHORTEST_DESCRIPTION = 10
# Fields of a definition that are kept for display; no decision depends on them.
_UNTRUSTED_FIELDS = ("title", "annotations", "execution")


def is_tool_served(server: McpServerSettings, name: str) -> bool:
    """Tell whether the settings serve this tool of the server; `name` is the server's own name for it."""
    return has_matching_glob(server.tools, name)


def build_tool_contract(
    server: McpServerSettings,
    definition: Definition,
    *,
    registered_name: str,
    version: str = versions.FIRST_VERSION,
    confirmed_effects: Effects | None = None,
) -> Contract:
    """Build the contract of one tool, pinned to its definition, or raise `ToolNotAdmitted` with every reason.

    `registered_name` comes from `assign_names`; after an accepted change `version` comes from `increment_major`.
    `confirmed_effects` is what an operator confirmed for exactly this definition.
    """
    name = f"{server.name}.{registered_name}"
    reasons = list(_check_shape(definition.declaration))
    if reasons:
        raise build_refusal(name, version, reasons)
    input_schema, output_schema = (
        convert_input_schema(definition.declaration["inputSchema"]),
        convert_output_schema(definition.declaration.get("outputSchema")),
    )
    mark_arguments(input_schema.schema, server)
    effects = find_declared_effects(server, definition.name) or confirmed_effects or Effects.DESTRUCTIVE
    fields = {
        **_collect_server_fields(server, definition, input_schema, output_schema),
        **_collect_operator_fields(server, definition.name, effects),
        "namespace": server.name,
        "name": registered_name,
        "version": version,
    }
    try:
        contract = Contract.model_validate(fields)
    except ValidationError as error:
        raise build_refusal(name, version, list(explain_validation_error(error))) from error
    admit_contract(contract)
    return contract


def increment_major(version: str) -> str:
    """Increment the major version for a changed definition, because any change may break callers."""
    return f"{versions.parse_version(version).major + 1}.0.0"


def list_scopes(server: McpServerSettings) -> tuple[str, ...]:
    """List the scopes that the server's tools require of callers."""
    return server.scopes or (_format_write_scope(server),)


def _collect_server_fields(
    server: McpServerSettings, definition: Definition, input_schema: EnforcedSchema, output_schema: EnforcedSchema
) -> dict[str, Any]:
    declaration = definition.declaration
    extra_fields = {key: declaration[key] for key in _UNTRUSTED_FIELDS if key in declaration}
    unenforced_paths = [*input_schema.unenforced_paths, *output_schema.unenforced_paths]
    example = _build_example(input_schema.schema)
    return {
        "title": _choose_title(declaration)[:_MAX_TITLE_LENGTH],
        "description": _choose_description(server, definition),
        "kind": ToolKind.MCP_TOOL,
        "handler": {"driver": "mcp", "target": f"{server.name}/{definition.name}", "pin": definition.digest},
        "input_schema": input_schema.schema,
        "output_schema": output_schema.schema,
        "examples": () if example is None else (example,),
        "external_mappings": {
            "mcp": {
                "tool": definition.name,
                **extra_fields,
                **({"unenforced": unenforced_paths} if unenforced_paths else {}),
            }
        },
    }


def collect_read_fields(server: McpServerSettings, name: str) -> dict[str, Any]:
    """Collect the contract fields from the settings for something that only reads."""
    return _collect_operator_fields(server, name, Effects.READ)


def has_matching_glob(globs: tuple[str, ...], name: str) -> bool:
    """Tell whether any glob pattern matches the name."""
    return any(matches_glob(name, each) for each in globs)


def _collect_operator_fields(server: McpServerSettings, name: str, effects: Effects) -> dict[str, Any]:
    is_read = effects is Effects.READ
    is_slow = has_matching_glob(server.slow, name)
    write_idempotency = (
        UpstreamIdempotency.DEDUPLICATES if has_matching_glob(server.repeatable, name) else UpstreamIdempotency.CANNOT
    )
    # The settings do not say what exactly the tool changes, so the scope is the whole server.
    resource = {"resource": server.name, "op": "update" if effects is Effects.WRITE else "delete", "scope": "*"}
    return {
        "effects": effects,
        "resources": () if is_read else (resource,),
        "auth": {
            "scopes": server.scopes if is_read else list_scopes(server),
            "credential": server.credential,
            "secret": server.secret if server.credential == "vault" else None,
            "audience": server.audience if server.credential == "delegated" else None,
        },
        "timeout": {"timeout_class": TimeoutClass.LONG_RUNNING if is_slow else TimeoutClass.STANDARD},
        "idempotency": {"upstream": UpstreamIdempotency.IDEMPOTENT if is_read else write_idempotency},
        "observability": {"cost_category": "api"},
        "external_service": server.name,
        **collect_failure_fields(server, name, is_read=is_read),
        "provider": server.name,
    }


def collect_failure_fields(source: McpServerSettings | ServiceSettings, name: str, *, is_read: bool) -> dict[str, Any]:
    """Collect what the settings say about a slow or failing service, for one of its tools; of what they do not say,
    the contract has its defaults.
    """
    retry = _find_first_match(source.retry, name)
    freshness = _find_first_match(source.freshness, name) if is_read else None
    fields = {
        "breaker": source.breaker.to_contract_field(),
        "retry": None if retry is None else retry.to_contract_field(),
        "freshness": None if freshness is None else freshness.to_contract_field(),
    }
    return {
        "service_limits": source.service_limits.to_contract_field(),
        **{field: value for field, value in fields.items() if value},
    }


def _find_first_match(settings_by_glob: Mapping[str, _Settings], name: str) -> _Settings | None:
    return next((each for glob, each in settings_by_glob.items() if matches_glob(name, glob)), None)


def find_declared_effects(server: McpServerSettings, name: str) -> Effects | None:
    """Find the effects that the settings declare; `writes` wins over `reads`. None if they say nothing of the tool."""
    if has_matching_glob(server.writes, name):
        return Effects.WRITE
    return Effects.READ if has_matching_glob(server.reads, name) else None


def _format_write_scope(server: McpServerSettings) -> str:
    return f"{server.name}:write"


def _choose_title(declaration: Mapping[str, Any]) -> str:
    annotations = declaration.get("annotations")
    titles = (declaration.get("title"), annotations.get("title") if isinstance(annotations, dict) else None)
    return next((each for each in titles if isinstance(each, str) and each.strip()), "")


def _choose_description(server: McpServerSettings, definition: Definition) -> str:
    """Choose the server's description, its title or a default sentence, cut to the length a contract allows."""
    description = definition.declaration.get("description")
    text = (description if isinstance(description, str) else "").strip() or _choose_title(
        definition.declaration
    ).strip()
    fallback = f"The tool {definition.name} of the server {server.name}."
    if len(text) < _SHORTEST_DESCRIPTION:
        text = f"{text}. {fallback}" if text else fallback
    return text if len(text) <= _MAX_DESCRIPTION_LENGTH else text[: _MAX_DESCRIPTION_LENGTH - 1] + "…"


def _build_example(schema: Schema) -> dict[str, Any] | None:
    """Build a valid example call from the schema's own examples; None if they are not enough."""
    try:
        example = build_example_call(schema)
        if example is None or measure_schema(schema).pattern_cost > MAX_PATTERN_COST:
            return None
        return example if compile_schema(schema).is_valid(example) else None
    except (BadSchema, TypeError, AttributeError, LookupError):
        return None  # an invalid schema, which admission reports


def _check_shape(declaration: Mapping[str, Any]) -> Iterator[Reason]:
    """Check what must hold before a definition's schemas can be converted."""
    for key in ("inputSchema", "outputSchema"):
        schema = declaration.get(key)
        if schema is None and key == "outputSchema":
            continue
        if not isinstance(schema, dict):
            yield _make_reason(key, "is not a schema", "have the server declare a JSON Schema object")
        elif measure_depth(schema) > 2 * MAX_DEPTH:
            reason = f"is nested deeper than {2 * MAX_DEPTH} levels"
            yield _make_reason(key, reason, "have the server move parts to $defs")


def _make_reason(path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct="schemas_valid", path=f"/{path}", reason=reason, fix=fix)
