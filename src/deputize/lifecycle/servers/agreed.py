"""What was agreed to of a server, and under which names its tools are registered, read from where it is kept.

Above: `importing.py`, `review.py` and `connected.py`. Below: `store/queries/servers.sql` and the tenant's snapshot.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from deputize.catalog.drift.flags import Flag, Known
from deputize.catalog.drift.judge import INSTRUCTIONS, Pin
from deputize.catalog.importers.mcp import FIRST_VERSION, imported, named, next_version
from deputize.catalog.importers.mcp_offers import contract_of, word_of
from deputize.catalog.snapshot import TenantTools
from deputize.core.canonical import canonical
from deputize.core.contract import Contract
from deputize.core.errors import NotAdmitted
from deputize.core.servers import CALL_TOOL, Definition, Kind, address, kind_of, name_in
from deputize.core.settings import McpServer
from deputize.store.pool import Connection
from deputize.store.queries import load

SQL = load("servers")
# What becomes a contract; all else is kept as it was said.
REGISTERED = frozenset({Kind.TOOL, Kind.METHOD})
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
    known = {
        (row["server"], name_in(row["item"]), kind)
        for row in rows
        if (kind := kind_of(row["item"])) is not None and kind is not Kind.METHOD
    }
    for name in tools.tools:
        namespace, _, word = name.partition(".")
        if namespace != server:
            known.add((namespace, word, Kind.TOOL))
    return [Known(server=namespace, name=name, kind=kind) for namespace, name, kind in sorted(known)]


def is_registered(item: str) -> bool:
    """Whether an item becomes a contract; all else is kept as it was said, and counts by that."""
    return kind_of(item) in REGISTERED


class Names:
    """Which contracts the tools and methods of one server become beside everything that is registered in its namespace:
    what was here before has its name again, under a version that nobody had yet.
    """

    def __init__(self, server: McpServer, tools: TenantTools) -> None:
        self._server = server
        self._tools = tools
        self._taken: dict[str, str] = {}
        self._methods: dict[str, str] = {}
        for name, entry in tools.tools.items():
            namespace, _, word = name.partition(".")
            if namespace == server.name and entry.versions:
                handler = orjson.loads(entry.versions[0].raw)["handler"]
                at = address(handler["target"])
                ours = handler["driver"] == "mcp" and at.server == server.name
                if ours and at.method != CALL_TOOL:
                    self._methods[at.method] = word
                # No server can give a tool the name that stands for one that is not its own.
                self._taken[at.name if ours and at.method == CALL_TOOL else f"\0{word}"] = word

    def contracts(self, definitions: list[Definition]) -> tuple[dict[str, Contract], dict[str, NotAdmitted]]:
        """Each contract, or why there can be none, by item. What is read through others has none of its own."""
        words = named(self._server, [each.name for each in definitions if each.kind is Kind.TOOL], self._taken)
        used = {*self._taken.values(), *words.values()}
        made: dict[str, Contract] = {}
        refused: dict[str, NotAdmitted] = {}
        for each in definitions:
            if each.kind not in REGISTERED:
                continue
            try:
                if each.kind is Kind.TOOL:
                    word = words[each.name]
                    made[each.item] = imported(self._server, each, word=word, version=self._version(word))
                else:
                    word = self._methods.get(each.name) or word_of(each.name, used)
                    made[each.item] = contract_of(self._server, each, word=word, version=self._version(word))
            except NotAdmitted as problem:
                refused[each.item] = problem
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
