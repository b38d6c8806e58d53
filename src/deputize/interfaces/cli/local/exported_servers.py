"""Write and read servers.json: what the servers of a project declare, so that policies can be tested without a gateway.

`deputize servers export` writes it from what a gateway has pinned. Where it is missing or does not know a server, a
running gateway is asked. The contracts are built from it by the same code as
in the gateway, with the current deputize.toml: what that says of effects and facts counts at once.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from deputize.catalog.importers.mcp_resources import is_item_served
from deputize.catalog.importers.server_contracts import build_contract
from deputize.catalog.policy_facts import list_facts
from deputize.core.canonical import NotCanonical
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Contract, Effects
from deputize.core.display_text import to_display_text
from deputize.core.errors import ToolNotAdmitted
from deputize.core.mcp.servers import Definition, DefinitionKind, parse_item_kind
from deputize.core.settings import McpServerSettings, Settings
from deputize.store.private_file import replace_file

SERVERS_FILE: Final = "servers.json"
_FORMAT: Final = 1
_MAX_FILE_BYTES: Final = 64 * 1_048_576
_MAX_AGE: Final = timedelta(days=30)
_EXPORT_ADVICE: Final = "write it with deputize servers export while the gateway runs"

# The servers of a running gateway as it lists them, each with its pinned tools.
LiveServers = Sequence[Mapping[str, Any]]
# Asks the running gateway; None if there is none, or it does not tell.
FetchServers = Callable[[], LiveServers | None]


class ExportedTool(BaseModel):
    """A pinned tool or method, with what an operator confirmed that it does."""

    model_config = ConfigDict(frozen=True)

    item: str
    digest: str
    tool: str
    version: str
    definition: dict[str, Any]
    confirmed_effects: Effects | None = None


class ExportedServer(BaseModel):
    """One server: where it was reached, and its pinned tools."""

    model_config = ConfigDict(frozen=True)

    name: str
    address: str
    tools: tuple[ExportedTool, ...]


class ExportedServers(BaseModel):
    """The content of servers.json."""

    model_config = ConfigDict(frozen=True)

    format: int
    exported_at: AwareDatetime
    servers: tuple[ExportedServer, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerContracts:
    """The contracts of servers' tools, and what is missing or out of date, in sentences.

    `unseen_servers` are the servers whose tools are not known here.
    """

    contracts: tuple[Contract, ...] = ()
    warnings: tuple[str, ...] = ()
    unseen_servers: frozenset[str] = frozenset()


def write_servers_file(folder: Path, servers: Sequence[Mapping[str, Any]], clock: Clock) -> Path:
    """Write servers.json in one step; `servers` are names, addresses and tools as the gateway lists them."""
    export = _build_export(servers, clock)
    text = json.dumps(export.model_dump(mode="json"), indent=2, ensure_ascii=True, sort_keys=True)
    path = folder / SERVERS_FILE
    try:
        replace_file(path, text.encode() + b"\n", mode=0o644)
    except OSError as error:
        raise ConfigError(
            f"{SERVERS_FILE} cannot be written ({error.strerror}): check the permissions of its folder."
        ) from None
    return path


def _build_export(servers: Sequence[Mapping[str, Any]], clock: Clock) -> ExportedServers:
    return ExportedServers.model_validate(
        {"format": _FORMAT, "exported_at": clock.now(), "servers": sorted(servers, key=lambda each: each["name"])}
    )


def load_server_contracts(
    settings: Settings,
    folder: Path,
    project_contracts: Sequence[Contract],
    clock: Clock,
    fetch_servers: FetchServers = lambda: None,
) -> ServerContracts:
    """Load the contracts of the tools of the settings' servers; `project_contracts` are the project's own tools."""
    tenant = settings.tools.tenant
    servers = [each for each in settings.servers if each.tenant in (None, tenant)]
    if not servers:
        return ServerContracts()
    export = _read_file(folder / SERVERS_FILE)
    names = {each.name for each in servers}
    if export is None or not names.issubset(each.name for each in export.servers):
        live_servers = fetch_servers()
        export = export if live_servers is None else _build_export(live_servers, clock)
    if export is None:
        unknown = f"{SERVERS_FILE} is missing, so the tools of {', '.join(sorted(names))} are not known here"
        return ServerContracts(warnings=(f"{unknown}: {_EXPORT_ADVICE}.",), unseen_servers=frozenset(names))
    warnings = list(_find_age_warnings(export, clock))
    contracts: list[Contract] = []
    exported_servers = {each.name: each for each in export.servers}
    fact_types = {fact.name: fact.type for contract in project_contracts for fact in list_facts(contract)}
    for server in servers:
        exported_server = exported_servers.get(server.name)
        if exported_server is None:
            warnings.append(f"{SERVERS_FILE} is stale: it does not know the server {server.name}; {_EXPORT_ADVICE}.")
            continue
        if exported_server.address != get_server_address(server):
            warnings.append(
                f"{SERVERS_FILE} is stale: deputize.toml has another address for {server.name} now; {_EXPORT_ADVICE}."
            )
        for each in exported_server.tools:
            contract = _build_contract(server, each, fact_types)
            if isinstance(contract, Contract):
                contracts.append(contract)
                fact_types |= {fact.name: fact.type for fact in list_facts(contract)}
            elif contract is not None:
                warnings.append(f"{to_display_text(each.tool, 120)} is ignored: {to_display_text(contract, 400)}")
    # A server without tools was pinned, but not seen yet.
    seen_servers = {name for name, each in exported_servers.items() if each.tools}
    return ServerContracts(
        contracts=tuple(contracts), warnings=tuple(warnings), unseen_servers=frozenset(names - seen_servers)
    )


def get_server_address(server: McpServerSettings) -> str:
    """Return the address of a server as the gateway shows it."""
    return server.url if server.url is not None else server.command[0]


def _read_file(path: Path) -> ExportedServers | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{SERVERS_FILE} cannot be read ({error.strerror}): check its permissions.") from None
    fix = "delete it, and write it again with deputize servers export"
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{SERVERS_FILE} is larger than {_MAX_FILE_BYTES // 1_048_576} MB: {fix}.")
    try:
        export = ExportedServers.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{SERVERS_FILE} is not valid ({place or 'JSON'}: {first['msg']}): {fix}.") from None
    if export.format != _FORMAT:
        raise ConfigError(f"{SERVERS_FILE} has format {export.format}, and this release reads {_FORMAT}: {fix}.")
    return export


def _find_age_warnings(export: ExportedServers, clock: Clock) -> Iterator[str]:
    if clock.now() - export.exported_at > _MAX_AGE:
        day = export.exported_at.date().isoformat()
        yield f"{SERVERS_FILE} is stale: it was written on {day}, and servers may have changed; {_EXPORT_ADVICE}."


def _build_contract(
    server: McpServerSettings, exported_tool: ExportedTool, fact_types: Mapping[str, str]
) -> Contract | str | None:
    """Build the contract of a tool; a string says why there is none, None that the settings do not serve it."""
    kind = parse_item_kind(exported_tool.item)
    if kind not in (DefinitionKind.TOOL, DefinitionKind.METHOD):
        return f"{SERVERS_FILE} does not say whether it is a tool"
    if not is_item_served(server, exported_tool.item):
        return None
    try:
        definition = Definition.from_declaration(exported_tool.definition, kind)
        if definition.digest != exported_tool.digest or definition.item != exported_tool.item:
            return f"its definition in {SERVERS_FILE} was edited; {_EXPORT_ADVICE}"
        effects_by_digest = (
            {} if exported_tool.confirmed_effects is None else {definition.digest: exported_tool.confirmed_effects}
        )
        short_name = exported_tool.tool.partition(".")[2]
        contract = build_contract(server, definition, short_name, exported_tool.version, effects_by_digest)
    except (NotCanonical, KeyError) as error:
        return f"its definition in {SERVERS_FILE} is not valid ({error})"
    except ToolNotAdmitted as problem:
        return problem.message
    for fact in list_facts(contract):
        other = fact_types.get(fact.name, fact.type)
        if other != fact.type:
            return (
                f"its fact {fact.name} is a {fact.type}, but another tool declares it as a {other}; rename one of them"
            )
    return contract
