"""What was agreed to of a server, and under which names its tools are registered, read from where it is kept.

Above: `importing.py`, `review.py` and `connected.py`. Below: `store/queries/servers.sql` and the tenant's snapshot.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from deputize.catalog.drift.flags import Flag, Known
from deputize.catalog.drift.judge import INSTRUCTIONS, Pin, item_of
from deputize.catalog.importers.mcp import FIRST_VERSION, imported, named, next_version
from deputize.catalog.snapshot import TenantTools
from deputize.core.canonical import canonical
from deputize.core.contract import Contract
from deputize.core.errors import NotAdmitted
from deputize.core.servers import Definition
from deputize.core.settings import McpServer
from deputize.store.pool import Connection
from deputize.store.queries import load

SQL = load("servers")
TOOL = item_of("")
# Said of what cannot be registered, beside what the drift guard flags.
NOT_ADMITTED = "not_admitted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreed:
    """`versions` are those that the pinned tools are registered as, by item: full name and version."""

    pins: Mapping[str, Pin]
    versions: Mapping[str, tuple[str, str]]
    # Whether anybody ever looked at this server.
    seen: bool

    @property
    def digests(self) -> dict[str, str]:
        return {item: pin.digest for item, pin in self.pins.items()}

    @property
    def instructions(self) -> str | None:
        pin = self.pins.get(INSTRUCTIONS)
        return None if pin is None else pin.digest


async def agreed(connection: Connection, tenant: str, server: str) -> Agreed:
    rows = await connection.fetch(SQL["pins_of"], tenant, server)
    return Agreed(
        pins={
            row["item"]: Pin(item=row["item"], digest=row["digest"], said=orjson.loads(row["definition"]))
            for row in rows
        },
        versions={row["item"]: (row["tool"], row["version"]) for row in rows if row["tool"] is not None},
        seen=bool(await connection.fetchval(SQL["was_seen"], tenant, server)),
    )


async def known_elsewhere(connection: Connection, tenant: str, server: str, tools: TenantTools) -> list[Known]:
    """What callers of the tenant know beside the tools of this server: by the names their own servers give them, and by
    the names they are registered under.
    """
    rows = await connection.fetch(SQL["pins_of_others"], tenant, server)
    known = {(row["server"], tool_of(row["item"])) for row in rows if row["item"] != INSTRUCTIONS}
    for name in tools.tools:
        namespace, _, word = name.partition(".")
        if namespace != server:
            known.add((namespace, word))
    return [Known(server=namespace, name=word) for namespace, word in sorted(known)]


def tool_of(item: str) -> str:
    """The tool of an item, by the name its server gives it."""
    return item.removeprefix(TOOL)


class Names:
    """Which contracts the tools of one server become beside everything that is registered in its namespace: a tool that
    was here before has its name again, under a version that nobody had yet.
    """

    def __init__(self, server: McpServer, tools: TenantTools) -> None:
        self._server = server
        self._tools = tools
        self._taken: dict[str, str] = {}
        for name, entry in tools.tools.items():
            namespace, _, word = name.partition(".")
            if namespace == server.name and entry.versions:
                handler = orjson.loads(entry.versions[0].raw)["handler"]
                ours = handler["driver"] == "mcp" and handler["target"].partition("/")[0] == server.name
                # No server can give a tool the name that stands for one that is not its own.
                self._taken[handler["target"].partition("/")[2] if ours else f"\0{word}"] = word

    def contracts(self, definitions: list[Definition]) -> tuple[dict[str, Contract], dict[str, NotAdmitted]]:
        """Each tool's contract, or why it can have none, by the name its server gives it."""
        words = named(self._server, [each.name for each in definitions], self._taken)
        made: dict[str, Contract] = {}
        refused: dict[str, NotAdmitted] = {}
        for each in definitions:
            try:
                made[each.name] = imported(
                    self._server, each, word=words[each.name], version=self._version(words[each.name])
                )
            except NotAdmitted as problem:
                refused[each.name] = problem
        return made, refused

    def _version(self, word: str) -> str:
        entry = self._tools.tools.get(f"{self._server.name}.{word}")
        return FIRST_VERSION if entry is None else next_version(entry.versions[0].version)


def reasons_flagged(problem: NotAdmitted) -> list[dict[str, str]]:
    """Why a definition cannot be registered, in the form of flags."""
    reasons = problem.details.get("reasons") or [{"path": "", "reason": problem.message, "fix": ""}]
    return [
        {"code": NOT_ADMITTED, "where": each["path"], "excerpt": "", "sentence": _sentence(each)} for each in reasons
    ]


def _sentence(reason: Mapping[str, Any]) -> str:
    what = f"it cannot be registered: {reason['path']} {reason['reason']}".strip()
    return f"{what}; {reason['fix']}" if reason["fix"] else what


def flags_json(flags: tuple[Flag, ...], more: list[dict[str, str]]) -> bytes:
    return canonical([*({**asdict(each), "code": each.code.value} for each in flags), *more])
