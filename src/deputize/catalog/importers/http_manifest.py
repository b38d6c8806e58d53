"""Build the contracts of HTTP tools that a person wrote by hand: `http: GET /cities/{city}` and what a call takes.

Such a manifest is the document of a service, like an OpenAPI document: it is pinned, and the URL and the credential are
in `[[services]]`. An argument in the braces of the path goes there, `body` is the JSON body, and others are query
parameters.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from deputize.catalog.importers.declaration import choose_idempotency
from deputize.catalog.importers.manifest import parse_contract
from deputize.catalog.importers.openapi.contracts import (
    BuiltService,
    RefusedOperation,
    check_path,
    collect_operator_fields,
    is_operation_served,
    list_response_fields,
)
from deputize.catalog.importers.openapi.document import InvalidDocument, Json, UnsupportedOperation, parse_content
from deputize.catalog.importers.openapi.pagination import find_pagination
from deputize.catalog.importers.openapi.responses import USUAL_HEADERS, keep_fields, make_result_schema
from deputize.catalog.importers.server_facts import mark_arguments
from deputize.catalog.registration_rules import admit_contract
from deputize.catalog.versions import FIRST_VERSION
from deputize.core.contract.contract import Contract, Effects, ToolKind
from deputize.core.contract.http_request import BODY_ARGUMENT, READ_METHODS
from deputize.core.errors import ToolNotAdmitted
from deputize.core.settings import ServiceSettings

_REQUEST: Final = re.compile(r"(GET|PUT|POST|DELETE|OPTIONS|HEAD|PATCH) (/\S*)")
# Fields of a tool that say what its request is.
_REQUEST_FIELDS: Final = frozenset({"http", "idempotency_header", "response_fields"})
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
# What the settings of the service say for all of its tools, and what follows from it.
SERVICE_FIELDS: Final = (
    "auth", "external_mappings", "external_service", "handler", "kind", "native_ids", "provider", "service_limits",
    "version",
)  # fmt: skip
_MOST_TOOLS: Final = 500


def is_manifest(content: Any, field: str) -> bool:
    """Tell whether parsed content is a manifest of tools with a field: `http`, or `command`."""
    tools = content.get("tools", [content]) if isinstance(content, dict) else None
    return isinstance(tools, list) and any(isinstance(each, dict) and field in each for each in tools)


def parse_http_manifest(document: bytes) -> list[Json]:
    """Parse the tools of a manifest as they are written, or raise `InvalidDocument`."""
    tools = list_tools(parse_content(document))
    if not all(isinstance(each.get("http"), str) for each in tools):
        raise InvalidDocument('each tool needs http: "GET /path"')
    return tools


def list_tools(content: Any) -> list[Json]:
    """List the tools of a manifest, or raise `InvalidDocument`."""
    tools = content.get("tools", [content]) if isinstance(content, dict) else None
    if not isinstance(tools, list) or not 0 < len(tools) <= _MOST_TOOLS:
        raise InvalidDocument(f"it has no tools, or more than {_MOST_TOOLS}: list them under tools")
    for each in tools:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or name.count(".") != 1:
            raise InvalidDocument("each tool needs a name such as weather.forecast")
    names = [each["name"] for each in tools]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidDocument(f"two tools have the name {duplicates[0][:100]}: rename one of them")
    return tools


def get_key(tool: Json) -> str:
    """Return the name of a tool in its service."""
    return str(tool["name"].partition(".")[2])


def build_http_manifest(
    service: ServiceSettings,
    tools: list[Json],
    *,
    existing_names: Mapping[str, str] | None = None,
    newest_versions: Mapping[str, str] | None = None,
) -> BuiltService:
    """Build the contracts of the tools that the settings serve; the arguments are those of `build_service`."""
    names, versions = existing_names or {}, newest_versions or {}
    contracts: dict[str, Contract] = {}
    refusals: list[RefusedOperation] = []
    for tool in (each for each in tools if is_operation_served(service, get_key(each))):
        key = get_key(tool)
        try:
            if key in names.values() and names.get(key) != key:
                raise UnsupportedOperation("another tool has this name: rename it")
            contracts[key] = _build_contract(service, tool, versions.get(key, FIRST_VERSION))
        except (UnsupportedOperation, ToolNotAdmitted) as error:
            method, _, path = tool["http"].partition(" ")
            refusals.append(RefusedOperation(key=key, method=method, path=path, reason=format_refusal(error)))
    return BuiltService(contracts=contracts, refusals=tuple(refusals))


def format_refusal(error: UnsupportedOperation | ToolNotAdmitted) -> str:
    """Format why a tool was refused, and what its author has to write instead."""
    if isinstance(error, UnsupportedOperation):
        return str(error)
    return "; ".join(f"{each['path']} {each['reason']}: {each['fix']}" for each in error.details["reasons"][:3])


def _build_contract(service: ServiceSettings, tool: Json, version: str) -> Contract:
    match = _REQUEST.fullmatch(tool["http"])
    if match is None:
        raise UnsupportedOperation('its http is not a method and a path, as in "GET /cities/{city}"')
    method, path, key = match[1], match[2], get_key(tool)
    check_path(path)
    if not tool["name"].startswith(f"{service.name}."):
        raise UnsupportedOperation(f"its name does not begin with the name of the service: write {service.name}.{key}")
    if own_fields := [field for field in SERVICE_FIELDS if field in tool]:
        raise UnsupportedOperation(f"its {own_fields[0]} follows from the settings of the service: remove it")
    input_schema = complete_input_schema(tool.get("input_schema", {}), _PLACEHOLDER.findall(path))
    mark_arguments(input_schema, service)
    parameters = _list_parameters(input_schema, path)
    pagination = find_pagination(method, parameters)
    output_schema, response_fields = _choose_output_schema(service, tool)
    effects = tool.get("effects", Effects.READ if method in READ_METHODS else Effects.DESTRUCTIVE)
    has_credential, header = service.credential != "none", tool.get("idempotency_header")
    settings_fields = collect_operator_fields(
        service, key, Effects(effects) if effects in list(Effects) else Effects.DESTRUCTIVE,
        has_credential=has_credential, takes_key=header is not None,
    )  # fmt: skip
    settings_fields["idempotency"] = "deduplicates" if header else choose_idempotency(effects)
    contract = parse_contract(
        {
            **settings_fields,
            **{field: value for field, value in tool.items() if field not in _REQUEST_FIELDS},
            "output_schema": output_schema,
            "effects": effects,
            "input_schema": input_schema,
            "version": version,
            "kind": ToolKind.CUSTOM,
            "external_mappings": {"openapi": {"pagination": pagination}} if pagination else {},
            "native_ids": {"openapi": {"method": method, "path": path, "server_url": service.url}},
            "handler": {
                "driver": "http",
                "target": f"{service.name}/{key}",
                "request": {
                    "method": method,
                    "path": path,
                    "parameters": parameters,
                    "body": "application/json" if BODY_ARGUMENT in input_schema["properties"] else None,
                    "credential": _find_place(service) if has_credential else None,
                    "idempotency_header": header,
                    "response_headers": USUAL_HEADERS,
                    "response_fields": response_fields,
                },
            },
        }
    )
    admit_contract(contract)
    return contract


def complete_input_schema(schema: Any, names: Collection[str]) -> Json:
    """Complete the schema of the arguments: nothing else is accepted, and these names are required."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else None
    required = schema.get("required", []) if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise UnsupportedOperation("its input_schema is not an object with properties")
    required_names = list(dict.fromkeys([*map(str, required), *names]))
    return {
        "type": "object",
        "additionalProperties": False,
        **schema,
        "properties": dict(properties),
        **({"required": required_names} if required_names else {}),
    }


