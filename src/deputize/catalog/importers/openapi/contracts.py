"""Build the contracts of a service from its OpenAPI document; large documents in another process.

The document provides names, descriptions, schemas and the request of each operation. What the operations do comes from
their methods and from the operator's settings in `[[services]]`. An operation that cannot be represented exactly is
refused with the reason, never imported in part.

`operations/servers/services.py` registers these contracts; nothing here uses the network.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from pydantic import ValidationError

from deputize.catalog.importers.examples import build_example_call
from deputize.catalog.importers.mcp import collect_failure_fields, has_matching_glob
from deputize.catalog.importers.openapi.document import (
    DocumentOperation,
    Json,
    OpenApiDocument,
    UnsupportedOperation,
    iterate_operations,
    list_generated_names,
)
from deputize.catalog.importers.openapi.document_schemas import SchemaConverter
from deputize.catalog.importers.openapi.pagination import find_pagination
from deputize.catalog.importers.openapi.parameters import OperationArguments, collect_arguments
from deputize.catalog.importers.openapi.responses import ResultSchema, build_error_schema, build_result_schema
from deputize.catalog.importers.openapi.security import OperationSecurity, read_security
from deputize.catalog.importers.server_facts import mark_arguments
from deputize.catalog.importers.server_schemas import EnforcedSchema, convert_input_schema
from deputize.catalog.importers.tool_names import assign_names
from deputize.catalog.registration_rules import admit_contract
from deputize.catalog.schemas import BadSchema, compile_schema
from deputize.catalog.versions import FIRST_VERSION
from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.contract.contract import Contract, Effects, TimeoutClass, ToolKind, UpstreamIdempotency
from deputize.core.contract.http_request import READ_METHODS
from deputize.core.errors import ToolNotAdmitted
from deputize.core.settings import ServiceSettings
from deputize.core.value_types import frozen

# A path without query, fragment and percent signs, which could hide a climbing step.
_PATH = re.compile(r"/[A-Za-z0-9!$&'()*+,./:;=@\[\]_{}|~^-]*")
_CLIMBING: Final = frozenset({".", ".."})
_LONGEST_TITLE: Final = 255
_LONGEST_DESCRIPTION: Final = 2000
_SHORTEST_DESCRIPTION: Final = 10
_LONGEST_TARGET: Final = 400
_LONGEST_TAG: Final = 48
_MOST_TAGS: Final = 10
_MOST_UNENFORCED: Final = 50


@frozen
class RefusedOperation:
    """An operation that cannot be imported, and why."""

    key: str
    method: str
    path: str
    reason: str


@frozen
class BuiltService:
    """The contracts of a service by the keys of their operations, and the operations that were refused."""

    contracts: Mapping[str, Contract]
    refusals: tuple[RefusedOperation, ...]


class _ContractBuilder:
    """Builds the contracts of one service; definitions that operations share are converted once."""

    def __init__(self, service: ServiceSettings, document: OpenApiDocument) -> None:
        self._service = service
        self._document = document
        self._requests = SchemaConverter(document, "request")
        self._responses = SchemaConverter(document, "response")

    def build(self, operation: DocumentOperation, short_name: str, version: str) -> Contract:
        """Build and admit one contract, or raise `UnsupportedOperation` or `ToolNotAdmitted`."""
        if operation.method == "trace":
            raise UnsupportedOperation("it uses TRACE, which sends the credential back")
        target = f"{self._service.name}/{operation.key}"
        if len(target) > _LONGEST_TARGET or len(operation.path) > _LONGEST_TARGET:
            raise UnsupportedOperation(f"its id or path has more than {_LONGEST_TARGET} characters")
        check_path(operation.path)
        if _has_own_servers(self._document, operation):
            raise UnsupportedOperation("it names a server of its own, and the service has one URL")
        security = read_security(self._document, operation, self._service.security, self._service.further_secrets)
        arguments = collect_arguments(self._document, operation)
        fields_kept = list_response_fields(self._service, operation.key)
        result = build_result_schema(self._document, operation, self._responses, fields_kept)
        input_schema = self._build_input_schema(arguments)
        mark_arguments(input_schema.schema, self._service)
        error_schema = build_error_schema(self._document, operation, self._responses)
        fields = {
            **({} if error_schema is None else {"error_schema": error_schema}),
            **self._collect_document_fields(operation, arguments, result, input_schema, security),
            **collect_operator_fields(
                self._service,
                operation.key,
                infer_effects(self._service, operation),
                has_credential=security.credential is not None,
                takes_key=arguments.idempotency_header is not None,
            ),
            "handler": self._build_handler(target, operation, arguments, result, security),
            "namespace": self._service.name,
            "name": short_name,
            "version": version,
        }
        try:
            contract = Contract.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = "/".join(str(part) for part in first["loc"])
            raise UnsupportedOperation(f"its {place} is not valid: {first['msg']}") from error
        admit_contract(contract)
        return contract

    def _build_input_schema(self, arguments: OperationArguments) -> EnforcedSchema:
        properties: Json = {}
        references: list[str] = []
        for name, part in arguments.properties.items():
            properties[name], part_references = self._requests.convert(part)
            references += part_references
        definitions = self._requests.collect_definitions(references)
        return convert_input_schema(
            {
                "type": "object",
                "properties": properties,
                **({"required": arguments.required_names} if arguments.required_names else {}),
                **({"$defs": definitions} if definitions else {}),
            }
        )

    def _build_handler(
        self,
        target: str,
        operation: DocumentOperation,
        arguments: OperationArguments,
        result: ResultSchema,
        security: OperationSecurity,
    ) -> Json:
        request: Json = {
            "method": operation.method.upper(),
            "path": operation.path,
            "parameters": arguments.parameters,
            "body": arguments.body,
            "credential": security.credential,
            "further_credentials": security.further_credentials or None,
            "idempotency_header": arguments.idempotency_header,
            "response_headers": result.headers,
            "response_fields": list_response_fields(self._service, operation.key) or None,
        }
        return {"driver": "http", "target": target, "request": request}

    def _collect_document_fields(
        self,
        operation: DocumentOperation,
        arguments: OperationArguments,
        result: ResultSchema,
        input_schema: EnforcedSchema,
        security: OperationSecurity,
    ) -> Json:
        declaration = operation.declaration
        unenforced_paths = [*input_schema.unenforced_paths, *result.schema.unenforced_paths][:_MOST_UNENFORCED]
        example = _build_example(input_schema.schema)
        identity = declaration.get("operationId")
        native_facts: Json = {"operation": operation.key}
        native_facts.update({"left_out": arguments.notes} if arguments.notes else {})
        pagination = find_pagination(operation.method, arguments.parameters)
        native_facts.update({"pagination": pagination} if pagination else {})
        native_facts.update({"unenforced": unenforced_paths} if unenforced_paths else {})
        return {
            "title": _read_text(declaration, "summary")[:_LONGEST_TITLE],
            "description": _choose_description(self._service, operation),
            "kind": ToolKind.OPENAPI_OPERATION,
            "input_schema": input_schema.schema,
            "output_schema": result.schema.schema,
            "examples": () if example is None else (example,),
            "tags": _read_tags(declaration),
            "native_ids": {
                "openapi": {
                    "operation_id": identity[:_LONGEST_TARGET] if isinstance(identity, str) and identity else None,
                    "method": operation.method.upper(),
                    "path": operation.path,
                    "server_url": self._service.url,
                    "security_scheme_refs": security.scheme_names or None,
                }
            },
            "external_mappings": {"openapi": native_facts},
        }


def check_path(path: str) -> None:
    """Raise `UnsupportedOperation` if a path could lead elsewhere than it reads."""
    if not _PATH.fullmatch(path) or _CLIMBING.intersection(path.split("/")):
        raise UnsupportedOperation("its path does not begin with a slash, or has a query or other special parts")


def collect_operator_fields(
    service: ServiceSettings, key: str, effects: Effects, *, has_credential: bool, takes_key: bool
) -> Json:
    """Collect what the settings say about an operation. `takes_key` is true if it gets the call's idempotency key."""
    is_read = effects is Effects.READ
    is_repeatable = takes_key or has_matching_glob(service.repeatable, key)
    write_idempotency = UpstreamIdempotency.DEDUPLICATES if is_repeatable else UpstreamIdempotency.CANNOT
    # The settings do not say what exactly the operation changes, so the scope is the whole service.
    resource = {"resource": service.name, "op": "update" if effects is Effects.WRITE else "delete", "scope": "*"}
    credential = service.credential if has_credential else "none"
    is_slow = has_matching_glob(service.slow, key)
    return {
        "effects": effects,
        "resources": () if is_read else (resource,),
        "auth": {
            "scopes": service.scopes if is_read else list_service_scopes(service),
            "credential": credential,
            "secret": service.secret if credential == "vault" else None,
            "audience": service.audience if credential == "delegated" else None,
        },
        "timeout": {"timeout_class": TimeoutClass.LONG_RUNNING if is_slow else TimeoutClass.STANDARD},
        "idempotency": {"upstream": UpstreamIdempotency.IDEMPOTENT if is_read else write_idempotency},
        "observability": {"cost_category": "api"},
        "external_service": service.name,
        **collect_failure_fields(service, key, is_read=is_read),
        "provider": service.name,
    }


