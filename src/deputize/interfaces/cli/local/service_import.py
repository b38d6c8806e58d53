"""Plan the import of a service: read its document, build its contracts, and compare with what was imported."""

import asyncio
import hashlib
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import ValidationError

from deputize.catalog.drift.flags import DefinitionIndex, Flag, find_flags
from deputize.catalog.importers.command_manifest import parse_command_manifest
from deputize.catalog.importers.http_manifest import get_key, is_manifest, list_tools, parse_http_manifest
from deputize.catalog.importers.openapi.contracts import BuiltService, list_unknown_globs
from deputize.catalog.importers.openapi.document import (
    MAX_DOCUMENT_BYTES,
    InvalidDocument,
    OpenApiDocument,
    check_document,
    find_server_url,
    iterate_operations,
    parse_content,
)
from deputize.catalog.importers.openapi.security import choose_schemes, propose_link
from deputize.catalog.importers.openapi.service_job import build_contracts, load_grpc_modules
from deputize.catalog.importers.tool_names import normalize_name
from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Contract
from deputize.core.errors import Problem
from deputize.core.mcp.servers import Definition
from deputize.core.settings import ServiceSettings, Settings
from deputize.execute.egress import Egress, normalize_host
from deputize.execute.ip_filter import is_public_address
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE
from deputize.interfaces.cli.local.referenced_documents import include_allowed_references
from deputize.interfaces.cli.local.service_changes import OperationChange, list_operation_changes
from deputize.interfaces.cli.local.settings_text import (
    read_settings_text,
    render_table,
    update_table,
    write_settings_text,
)

SERVICES_FOLDER: Final = "services"
_FETCH_SECONDS: Final = 60.0
_LONGEST_NAME: Final = 48


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOptions:
    """What the command line says about a service. `folder` is where it was typed, for paths in it."""

    name: str | None
    url: str | None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    security: str | None = None
    allow_refs: tuple[str, ...] = ()
    record_arguments: bool = False
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportPlan:
    """A service as it would be imported. `new_keys`, `changes` and `removed_keys` tell what differs from the imported
    document, by operation. `flags` are texts that may be meant to mislead an agent, by operation.
    """

    service: ServiceSettings
    document: bytes
    title: str
    contents: BuiltService
    operation_count: int
    is_new: bool
    new_keys: tuple[str, ...] = ()
    changes: dict[str, tuple[OperationChange, ...]] = field(default_factory=dict)
    removed_keys: tuple[str, ...] = ()
    unknown_globs: tuple[str, ...] = ()
    flags: dict[str, tuple[Flag, ...]] = field(default_factory=dict)
    table: dict[str, Any] = field(default_factory=dict)
    old_sha256: str = ""

    @property
    def is_document_changed(self) -> bool:
        """Whether there is anything to write."""
        return self.is_new or self.old_sha256 != self.service.sha256

    @property
    def changes_known_tools(self) -> bool:
        """Whether tools differ from those that a person imported before."""
        return not self.is_new and bool(self.new_keys or self.changes or self.removed_keys)

    def find_key(self, tool: str) -> str | None:
        """Find the operation id behind a tool's name: patterns match ids, and names may be shorter."""
        contracts = self.contents.contracts.items()
        return next((key for key, each in contracts if tool in (each.name, each.full_name)), None)


