"""Build the contracts that a server's tools and methods are registered as; what may take long in another process.

`build_contracts_job` runs in that process (`execute/job_processes.py`). Names and facts of other tools are compared by
the caller, who has the registry at hand.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from deputize.catalog.importers.manifest_job import JobRunner
from deputize.catalog.importers.mcp import build_tool_contract, increment_major
from deputize.catalog.importers.mcp_resources import build_method_contract, choose_method_name
from deputize.catalog.importers.tool_names import assign_names
from deputize.catalog.schema_cost import is_quick_to_check
from deputize.catalog.versions import FIRST_VERSION
from deputize.core.contract.contract import Contract, Effects
from deputize.core.contract.serialized_contract import SerializedContract
from deputize.core.errors import ToolNotAdmitted, UpstreamUnavailable
from deputize.core.mcp.servers import Definition, DefinitionKind
from deputize.core.settings import McpServerSettings

# Kinds that become contracts; the others are pinned as the server declared them.
CONTRACT_KINDS: Final = frozenset({DefinitionKind.TOOL, DefinitionKind.METHOD})
# Settings that no contract depends on, and that may be secret.
_EXCLUDED_SETTINGS: Final = {"env", "files"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredNames:
    """What is registered in a server's namespace: short names by the server's own names, and their newest versions.

    `confirmed_effects` has what an operator confirmed about definitions, by their digests.
    """

    by_tool: Mapping[str, str]
    by_method: Mapping[str, str]
    newest_versions: Mapping[str, str]
    confirmed_effects: Mapping[str, Effects] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltContracts:
    """The contracts that could be built, and why the others could not, by item."""

    contracts: Mapping[str, SerializedContract]
    rejections: Mapping[str, ToolNotAdmitted]


async def build_contracts_off_loop(
    server: McpServerSettings, definitions: Sequence[Definition], registered_names: RegisteredNames, run_job: JobRunner
) -> BuiltContracts:
    """Build contracts as `build_contracts` does: simple ones in a thread, others in another process."""
    payload = await asyncio.to_thread(_build_payload, server, definitions, registered_names)
    if is_quick_to_check(payload):
        return await asyncio.to_thread(build_contracts, server, definitions, registered_names)
    reply = await run_job(build_contracts_job, payload)
    if reply is None:
        raise UpstreamUnavailable(
            f"the definitions of {server.name} take too long to check, or too many others are waiting",
            nothing_happened=True,
        )
    return await asyncio.to_thread(_parse_reply, reply)


def build_contracts(
    server: McpServerSettings, definitions: Sequence[Definition], registered_names: RegisteredNames
) -> BuiltContracts:
    """Build and admit each contract, or the reason why it is invalid; resources and prompts have none.

    A known tool keeps its name and gets a new version.
    """
    short_names = assign_names(
        server.name,
        [each.name for each in definitions if each.kind is DefinitionKind.TOOL],
        dict(registered_names.by_tool),
    )
    used_names = {*registered_names.by_tool.values(), *short_names.values()}
    contracts: dict[str, SerializedContract] = {}
    rejections: dict[str, ToolNotAdmitted] = {}
    for each in definitions:
        if each.kind not in CONTRACT_KINDS:
            continue
        if each.kind is DefinitionKind.TOOL:
            short_name = short_names[each.name]
        else:
            short_name = registered_names.by_method.get(each.name) or choose_method_name(each.name, used_names)
        try:
            newest_version = registered_names.newest_versions.get(short_name)
            version = FIRST_VERSION if newest_version is None else increment_major(newest_version)
            contract = build_contract(server, each, short_name, version, registered_names.confirmed_effects)
            contracts[each.item] = SerializedContract.from_contract(contract)
        except ToolNotAdmitted as problem:
            rejections[each.item] = problem
    return BuiltContracts(contracts=contracts, rejections=rejections)


def build_contract(
    server: McpServerSettings,
    definition: Definition,
    short_name: str,
    version: str,
    confirmed_effects: Mapping[str, Effects],
) -> Contract:
    """Build the contract of a tool or method, or raise `ToolNotAdmitted`."""
    if definition.kind is not DefinitionKind.TOOL:
        return build_method_contract(server, definition, registered_name=short_name, version=version)
    return build_tool_contract(
        server,
        definition,
        registered_name=short_name,
        version=version,
        confirmed_effects=confirmed_effects.get(definition.digest),
    )


def build_contracts_job(payload: bytes) -> bytes:
    """Build contracts in another process; reply with their bytes, and the refusals of the others."""
    request = orjson.loads(payload)
    definitions = [
        Definition(name=name, declaration=declaration, digest=digest, kind=DefinitionKind(kind))
        for kind, name, declaration, digest in request["definitions"]
    ]
    server = McpServerSettings.model_validate(request["server"])
    confirmed_effects = {
        digest: Effects(each) for digest, each in request["registered"].pop("confirmed_effects").items()
    }
    registered_names = RegisteredNames(**request["registered"], confirmed_effects=confirmed_effects)
    built_contracts = build_contracts(server, definitions, registered_names)
    reply: dict[str, Any] = {
        "contracts": {item: each.raw.decode() for item, each in built_contracts.contracts.items()},
        "rejections": {
            item: {"message": each.message, "details": each.details}
            for item, each in built_contracts.rejections.items()
        },
    }
    return orjson.dumps(reply)


def _build_payload(
    server: McpServerSettings, definitions: Sequence[Definition], registered_names: RegisteredNames
) -> bytes:
    return orjson.dumps(
        {
            "server": server.model_dump(mode="json", exclude=_EXCLUDED_SETTINGS),
            "definitions": [(each.kind, each.name, each.declaration, each.digest) for each in definitions],
            "registered": asdict(registered_names),
        }
    )


def _parse_reply(reply: bytes) -> BuiltContracts:
    answer = orjson.loads(reply)
    return BuiltContracts(
        contracts={item: SerializedContract.from_bytes(raw.encode()) for item, raw in answer["contracts"].items()},
        rejections={
            item: ToolNotAdmitted(each["message"], details=each["details"])
            for item, each in answer["rejections"].items()
        },
    )