def build_service(
    service: ServiceSettings,
    document: OpenApiDocument,
    *,
    existing_names: Mapping[str, str] | None = None,
    newest_versions: Mapping[str, str] | None = None,
) -> BuiltService:
    """Build the contracts of the operations that the settings serve.

    `existing_names` has the short names that operations are registered under, by key, and `newest_versions` the newest
    version of each short name, which the contract gets too.
    """
    builder, versions = _ContractBuilder(service, document), newest_versions or {}
    declared = list(iterate_operations(document))
    operations = [each for each in declared if is_operation_served(service, each.key)]
    keys = [each.key for each in operations]
    names = assign_names(service.name, keys, existing_names or {}, list_generated_names(declared))
    contracts: dict[str, Contract] = {}
    refusals: list[RefusedOperation] = []
    for each in operations:
        try:
            name = names[each.key]
            contracts[each.key] = builder.build(each, name, versions.get(name, FIRST_VERSION))
        except (UnsupportedOperation, ToolNotAdmitted) as error:
            refusals.append(
                RefusedOperation(key=each.key, method=each.method.upper(), path=each.path, reason=format_refusal(error))
            )
    return BuiltService(contracts=contracts, refusals=tuple(refusals))


def list_response_fields(service: ServiceSettings, key: str) -> tuple[str, ...]:
    """List the fields of an operation's response that the settings keep; nothing if all of it is kept."""
    fields = (each for glob, each in service.response_fields.items() if has_matching_glob((glob,), key))
    return tuple(dict.fromkeys(pointer for each in fields for pointer in each))