def _choose_output_schema(service: ServiceSettings, tool: Json) -> tuple[Json, list[str] | None]:
    """Choose the schema of the result, narrowed to the fields that the tool or the settings keep, and these fields."""
    schema = tool.get("output_schema", make_result_schema({}, is_always_json=False))
    own_fields = tool.get("response_fields", [])
    if not isinstance(own_fields, list) or not all(isinstance(each, str) for each in own_fields):
        raise UnsupportedOperation("its response_fields are not a list of JSON pointers")
    fields = [*own_fields, *list_response_fields(service, get_key(tool))]
    if not fields:
        return schema, None
    if not isinstance(schema, dict):
        raise UnsupportedOperation("its output_schema is not an object")
    return keep_fields(schema, fields), fields


def _list_parameters(input_schema: Json, path: str) -> list[Json]:
    path_names = _PLACEHOLDER.findall(path)
    places = {name: "path" if name in path_names else "query" for name in (*path_names, *input_schema["properties"])}
    return [
        {
            "argument": name,
            "name": name,
            "place": place,
            "style": "simple" if place == "path" else "form",
            "explode": place == "query",
        }
        for name, place in places.items()
        if name != BODY_ARGUMENT
    ]


def _find_place(service: ServiceSettings) -> Json:
    security = service.security
    return {"place": security} if security in ("bearer", "basic") else {"place": "header", "name": security}
