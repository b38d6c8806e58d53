"""Compare what a server declares now with its pins, and reach a verdict for each definition and the instructions.

Nothing here reads a server or the database: `operations/servers/` passes in the discovery and the pins, and acts on the
verdicts. What takes long, the search for flags, can run in another process (`drift_job.py`).
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

from deputize.catalog.drift.flags import (
    MOST_FLAGS,
    DefinitionIndex,
    Flag,
    FlagCode,
    KnownDefinition,
    find_flags,
    find_instruction_flags,
)
from deputize.catalog.importers.mcp_resources import is_item_served
from deputize.core.canonical import compute_digest
from deputize.core.display_text import to_display_text
from deputize.core.mcp.servers import Definition, DiscoveredServer
from deputize.core.settings import McpServerSettings
from deputize.core.value_types import frozen

INSTRUCTIONS: Final = "instructions"
# The limit for one server. Beyond it each definition still gets one flag, which is enough to hold it for review.
_MAX_FLAGS_IN_ALL: Final = 1_000


class DriftStatus(StrEnum):
    """How a definition compares with its pin.

    SAME matches its pin. CHANGED and REMOVED differ from a pin. ADDED and FLAGGED have no pin; FLAGGED has flags. The
    caller decides which of them are held for review; SAME never is, nor is ADDED at the first discovery.
    """

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    FLAGGED = "flagged"


@frozen
class Pin:
    """A definition that an administrator accepted.

    `item` is `tool:NAME`, another kind of definition (`core/mcp/servers.py`), or `instructions`. `declaration` is what
    was declared then (instructions as `{"instructions": text}`), kept to show differences.
    """

    item: str
    digest: str
    declaration: Mapping[str, Any]


@frozen
class DriftVerdict:
    """The verdict on one item.

    `digest` and `declaration` are what the server declares now; None if the item was removed. `definition` is what can
    be imported; None for instructions, removed items, and names declared twice with different content.
    """

    item: str
    status: DriftStatus
    digest: str | None
    declaration: Mapping[str, Any] | None
    definition: Definition | None = None
    flags: tuple[Flag, ...] = ()


@frozen
class UnpinnedTexts:
    """What a server declares that differs from its pins, and so is looked through for flags."""

    definitions: tuple[Definition, ...]
    # None if the instructions match their pin.
    instructions: str | None


def judge_definitions(
    server: McpServerSettings,
    pins: Mapping[str, Pin],
    discovery: DiscoveredServer,
    known_definitions: Collection[KnownDefinition] = (),
) -> tuple[DriftVerdict, ...]:
    """Judge every definition that the settings serve, every pin, and the instructions.

    Instructions are judged even if there are none, so that their absence is pinned too. `pins` are by item; there are
    none at the first discovery. `known_definitions` are those of the tenant's other servers and namespaces. Verdicts
    are ordered by item, instructions first.
    """
    index = DefinitionIndex([*known_definitions, *list_own_names(server, discovery)])
    flags = flag_texts(server.name, list_unpinned_texts(server, pins, discovery), index)
    return build_verdicts(server, pins, discovery, flags)


def list_own_names(server: McpServerSettings, discovery: DiscoveredServer) -> list[KnownDefinition]:
    """List the names that the server itself declares: its tools may look like each other."""
    return [KnownDefinition(server=server.name, name=each.name) for each in discovery.tools]


def list_unpinned_texts(
    server: McpServerSettings, pins: Mapping[str, Pin], discovery: DiscoveredServer
) -> UnpinnedTexts:
    """List what has to be looked through for flags."""
    instructions_pin = pins.get(INSTRUCTIONS)
    is_same = instructions_pin is not None and instructions_pin.digest == discovery.instructions_digest
    return UnpinnedTexts(
        definitions=tuple(
            definitions[0]
            for item, definitions in _collect_definitions(server, discovery).items()
            if not _is_ambiguous(definitions) and not _is_pinned(pins.get(item), definitions[0])
        ),
        instructions=None if is_same else discovery.instructions,
    )


def flag_texts(server: str, texts: UnpinnedTexts, index: DefinitionIndex) -> dict[str, tuple[Flag, ...]]:
    """Find the flags of each definition and of the instructions, by item. This takes time, as much as there is text."""
    flags_by_item = {}
    flags_left = _MAX_FLAGS_IN_ALL
    for each in texts.definitions:
        flags = find_flags(each, server=server, index=index, most=max(1, min(MOST_FLAGS, flags_left)))
        flags_by_item[each.item] = flags
        flags_left -= len(flags)
    if texts.instructions is not None:
        flags_by_item[INSTRUCTIONS] = find_instruction_flags(texts.instructions, server=server, index=index)
    return flags_by_item


def build_verdicts(
    server: McpServerSettings,
    pins: Mapping[str, Pin],
    discovery: DiscoveredServer,
    flags_by_item: Mapping[str, tuple[Flag, ...]],
) -> tuple[DriftVerdict, ...]:
    """Compare definitions with pins, given the flags of what differs from them."""
    definitions_by_item = _collect_definitions(server, discovery)
    verdicts = [
        _judge_item(pins.get(item), definitions, flags_by_item) for item, definitions in definitions_by_item.items()
    ]
    verdicts += [
        DriftVerdict(item=item, status=DriftStatus.REMOVED, digest=None, declaration=None)
        for item in pins
        if item != INSTRUCTIONS and item not in definitions_by_item
    ]
    return (
        _judge_instructions(pins.get(INSTRUCTIONS), discovery, flags_by_item),
        *sorted(verdicts, key=lambda each: each.item),
    )


def _collect_definitions(server: McpServerSettings, discovery: DiscoveredServer) -> dict[str, list[Definition]]:
    definitions_by_item: dict[str, list[Definition]] = {}
    for each in (*discovery.tools, *discovery.other_definitions):
        if is_item_served(server, each.item):
            definitions_by_item.setdefault(each.item, []).append(each)
    return definitions_by_item


def _is_ambiguous(definitions: list[Definition]) -> bool:
    return any(each.digest != definitions[0].digest for each in definitions)


def _is_pinned(pin: Pin | None, definition: Definition) -> bool:
    return pin is not None and pin.digest == definition.digest


def _judge_item(
    pin: Pin | None, definitions: list[Definition], flags_by_item: Mapping[str, tuple[Flag, ...]]
) -> DriftVerdict:
    first = definitions[0]
    if _is_ambiguous(definitions):
        return _judge_ambiguous(pin, definitions)
    flags = () if _is_pinned(pin, first) else flags_by_item[first.item]
    return DriftVerdict(
        item=first.item,
        status=DriftStatus.SAME if _is_pinned(pin, first) else _choose_status(pin, flags),
        digest=first.digest,
        declaration=first.declaration,
        definition=first,
        flags=flags,
    )


def _judge_ambiguous(pin: Pin | None, definitions: list[Definition]) -> DriftVerdict:
    """Judge a name with several different definitions: none matches a pin, because a call could reach any of them."""
    name = definitions[0].name
    flag = Flag(
        code=FlagCode.AMBIGUOUS,
        where="/name",
        excerpt=to_display_text(name),
        sentence=f"is declared {len(definitions)} times with different content",
    )
    return DriftVerdict(
        item=definitions[0].item,
        status=_choose_status(pin, (flag,)),
        digest=compute_digest({"declared": sorted(each.digest for each in definitions)}),
        declaration={"name": name, "declared": [each.declaration for each in definitions]},
        flags=(flag,),
    )


def _judge_instructions(
    pin: Pin | None, discovery: DiscoveredServer, flags_by_item: Mapping[str, tuple[Flag, ...]]
) -> DriftVerdict:
    is_same = pin is not None and pin.digest == discovery.instructions_digest
    flags = () if is_same else flags_by_item[INSTRUCTIONS]
    return DriftVerdict(
        item=INSTRUCTIONS,
        status=DriftStatus.SAME if is_same else _choose_status(pin, flags),
        digest=discovery.instructions_digest,
        declaration={INSTRUCTIONS: discovery.instructions},
        flags=flags,
    )


def _choose_status(pin: Pin | None, flags: tuple[Flag, ...]) -> DriftStatus:
    if pin is not None:
        return DriftStatus.CHANGED
    return DriftStatus.FLAGGED if flags else DriftStatus.ADDED
