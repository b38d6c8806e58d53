"""Build the contracts of commands that an operator names: `command: [wc, --words]` and what a call takes.

Such a manifest is the document of a service whose programs run in sandboxes. Its copy in the project is pinned, and has
the path and the digest of each program: nothing else runs, whatever a registered contract says.
"""

from collections.abc import Mapping
from typing import Final

from deputize.catalog.importers.declaration import choose_idempotency
from deputize.catalog.importers.http_manifest import (
    SERVICE_FIELDS,
    complete_input_schema,
    format_refusal,
    get_key,
    list_tools,
)
from deputize.catalog.importers.manifest import parse_contract
from deputize.catalog.importers.openapi.contracts import (
    BuiltService,
    RefusedOperation,
    collect_operator_fields,
    is_operation_served,
)
from deputize.catalog.importers.openapi.document import InvalidDocument, Json, UnsupportedOperation, parse_content
from deputize.catalog.importers.server_facts import mark_arguments
from deputize.catalog.registration_rules import admit_contract
from deputize.catalog.versions import FIRST_VERSION
from deputize.core.contract.contract import Contract, Effects, ToolKind
from deputize.core.errors import ToolNotAdmitted
from deputize.core.settings import ServiceSettings

# Fields of a tool that say what its command is; those of the program are in `command` and `sha256`.
_COMMAND_FIELDS: Final = (
    "stdin", "environment", "folders", "working_folder", "output", "output_bytes", "exit_codes", "files",
)  # fmt: skip


def parse_command_manifest(document: bytes) -> list[Json]:
    """Parse the tools of a manifest whose programs are pinned, or raise `InvalidDocument`."""
    tools = list_tools(parse_content(document))
    for each in tools:
        words = each.get("command")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise InvalidDocument("each tool needs command: [PROGRAM, ARGUMENT, …], each in quotes if it is a number")
    return tools


def build_command_manifest(
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
            words = " ".join(tool["command"])
            refusals.append(RefusedOperation(key=key, method="run", path=words, reason=format_refusal(error)))
    return BuiltService(contracts=contracts, refusals=tuple(refusals))


def _build_contract(service: ServiceSettings, tool: Json, version: str) -> Contract:
    key = get_key(tool)
    if not tool["name"].startswith(f"{service.name}."):
        raise UnsupportedOperation(f"its name does not begin with the name of the service: write {service.name}.{key}")
    if own_fields := [field for field in SERVICE_FIELDS if field in tool]:
        raise UnsupportedOperation(f"its {own_fields[0]} follows from the settings of the service: remove it")
    input_schema = complete_input_schema(tool.get("input_schema", {}), ())
    mark_arguments(input_schema, service)
    target, (program, *arguments) = f"{service.name}/{key}", tool["command"]
    command: Json = {
        "program": program,
        "sha256": tool.get("sha256"),
        "arguments": arguments,
        **{field: tool[field] for field in _COMMAND_FIELDS if field in tool},
    }
    network, sandbox = tool.get("network"), tool.get("sandbox", {})
    tier = _choose_tier(command, network if isinstance(network, dict) else {})
    sandbox = {"tier": tier, **sandbox} if isinstance(sandbox, dict) else sandbox
    effects = tool.get("effects", Effects.READ if tier < 2 else Effects.DESTRUCTIVE)
    settings_fields = collect_operator_fields(
        service, key, Effects(effects) if effects in list(Effects) else Effects.DESTRUCTIVE,
        has_credential=False, takes_key=False,
    )  # fmt: skip
    contract = parse_contract(
        {
            **settings_fields,
            "idempotency": choose_idempotency(effects),
            "output_schema": _make_result_schema(command),
            # A person approves each call of what may do anything.
            "requires_user_interaction": isinstance(sandbox, dict) and sandbox.get("tier") == 3,
            **{field: value for field, value in tool.items() if field not in ("command", "sha256", *_COMMAND_FIELDS)},
            "effects": effects,
            "sandbox": sandbox,
            "input_schema": input_schema,
            "version": version,
            "kind": ToolKind.SHELL_COMMAND,
            "native_ids": {"command": {"command_id": target}},
            "handler": {"driver": "command", "target": target, "command": command},
        }
    )
    admit_contract(contract)
    return contract


def _choose_tier(command: Json, network: Json) -> int:
    """Choose the lowest tier for what the program is given; `check_command` compares it with what was declared."""
    folders = command.get("folders") or []
    if isinstance(folders, list) and any(isinstance(each, dict) and each.get("write") for each in folders):
        return 3
    if network.get("allowed_domains"):
        return 2
    return 1 if folders else 0


def _make_result_schema(command: Json) -> Json:
    """Make the schema of the result of a command."""
    text = {"type": "string"}
    file = {
        "type": "object",
        "properties": {"path": text, "bytes": {"type": "integer"}, "text": text, "base64": text},
        "required": ["path", "bytes"],
    }
    connection = {"type": "object", "properties": {"target": text, "refused": text}, "required": ["target"]}
    properties: Json = {"exit_code": {"type": "integer"}, "stdout": text, "stderr": text}
    if command.get("output") == "json":
        properties["output"] = {}
    if "files" in command:
        properties["files"] = {"type": "array", "items": file}
    properties["connections"] = {"type": "array", "items": connection}
    return {"type": "object", "properties": properties, "required": ["exit_code"]}
