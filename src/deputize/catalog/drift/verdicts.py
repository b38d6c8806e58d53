"""Compare what a server declares now with its pins, and reach a verdict for each definition and the instructions.

Nothing here reads a server or the database: `operations/servers/` passes in the discovery and the pins, and acts on the
verdicts.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

from deputize.catalog.drift.diff import Difference, diff_definitions
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
_MOST_FLAGS_IN_ALL: Final = 1_000


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
    be imported; None for instructions, removed items, and names declared twice with different content. `differences`
    are those from the pin; there are none without a pin.
    """

    item: str
    status: DriftStatus
    digest: str | None
    declaration: Mapping[str, Any] | None
    definition: Definition | None = None
    flags: tuple[Flag, ...] = ()
    differences: tuple[Difference, ...] = ()


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
    own_definitions = [KnownDefinition(server=server.name, name=each.name) for each in discovery.tools]
    index = DefinitionIndex([*known_definitions, *own_definitions])
    definitions_by_item: dict[str, list[Definition]] = {}
    for each in (*discovery.tools, *discovery.other_definitions):
        if is_item_served(server, each.item):
            definitions_by_item.setdefault(each.item, []).append(each)
    missing_items = (item for item in pins if item != INSTRUCTIONS and item not in definitions_by_item)
    verdicts: list[DriftVerdict] = []
    flags_left = _MOST_FLAGS_IN_ALL
    for item, definitions in definitions_by_item.items():
        verdicts.append(
            _judge_item(server, pins.get(item), definitions, index, most=max(1, min(MOST_FLAGS, flags_left)))
        )
        flags_left -= len(verdicts[-1].flags)
    verdicts += [_judge_missing(pins[item]) for item in missing_items]
    return (
        _judge_instructions(server, pins.get(INSTRUCTIONS), discovery, index),
        *sorted(verdicts, key=lambda each: each.item),
    )


def _judge_item(
    server: McpServerSettings, pin: Pin | None, definitions: list[Definition], index: DefinitionIndex, *, most: int
) -> DriftVerdict:
    first = definitions[0]
    if any(each.digest != first.digest for each in definitions):
        return _judge_ambiguous(pin, definitions)
    if pin is not None and pin.digest == first.digest:
        return DriftVerdict(
            item=pin.item, status=DriftStatus.SAME, digest=first.digest, declaration=first.declaration, definition=first
        )
    flags = find_flags(first, server=server.name, index=index, most=most)
    return DriftVerdict(
        item=first.item,
        status=_choose_status(pin, flags),
        digest=first.digest,
        declaration=first.declaration,
        definition=first,
        flags=flags,
        differences=_diff_pin(pin, first.declaration),
    )


def _judge_ambiguous(pin: Pin | None, definitions: list[Definition]) -> DriftVerdict:
    """Judge a name with several different definitions: none matches a pin, because a call could reach any of them."""
    name = definitions[0].name
    declaration = {"name": name, "declared": [each.declaration for each in definitions]}
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
        declaration=declaration,
        flags=(flag,),
        differences=_diff_pin(pin, declaration),
    )


def _judge_instructions(
    server: McpServerSettings, pin: Pin | None, discovery: DiscoveredServer, index: DefinitionIndex
) -> DriftVerdict:
    declaration = {INSTRUCTIONS: discovery.instructions}
    if pin is not None and pin.digest == discovery.instructions_digest:
        return DriftVerdict(item=INSTRUCTIONS, status=DriftStatus.SAME, digest=pin.digest, declaration=declaration)
    flags = find_instruction_flags(discovery.instructions, server=server.name, index=index)
    return DriftVerdict(
        item=INSTRUCTIONS,
        status=_choose_status(pin, flags),
        digest=discovery.instructions_digest,
        declaration=declaration,
        flags=flags,
        differences=_diff_pin(pin, declaration),
    )


def _diff_pin(pin: Pin | None, declaration: Mapping[str, Any]) -> tuple[Difference, ...]:
    return () if pin is None else diff_definitions(pin.declaration, declaration)


def _choose_status(pin: Pin | None, flags: tuple[Flag, ...]) -> DriftStatus:
    if pin is not None:
        return DriftStatus.CHANGED
    return DriftStatus.FLAGGED if flags else DriftStatus.ADDED


def _judge_missing(pin: Pin) -> DriftVerdict:
    return DriftVerdict(
        item=pin.item,
        status=DriftStatus.REMOVED,
        digest=None,
        declaration=None,
        differences=diff_definitions(pin.declaration, None),
    )