def is_operation_served(service: ServiceSettings, key: str) -> bool:
    """Tell whether the settings serve the operation with this key."""
    return has_matching_glob(service.operations, key) and not has_matching_glob(service.excluded_operations, key)


def infer_effects(service: ServiceSettings, operation: DocumentOperation) -> Effects:
    """Infer what an operation does: the strictest setting that names it, else its method."""
    if has_matching_glob(service.destructive, operation.key):
        return Effects.DESTRUCTIVE
    if has_matching_glob(service.writes, operation.key):
        return Effects.WRITE
    is_read = operation.method.upper() in READ_METHODS or has_matching_glob(service.reads, operation.key)
    return Effects.READ if is_read else Effects.DESTRUCTIVE


def list_service_scopes(service: ServiceSettings) -> tuple[str, ...]:
    """List the scopes that the service's tools require of callers."""
    return service.scopes or (f"{service.name}:write",)


def list_unknown_globs(service: ServiceSettings, keys: Collection[str]) -> list[str]:
    """List the globs of the settings that match no operation: probably a spelling mistake."""
    fields = ("operations", "excluded_operations", "reads", "writes", "destructive", "repeatable", "slow")
    globs = [glob for field in (*fields, "response_fields", "retry", "freshness") for glob in getattr(service, field)]
    return [glob for glob in dict.fromkeys(globs) if not any(has_matching_glob((glob,), key) for key in keys)]


def format_refusal(error: UnsupportedOperation | ToolNotAdmitted) -> str:
    """Format the reason for which an operation was refused."""
    if isinstance(error, UnsupportedOperation):
        return str(error)
    reasons = error.details.get("reasons") or []
    return "; ".join(f"{each['path']} {each['reason']}".strip() for each in reasons[:3]) or error.message


def _has_own_servers(document: OpenApiDocument, operation: DocumentOperation) -> bool:
    own = operation.declaration.get("servers", operation.path_item.get("servers"))
    return bool(own) and own != document.content.get("servers")


def _choose_description(service: ServiceSettings, operation: DocumentOperation) -> str:
    """Choose the description, the summary or a default sentence, cut to the length a contract allows."""
    declaration = operation.declaration
    text = _read_text(declaration, "description") or _read_text(declaration, "summary")
    fallback = f"The operation {operation.method.upper()} {operation.path} of the service {service.name}."
    if len(text) < _SHORTEST_DESCRIPTION:
        text = f"{text}. {fallback}" if text else fallback
    if declaration.get("deprecated") is True:
        text = f"Deprecated by its service. {text}"
    return text if len(text) <= _LONGEST_DESCRIPTION else text[: _LONGEST_DESCRIPTION - 1] + "…"


def _read_text(declaration: Json, field: str) -> str:
    value = declaration.get(field)
    return value.strip() if isinstance(value, str) else ""


def _read_tags(declaration: Json) -> list[str]:
    tags = declaration.get("tags")
    texts = [each.strip()[:_LONGEST_TAG] for each in tags if isinstance(each, str)] if isinstance(tags, list) else []
    return list(dict.fromkeys(each for each in texts if each))[:_MOST_TAGS]


def _build_example(schema: Json) -> dict[str, Any] | None:
    """Build a valid example call from the document's own examples; None if they are not enough."""
    try:
        example = build_example_call(schema)
        canonicalize(example)
        return example if example is not None and compile_schema(schema).is_valid(example) else None
    except (BadSchema, NotCanonical, TypeError, AttributeError, LookupError):
        return None  # an invalid schema, which admission reports