def read_source(source: str) -> bytes:
    """Read the document from a file or a URL."""
    if source.startswith(("https://", "http://")):
        return asyncio.run(_fetch_source(source))
    try:
        # A named pipe must not block, and a device must not be read without end.
        with open(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            return stream.read(MAX_DOCUMENT_BYTES + 1) or b""
    except OSError as error:
        raise ConfigError(f"{source} cannot be read ({error.strerror}): name the OpenAPI document.") from None


async def _fetch_source(url: str) -> bytes:
    # The person who types a URL may name a private host; a redirect leads to public ones only.
    egress = Egress(frozenset({urlsplit(url).hostname or ""}), max_bytes=MAX_DOCUMENT_BYTES, seconds=_FETCH_SECONDS)
    try:
        return await egress.get(url)
    except Problem as problem:
        raise ConfigError(f"{url} cannot be fetched: {problem.message}.") from None
    finally:
        await egress.aclose()


def plan_import(source: str, content: bytes, options: ImportOptions) -> ImportPlan:
    """Plan the import of a document, or raise `ConfigError`."""
    try:
        document = _read_document(source, content, options)
        service, table = _choose_settings(document, options)
        digest, old_sha256 = hashlib.sha256(document.content).hexdigest(), service.sha256
        service = service.model_copy(update={"sha256": digest})
        contents = build_contracts(service, document.content)
    except InvalidDocument as error:
        raise ConfigError(f"{source} cannot be imported: {error}.") from None
    if document.kind in ("manifest", "commands") and contents.refusals:
        # A person wrote it and can correct it; operations of other documents are left out instead.
        first = contents.refusals[0]
        raise ConfigError(f"{source} cannot be imported: {service.name}.{first.key}: {first.reason}.")
    is_new = bool(table)
    before = None if is_new else _build_previous(service)
    old_contracts = {} if before is None else before.contracts
    new_contracts = contents.contracts
    return ImportPlan(
        service=service,
        document=document.content,
        title=document.title,
        contents=contents,
        operation_count=len(document.keys),
        is_new=is_new,
        new_keys=tuple(key for key in new_contracts if key not in old_contracts),
        changes={
            key: list_operation_changes(old_contracts[key], each)
            for key, each in new_contracts.items()
            if key in old_contracts and old_contracts[key].digest != each.digest
        },
        removed_keys=tuple(key for key in old_contracts if key not in new_contracts),
        unknown_globs=tuple(list_unknown_globs(service, document.keys)),
        flags=_flag_texts(service.name, new_contracts),
        table={**table, "sha256": digest} if is_new else {},
        old_sha256=old_sha256,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _SourceDocument:
    """A document as it is pinned, and what it says about its service."""

    kind: Literal["openapi", "manifest", "grpc", "commands"]
    content: bytes
    title: str
    keys: tuple[str, ...]
    url: str | None = None
    scheme: str | None = None
    # Those that operations need together with it.
    further_schemes: tuple[str, ...] = ()
    # What the settings say if people sign in with accounts of their own; None if they do not.
    link: dict[str, Any] | None = None
    # Of the source, if it is a URL.
    base_url: str | None = None


def _read_document(source: str, content: bytes, options: ImportOptions) -> _SourceDocument:
    if _is_descriptor_set(content):
        descriptors, _ = load_grpc_modules()
        methods = descriptors.parse_descriptor_set(content)
        keys = tuple(each.key for each in methods.methods)
        return _SourceDocument(kind="grpc", content=content, title=methods.title, keys=keys)
    if is_manifest(value := parse_content(content), "command"):
        pinned = orjson.dumps(_pin_commands(value), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        tools = parse_command_manifest(pinned)
        title, keys = tools[0]["name"].partition(".")[0], tuple(get_key(each) for each in tools)
        return _SourceDocument(kind="commands", content=pinned, title=title, keys=keys)
    if is_manifest(value, "http"):
        tools = parse_http_manifest(content)
        return _SourceDocument(
            kind="manifest",
            content=orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
            title=tools[0]["name"].partition(".")[0],
            keys=tuple(get_key(each) for each in tools),
        )
    document = include_allowed_references(check_document(value), source, options.allow_refs, options.folder)
    operations, parts = list(iterate_operations(document)), urlsplit(source)
    base_url = f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else None
    schemes = (options.security,) if options.security else choose_schemes(document, operations)
    scheme = schemes[0] if schemes else None
    return _SourceDocument(
        kind="openapi",
        # Reformatted, so that a later import differs only where the document does.
        content=orjson.dumps(document.content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
        title=_read_title(document),
        keys=tuple(each.key for each in operations),
        url=find_server_url(document, base_url),
        scheme=scheme,
        further_schemes=schemes[1:],
        link=propose_link(document, operations, scheme),
        base_url=base_url,
    )


def _pin_commands(value: Any) -> Any:
    """Pin the programs of a manifest: the file that each is now, with its digest, and absolute paths of folders."""
    return {"tools": [_pin_command(each) for each in list_tools(value)]}


def _pin_command(tool: dict[str, Any]) -> dict[str, Any]:
    words, folders, start = tool.get("command"), tool.get("folders"), tool.get("working_folder")
    if not isinstance(words, list) or not words or not isinstance(words[0], str):
        raise InvalidDocument(f"{tool['name']} needs command: [PROGRAM, ARGUMENT, …]")
    found = shutil.which(words[0])
    if found is None:
        raise InvalidDocument(
            f"the program {words[0][:200]} of {tool['name']} was not found: install it, or correct it"
        )
    # What it is called by: several programs that are one file know by it which of them they are.
    program = os.path.abspath(found)
    with open(program, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    pinned = {**tool, "command": [program, *words[1:]], "sha256": digest}
    if isinstance(folders, list):
        folders = [each if isinstance(each, dict) else {"path": each} for each in folders]
        pinned["folders"] = [{**each, "path": os.path.abspath(str(each.get("path")))} for each in folders]
    if isinstance(start, str):
        pinned["working_folder"] = os.path.abspath(start)
    return pinned


def _is_descriptor_set(content: bytes) -> bool:
    """Tell a descriptor set from text: it begins with the tag of a file, and has bytes that no text has."""
    return content[:1] == b"\n" and any(byte < 0x20 and byte not in b"\t\n\r" for byte in content[:4096])


def _flag_texts(service: str, contracts: Mapping[str, Contract]) -> dict[str, tuple[Flag, ...]]:
    """Find hidden text and instructions to agents in what agents see of the tools, as for tools of MCP servers."""
    index = DefinitionIndex(())
    flags: dict[str, tuple[Flag, ...]] = {}
    for key, each in contracts.items():
        declaration = {"name": each.name, "description": each.description, "inputSchema": each.input_schema}
        operation_flags = find_flags(
            Definition.from_declaration({**declaration, "outputSchema": each.output_schema}),
            server=service,
            index=index,
        )
        if operation_flags:
            flags[key] = operation_flags
    return flags


def write_import(plan: ImportPlan) -> str | None:
    """Write the document and the settings; return the name of the settings' backup, None if they did not change."""
    path, old_text = plan.service.document, read_settings_text()
    if plan.is_new:
        new_text = old_text.rstrip("\n") + "\n" + render_table("services", plan.table)
    else:
        new_text = _replace_digest(old_text, plan)
    _check_settings_text(new_text, plan)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(plan.document)
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): check its permissions.") from None
    return None if new_text == old_text else write_settings_text(old_text, new_text)


def _replace_digest(old_text: str, plan: ImportPlan) -> str:
    """Replace the digest of this service only: others may be pinned to the same document."""
    name, digest = plan.service.name, {"sha256": plan.service.sha256}
    new_text = update_table(old_text, "services", name, digest)
    expected = tomllib.loads(old_text)
    expected["services"] = [{**each, **digest} if each["name"] == name else each for each in expected["services"]]
    if tomllib.loads(new_text) != expected:
        raise ConfigError(
            f'{SETTINGS_FILE} has {name} not as [[services]] with name = "{name}" on a line: set sha256 of {name} by '
            f'hand to "{plan.service.sha256}", and import again.'
        )
    return new_text


def _check_settings_text(text: str, plan: ImportPlan) -> None:
    """Check the new settings before they are written, so that the file stays readable."""
    try:
        tables = tomllib.loads(text).get("services", [])
        names = [ServiceSettings.model_validate(each).name for each in tables]
    except (tomllib.TOMLDecodeError, ValidationError, AttributeError) as error:
        raise ConfigError(
            f"{SETTINGS_FILE} would not be valid: {str(error).splitlines()[0]}; correct it first."
        ) from None
    if names.count(plan.service.name) != 1:
        raise ConfigError(
            f"{SETTINGS_FILE} lists its services as an inline array: rewrite them as [[services]] tables."
        )


def _choose_settings(document: _SourceDocument, options: ImportOptions) -> tuple[ServiceSettings, dict[str, Any]]:
    """Return the settings of an imported service, or new ones with the table to write."""
    name = options.name or _derive_name(document.title)
    service = _find_known_service(name)
    if service is not None:
        if any((options.url, options.include, options.exclude, options.reads, options.writes, options.security)):
            raise ConfigError(
                f"The service {name} is in {SETTINGS_FILE} already: change its settings there, and import again "
                "without options."
            )
        if service.kind != document.kind:
            raise ConfigError(f"The service {name} in {SETTINGS_FILE} is of another kind: choose another --name.")
        return service, {}
    url = options.url or document.url
    if document.kind == "commands" and options.url is not None:
        raise ConfigError("Commands are at no URL: leave out --url.")
    if url is None and document.kind != "commands":
        raise ConfigError("The document does not say where the service is: add --url https://host/path.")
    # The person who typed the source named its host, and no other.
    is_from_document = False
    if url is not None and options.url is None and not f"{url}/".startswith(f"{document.base_url}/"):
        is_from_document = True
        _require_public(url)
    scheme, suffix = options.security or document.scheme, "binpb" if document.kind == "grpc" else "json"
    table: dict[str, Any] = {
        "name": name, **({} if document.kind == "openapi" else {"kind": document.kind}),
        "document": f"{SERVICES_FOLDER}/{name}.{suffix}", "sha256": "0" * 64,
        **({} if url is None else {"url": url}),
        **({"public_only": True} if is_from_document else {}),
        **({"operations": list(options.include)} if options.include else {}),
        **({"excluded_operations": list(options.exclude)} if options.exclude else {}),
        **_choose_credential(document, name, scheme, takes_issuer=is_from_document),
        **({"reads": list(options.reads)} if options.reads else {}),
        **({"writes": list(options.writes)} if options.writes else {}),
        **({"record_arguments": True} if options.record_arguments else {}),
    }  # fmt: skip
    try:
        return ServiceSettings.model_validate(table), table
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "url"
        raise ConfigError(f"The service cannot be imported ({place}: {first['msg']}): use --name and --url.") from None


def _choose_credential(
    document: _SourceDocument, name: str, scheme: str | None, *, takes_issuer: bool
) -> dict[str, Any]:
    """Choose where the credential comes from: people's own accounts if the document says so, else the vault."""
    if scheme is None:
        return {}
    if document.link is None or document.further_schemes:
        secrets = {each: f"{name}-{number}" for number, each in enumerate(document.further_schemes, start=2)}
        further = {"further_secrets": secrets} if secrets else {}
        return {"credential": "vault", "secret": name, "security": scheme, **further}
    # The issuer that a document names is used only with `public_only`: it must not lead into this network.
    link = document.link if takes_issuer else {key: each for key, each in document.link.items() if key != "issuer"}
    return {"credential": "link", "security": scheme, **link}


def _find_host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _require_public(url: str) -> None:
    """Raise if a document leads to a private address or to plain HTTP; names are checked at each call."""
    host = _find_host(url) or ""
    try:
        is_public = is_public_address(host)
    except ValueError:
        is_public = normalize_host(host) != "localhost" and not normalize_host(host).endswith(".localhost")
    if not is_public or not url.lower().startswith("https://"):
        raise ConfigError(
            f"The document says that the service is at {url[:200]}, which is not a public https URL: if that is right, "
            "add --url with this URL."
        )


def _find_known_service(name: str) -> ServiceSettings | None:
    try:
        document = tomllib.loads(read_settings_text())
        tables = [each for each in document.get("services", []) if each.get("name") == name]
        if any(isinstance(each, dict) and each.get("name") == name for each in document.get("servers", [])):
            raise ConfigError(f"An MCP server has the name {name} already: choose another one with --name.")
        return ServiceSettings.model_validate(tables[0]) if tables else None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{SETTINGS_FILE} is not valid TOML: {str(error).lower()}; fix it first.") from None
    except (ValidationError, AttributeError):
        raise ConfigError(f"The service {name} in {SETTINGS_FILE} is not valid: deputize doctor says why.") from None


def _build_previous(service: ServiceSettings) -> BuiltService | None:
    """Build the contracts of the imported document, to compare with; None if it cannot be read."""
    try:
        return build_contracts(service, service.document.read_bytes())
    except (OSError, InvalidDocument):
        return None


def _derive_name(title: str) -> str:
    name = normalize_name(re.sub(r"(?i)\b(open)?api\b", "", title), _LONGEST_NAME)
    if not name or name == "tool":
        raise ConfigError("The document has no title: name the service with --name.")
    return name


def _read_title(document: OpenApiDocument) -> str:
    info = document.content.get("info")
    title = info.get("title") if isinstance(info, dict) else None
    return title if isinstance(title, str) else ""


def load_service_contracts(settings: Settings) -> tuple[list[Contract], list[str]]:
    """Build the contracts of the project's services as a gateway would; return also what it would not use, and why."""
    contracts: list[Contract] = []
    warnings: list[str] = []
    for service in settings.services:
        if service.tenant not in (None, settings.tools.tenant):
            continue
        advice = f"deputize services show {service.name}"
        try:
            content = read_source(str(service.document))
            if hashlib.sha256(content).hexdigest() != service.sha256:
                warnings.append(
                    f"The tools of {service.name} are ignored: its document is not the pinned one: {advice}"
                )
            else:
                contracts += build_contracts(service, content).contracts.values()
        except (ConfigError, InvalidDocument) as error:
            warnings.append(f"The tools of {service.name} are ignored: {error}: {advice}")
    return contracts, warnings


def load_imported_service(name: str, services: tuple[ServiceSettings, ...]) -> tuple[ImportPlan, str]:
    """Build what an imported service offers from its document; return it with the SHA-256 that the file really has.

    The plan's service keeps the pinned digest. Where the two differ, a gateway does not use the document.
    """
    service = next((each for each in services if each.name == name), None)
    if service is None:
        raise ConfigError(f"There is no service {name} in {SETTINGS_FILE}: deputize services import imports one.")
    content = read_source(str(service.document))
    plan = plan_import(str(service.document), content, ImportOptions(name=name, url=None))
    return replace(plan, service=service), hashlib.sha256(content).hexdigest()
