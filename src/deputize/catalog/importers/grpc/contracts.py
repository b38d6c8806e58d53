"""Build the contracts of a gRPC service from its descriptor set.

The document provides names, comments and messages. What the methods do comes from the operator's settings in
`[[services]]`, and from `idempotency_level = NO_SIDE_EFFECTS`. A method that cannot be represented exactly is refused
with the reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from deputize.catalog.importers.grpc.descriptor_set import GrpcDocument, GrpcMethod, pack_definitions
from deputize.catalog.importers.grpc.message_schemas import MessageSchemas
from deputize.catalog.importers.mcp import has_matching_glob
from deputize.catalog.importers.openapi.contracts import (
    BuiltService,
    RefusedOperation,
    collect_operator_fields,
    format_refusal,
    is_operation_served,
)
from deputize.catalog.importers.openapi.document import Json, UnsupportedOperation
from deputize.catalog.importers.server_facts import mark_arguments
from deputize.catalog.importers.server_schemas import convert_input_schema, convert_schema
from deputize.catalog.importers.tool_names import assign_names
from deputize.catalog.registration_rules import admit_contract
from deputize.catalog.versions import FIRST_VERSION
from deputize.core.contract.contract import Contract, Effects, ToolKind
from deputize.core.contract.http_request import GRPC_MEDIA_TYPE
from deputize.core.errors import ToolNotAdmitted
from deputize.core.settings import ServiceSettings

_LONGEST_TARGET: Final = 400
_LONGEST_DESCRIPTION: Final = 2000
_SHORTEST_DESCRIPTION: Final = 10
_MOST_UNENFORCED: Final = 50


def build_grpc_service(
    service: ServiceSettings,
    document: GrpcDocument,
    *,
    existing_names: Mapping[str, str] | None = None,
    newest_versions: Mapping[str, str] | None = None,
) -> BuiltService:
    """Build the contracts of the methods that the settings serve; the arguments are those of `build_service`."""
    methods = [each for each in document.methods if is_operation_served(service, each.key)]
    names, versions = _assign_names(service.name, methods, existing_names or {}), newest_versions or {}
    contracts: dict[str, Contract] = {}
    refusals: list[RefusedOperation] = []
    for each in methods:
        try:
            name = names[each.key]
            contracts[each.key] = _build_contract(service, document, each, name, versions.get(name, FIRST_VERSION))
        except (UnsupportedOperation, ToolNotAdmitted) as error:
            refusals.append(RefusedOperation(key=each.key, method="RPC", path=each.path, reason=format_refusal(error)))
    return BuiltService(contracts=contracts, refusals=tuple(refusals))


def infer_method_effects(service: ServiceSettings, method: GrpcMethod) -> Effects:
    """Infer what a method does: the strictest setting that names it, else what the document declares."""
    if has_matching_glob(service.destructive, method.key):
        return Effects.DESTRUCTIVE
    if has_matching_glob(service.writes, method.key):
        return Effects.WRITE
    is_read = method.reads or has_matching_glob(service.reads, method.key)
    return Effects.READ if is_read else Effects.DESTRUCTIVE


def _assign_names(namespace: str, methods: Sequence[GrpcMethod], existing_names: Mapping[str, str]) -> dict[str, str]:
    """Name each tool after its method alone, or after its service too where several have such a method."""
    counts = Counter(each.descriptor.name for each in methods)
    labels: dict[str, str] = {}
    for each in methods:
        service, name = each.descriptor.containing_service.name, each.descriptor.name
        label = name if counts[name] == 1 else f"{service}_{name}"
        labels[each.key] = each.key if label in labels.values() else label
    # Names of methods that are no longer served, and of other tools, stay taken.
    existing_by_label = {labels.get(key, f"\0{key}"): name for key, name in existing_names.items()}
    names = assign_names(namespace, list(labels.values()), existing_by_label)
    return {key: names[label] for key, label in labels.items()}


def _build_contract(
    service: ServiceSettings, document: GrpcDocument, method: GrpcMethod, name: str, version: str
) -> Contract:
    """Build and admit one contract, or raise `UnsupportedOperation` or `ToolNotAdmitted`."""
    descriptor, target = method.descriptor, f"{service.name}/{method.key}"
    if descriptor.client_streaming or descriptor.server_streaming:
        raise UnsupportedOperation("it streams, and a call has one request and one response")
    if len(target) > _LONGEST_TARGET:
        raise UnsupportedOperation(f"its name has more than {_LONGEST_TARGET} characters")
    input_schema = convert_input_schema(MessageSchemas(document.comments, "request").build(descriptor.input_type))
    mark_arguments(input_schema.schema, service)
    output_schema = convert_schema(
        MessageSchemas(document.comments, "response").build(descriptor.output_type), base_path=("output_schema",)
    )
    unenforced_paths = [*input_schema.unenforced_paths, *output_schema.unenforced_paths][:_MOST_UNENFORCED]
    fields = {
        "title": descriptor.name,
        "description": _choose_description(service, method),
        "kind": ToolKind.CUSTOM,
        "input_schema": input_schema.schema,
        "output_schema": output_schema.schema,
        "external_mappings": {
            "grpc": {
                "method": method.key,
                "server_url": service.url,
                **({"unenforced": unenforced_paths} if unenforced_paths else {}),
            }
        },
        **collect_operator_fields(
            service,
            method.key,
            infer_method_effects(service, method),
            has_credential=service.credential != "none",
            takes_key=False,
        ),
        "handler": {"driver": "grpc", "target": target, "request": _build_request(service, method)},
        "namespace": service.name,
        "name": name,
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


def _build_request(service: ServiceSettings, method: GrpcMethod) -> Json:
    credential: Json | None = None
    if service.credential != "none":
        is_bearer = service.security == "bearer"
        credential = {"place": "bearer"} if is_bearer else {"place": "header", "name": service.security}
    return {
        "method": "POST",
        "path": method.path,
        "body": GRPC_MEDIA_TYPE,
        "credential": credential,
        "messages": pack_definitions(method.descriptor),
    }


def _choose_description(service: ServiceSettings, method: GrpcMethod) -> str:
    text, fallback = method.comment, f"The method {method.key} of the service {service.name}."
    if len(text) < _SHORTEST_DESCRIPTION:
        text = f"{text}. {fallback}" if text else fallback
    return text if len(text) <= _LONGEST_DESCRIPTION else text[: _LONGEST_DESCRIPTION - 1] + "…"
