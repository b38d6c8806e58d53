"""Load a server's pins, and the names that its tools are registered under.

Used by `import_tools.py`, `review.py` and `monitor.py`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from deputize.catalog.drift.flags import Flag, KnownDefinition
from deputize.catalog.drift.verdicts import INSTRUCTIONS, Pin
from deputize.catalog.importers.server_contracts import CONTRACT_KINDS, RegisteredNames
from deputize.catalog.snapshot import TenantTools
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Effects
from deputize.core.errors import ToolNotAdmitted
from deputize.core.mcp.servers import (
    CALL_TOOL,
    DefinitionKind,
    parse_item_kind,
    parse_item_name,
    parse_mcp_target,
)
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

SQL = load_statements("servers")
# The flag of a definition that cannot be registered, besides those of the drift checks.
NOT_ADMITTED = "not_admitted"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerPins:
    """A server's pins; `versions` are the full names and versions that pinned tools are registered as, by item."""

    pins: Mapping[str, Pin]
    versions: Mapping[str, tuple[str, str]]
    # Whether any gateway ever probed this server.
    was_probed: bool
    # What an operator confirmed that tools do, by the digest of the definition.
    confirmed_effects: Mapping[str, Effects] = field(default_factory=dict)

    @property
    def digests(self) -> dict[str, str]:
        return {item: pin.digest for item, pin in self.pins.items()}

    @property
    def instructions(self) -> str | None:
        pin = self.pins.get(INSTRUCTIONS)
        return None if pin is None else pin.digest


async def load_pins(connection: Connection, tenant: str, server: str) -> ServerPins:
    rows = await connection.fetch(SQL["list_pins"], tenant, server)
    return ServerPins(
        pins={
            row["item"]: Pin(item=row["item"], digest=row["digest"], declaration=orjson.loads(row["definition"]))
            for row in rows
        },
        versions={row["item"]: (row["tool"], row["version"]) for row in rows if row["tool"] is not None},
        was_probed=bool(await connection.fetchval(SQL["check_server_known"], tenant, server)),
        confirmed_effects=await load_confirmed_effects(connection, tenant, server),
    )


async def load_confirmed_effects(connection: Connection, tenant: str, server: str) -> dict[str, Effects]:
    """Load what an operator confirmed that a server's tools do, by the digest of the confirmed definition."""
    rows = await connection.fetch(SQL["list_effects"], tenant, server)
    return {row["digest"]: Effects(row["effects"]) for row in rows}


async def delete_pin(connection: Connection, tenant: str, server: str, item: str) -> None:
    """Delete a pin, and what was confirmed about the definition: offered again, it is read strictly."""
    await connection.execute(SQL["delete_pin"], tenant, server, item)
    await connection.execute(SQL["delete_effects"], tenant, server, item)


async def list_known_names(
    connection: Connection, tenant: str, server: str, tools: TenantTools
) -> list[KnownDefinition]:
    """List the definitions that the tenant knows besides this server's.

    By the names that other servers declare, and by the names that tools are registered under. What a server's methods
    are registered as is on no list that a model sees.
    """
    rows = await connection.fetch(SQL["list_pins_of_other_servers"], tenant, server)
    known_names = {
        (row["server"], parse_item_name(row["item"]), kind)
        for row in rows
        if (kind := parse_item_kind(row["item"])) is not None and kind is not DefinitionKind.METHOD
    }
    methods = {row["tool"] for row in rows if parse_item_kind(row["item"]) is DefinitionKind.METHOD}
    for name in tools.tools:
        namespace, _, short_name = name.partition(".")
        if namespace != server and name not in methods:
            known_names.add((namespace, short_name, DefinitionKind.TOOL))
    return [KnownDefinition(server=namespace, name=name, kind=kind) for namespace, name, kind in sorted(known_names)]


def is_registered(item: str) -> bool:
    """Tell whether an item becomes a contract; the others are pinned as declared."""
    return parse_item_kind(item) in CONTRACT_KINDS


def collect_registered_names(
    server: str, tools: TenantTools, confirmed_effects: Mapping[str, Effects]
) -> RegisteredNames:
    """Collect the names and newest versions that are registered in a server's namespace."""
    names_by_tool: dict[str, str] = {}
    names_by_method: dict[str, str] = {}
    newest_versions: dict[str, str] = {}
    for name, entry in tools.tools.items():
        namespace, _, short_name = name.partition(".")
        if namespace == server and entry.versions:
            handler = orjson.loads(entry.versions[0].raw)["handler"]
            target = parse_mcp_target(handler["target"])
            is_ours = handler["driver"] == "mcp" and target.server == server
            if is_ours and target.method != CALL_TOOL:
                names_by_method[target.method] = short_name
            # The NUL prefix cannot collide with a name that the server declares.
            names_by_tool[target.name if is_ours and target.method == CALL_TOOL else f"\0{short_name}"] = short_name
            newest_versions[short_name] = entry.versions[0].version
    return RegisteredNames(
        by_tool=names_by_tool,
        by_method=names_by_method,
        newest_versions=newest_versions,
        confirmed_effects=confirmed_effects,
    )


def build_rejection_flags(problem: ToolNotAdmitted) -> list[dict[str, str]]:
    """Describe why a definition cannot be registered, in the form of flags."""
    reasons = problem.details.get("reasons") or [{"path": "", "reason": problem.message, "fix": ""}]
    return [
        {"code": NOT_ADMITTED, "where": each["path"], "excerpt": "", "sentence": _format_reason(each)}
        for each in reasons
    ]


def _format_reason(reason: Mapping[str, Any]) -> str:
    text = f"it cannot be registered: {reason['path']} {reason['reason']}".strip()
    return f"{text}; {reason['fix']}" if reason["fix"] else text


def encode_flags(flags: tuple[Flag, ...], extra_flags: list[dict[str, str]]) -> bytes:
    return canonicalize([*({**asdict(each), "code": each.code.value} for each in flags), *extra_flags])
