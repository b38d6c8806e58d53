"""Build the contracts of a service in another process, because the size of its document is not ours to choose.

`build_service_job` runs in that process (`execute/job_processes.py`).
"""

import asyncio
import importlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from deputize.catalog.importers.command_manifest import build_command_manifest, parse_command_manifest
from deputize.catalog.importers.http_manifest import build_http_manifest, parse_http_manifest
from deputize.catalog.importers.manifest_job import JobRunner
from deputize.catalog.importers.openapi.contracts import BuiltService, RefusedOperation, build_service
from deputize.catalog.importers.openapi.document import InvalidDocument, parse_document
from deputize.core.contract.serialized_contract import SerializedContract
from deputize.core.errors import ToolNotAdmitted
from deputize.core.settings import ServiceSettings
from deputize.core.value_types import frozen


@frozen
class ServiceContracts:
    """The serialized contracts of a service by operation, and the refused operations."""

    contracts: Mapping[str, SerializedContract]
    refusals: tuple[RefusedOperation, ...]


async def build_service_off_loop(
    service: ServiceSettings,
    document: bytes,
    existing_names: Mapping[str, str],
    newest_versions: Mapping[str, str],
    run_job: JobRunner,
) -> ServiceContracts:
    """Build the contracts of a service, or raise `ToolNotAdmitted` if its document cannot be used."""
    header = orjson.dumps(
        {"service": service.model_dump(mode="json"), "names": dict(existing_names), "versions": dict(newest_versions)}
    )
    reply = await run_job(build_service_job, header + b"\n" + document)
    if reply is None:
        raise ToolNotAdmitted(
            f"the document of the service {service.name} takes too long to read, or too many others are waiting"
        )
    if reply[:1] == b"-":
        raise ToolNotAdmitted(f"the service {service.name} cannot be imported: {reply[1:].decode()}")
    return await asyncio.to_thread(_parse_reply, reply[1:])


def build_service_job(payload: bytes) -> bytes:
    """Build contracts in another process: `+` and the contracts with the refusals, or `-` and the reason."""
    header, _, document = payload.partition(b"\n")
    request = orjson.loads(header)
    service = ServiceSettings.model_validate(request["service"])
    try:
        service_contracts = build_contracts(
            service, document, existing_names=request["names"], newest_versions=request["versions"]
        )
    except InvalidDocument as error:
        return b"-" + str(error).encode()
    contracts = {
        key: SerializedContract.from_contract(contract).raw.decode()
        for key, contract in service_contracts.contracts.items()
    }
    return b"+" + orjson.dumps(
        {"contracts": contracts, "refusals": [asdict(each) for each in service_contracts.refusals]}
    )


def build_contracts(
    service: ServiceSettings,
    document: bytes,
    *,
    existing_names: Mapping[str, str] | None = None,
    newest_versions: Mapping[str, str] | None = None,
) -> BuiltService:
    """Build the contracts of a service of any kind; raise `InvalidDocument` if its document cannot be used."""
    if service.kind == "openapi":
        return build_service(
            service,
            parse_document(document),
            existing_names=existing_names,
            newest_versions=newest_versions,
        )
    if service.kind == "manifest":
        return build_http_manifest(
            service,
            parse_http_manifest(document),
            existing_names=existing_names,
            newest_versions=newest_versions,
        )
    if service.kind == "commands":
        return build_command_manifest(
            service,
            parse_command_manifest(document),
            existing_names=existing_names,
            newest_versions=newest_versions,
        )
    descriptors, contracts = load_grpc_modules()
    service_contracts: BuiltService = contracts.build_grpc_service(
        service,
        descriptors.parse_descriptor_set(document),
        existing_names=existing_names,
        newest_versions=newest_versions,
    )
    return service_contracts


def load_grpc_modules() -> tuple[Any, Any]:
    """Load the modules that read descriptor sets and build contracts of them; Protocol Buffers are an extra."""
    try:
        return (
            importlib.import_module("deputize.catalog.importers.grpc.descriptor_set"),
            importlib.import_module("deputize.catalog.importers.grpc.contracts"),
        )
    except ModuleNotFoundError as error:
        raise InvalidDocument("gRPC is not installed: pip install 'deputize[grpc]'") from error


def _parse_reply(reply: bytes) -> ServiceContracts:
    answer = orjson.loads(reply)
    return ServiceContracts(
        contracts={key: SerializedContract.from_bytes(raw.encode()) for key, raw in answer["contracts"].items()},
        refusals=tuple(RefusedOperation(**each) for each in answer["refusals"]),
    )
