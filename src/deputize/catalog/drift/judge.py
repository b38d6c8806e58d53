"""What a server declares now, held against what somebody agreed to: a verdict for each tool and the instructions.

Pure: whoever looked at the server brings what was found, whoever keeps the pins brings those.

Above: `lifecycle/servers/`, which registers, holds and records. Below: `flags.py`, `diff.py`.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

from deputize.catalog.drift.diff import Difference, differences
from deputize.catalog.drift.flags import (
    MOST_FLAGS,
    Flag,
    FlagCode,
    Known,
    Neighbours,
    flags_of,
    flags_of_instructions,
)
from deputize.catalog.importers.mcp_offers import item_served
from deputize.core.canonical import digest
from deputize.core.frozen import frozen
from deputize.core.plain import plain
from deputize.core.servers import Definition, Discovered
from deputize.core.settings import McpServer

INSTRUCTIONS: Final = "instructions"
# Flags of all tools together. Beyond them each still gets one, which is enough to hold it.
_MOST_IN_ALL: Final = 1_000


class Standing(StrEnum):
    """SAME is as agreed. CHANGED and REMOVED are of something that was agreed to; ADDED and FLAGGED are not, and only
    FLAGGED gives cause to look. What of these is held is for the lifecycle to say, except that only SAME and, at first
    sight, ADDED never are.
    """

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    FLAGGED = "flagged"


@frozen
class Pin:
    """What somebody agreed to: `item` is `tool:NAME`, or another kind of definition (`core/servers.py`), or
    `instructions`; `said` what was declared then (instructions as `{"instructions": text}`), kept to show what differs.
    """

    item: str
    digest: str
    said: Mapping[str, Any]


@frozen
class Judged:
    """One item: `digest` and `said` are what the server declares now, None if it is gone; `definition` is what there
    is to import, None for instructions, for what is gone and for a name that is declared twice in different ways. The
    `differences` are from what was agreed to; of what is new there are none.
    """

    item: str
    standing: Standing
    digest: str | None
    said: Mapping[str, Any] | None
    definition: Definition | None = None
    flags: tuple[Flag, ...] = ()
    differences: tuple[Difference, ...] = ()


def judge(
    server: McpServer, pins: Mapping[str, Pin], found: Discovered, known: Collection[Known] = ()
) -> tuple[Judged, ...]:
    """A verdict for everything of the server that the operator serves, everything pinned, and the instructions (also
    where there are none, so that their absence is agreed to as well). `pins` are by item; without any it is the first
    look. `known` is what other servers and namespaces of the tenant have. Ordered by item, instructions first.
    """
    own = [Known(server=server.name, name=each.name) for each in found.tools]
    among = Neighbours([*known, *own])
    declared: dict[str, list[Definition]] = {}
    for each in (*found.tools, *found.others):
        if item_served(server, each.item):
            declared.setdefault(each.item, []).append(each)
    gone = (item for item in pins if item != INSTRUCTIONS and item not in declared)
    judged: list[Judged] = []
    room = _MOST_IN_ALL
    for item, several in declared.items():
        judged.append(_declared(server, pins.get(item), several, among, most=max(1, min(MOST_FLAGS, room))))
        room -= len(judged[-1].flags)
    judged += [_gone(pins[item]) for item in gone]
    return (
        _instructions(server, pins.get(INSTRUCTIONS), found, among),
        *sorted(judged, key=lambda each: each.item),
    )


def _declared(server: McpServer, pin: Pin | None, several: list[Definition], among: Neighbours, *, most: int) -> Judged:
    one = several[0]
    if any(each.digest != one.digest for each in several):
        return _ambiguous(pin, several)
    if pin is not None and pin.digest == one.digest:
        return Judged(item=pin.item, standing=Standing.SAME, digest=one.digest, said=one.said, definition=one)
    flags = flags_of(one, server=server.name, among=among, most=most)
    return Judged(
        item=one.item,
        standing=_standing(pin, flags),
        digest=one.digest,
        said=one.said,
        definition=one,
        flags=flags,
        differences=_since(pin, one.said),
    )


def _ambiguous(pin: Pin | None, several: list[Definition]) -> Judged:
    """Which of them a call would reach is the server's secret, so none of them is what was agreed to."""
    name = several[0].name
    said = {"name": name, "declared": [each.said for each in several]}
    flag = Flag(
        code=FlagCode.AMBIGUOUS,
        where="/name",
        excerpt=plain(name),
        sentence=f"is declared {len(several)} times, in different ways",
    )
    return Judged(
        item=several[0].item,
        standing=_standing(pin, (flag,)),
        digest=digest({"declared": sorted(each.digest for each in several)}),
        said=said,
        flags=(flag,),
        differences=_since(pin, said),
    )


def _instructions(server: McpServer, pin: Pin | None, found: Discovered, among: Neighbours) -> Judged:
    said = {INSTRUCTIONS: found.instructions}
    if pin is not None and pin.digest == found.instructions_digest:
        return Judged(item=INSTRUCTIONS, standing=Standing.SAME, digest=pin.digest, said=said)
    flags = flags_of_instructions(found.instructions, server=server.name, among=among)
    return Judged(
        item=INSTRUCTIONS,
        standing=_standing(pin, flags),
        digest=found.instructions_digest,
        said=said,
        flags=flags,
        differences=_since(pin, said),
    )


def _since(pin: Pin | None, said: Mapping[str, Any]) -> tuple[Difference, ...]:
    return () if pin is None else differences(pin.said, said)


def _standing(pin: Pin | None, flags: tuple[Flag, ...]) -> Standing:
    if pin is not None:
        return Standing.CHANGED
    return Standing.FLAGGED if flags else Standing.ADDED


def _gone(pin: Pin) -> Judged:
    return Judged(
        item=pin.item, standing=Standing.REMOVED, digest=None, said=None, differences=differences(pin.said, None)
    )
