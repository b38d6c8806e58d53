"""What a server declares now, held against what somebody agreed to: a verdict for each tool and the instructions.

Pure: whoever looked at the server brings what was found, whoever keeps the pins brings those.

Above: `lifecycle/servers/`, which registers, holds and records. Below: `flags.py`, `diff.py`.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

from deputize.catalog.drift.diff import Difference
from deputize.catalog.drift.flags import Flag, Known
from deputize.core.frozen import frozen
from deputize.core.servers import Definition, Discovered
from deputize.core.settings import McpServer

INSTRUCTIONS: Final = "instructions"


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
    """What somebody agreed to: `item` is `tool:NAME` or `instructions`, `said` what was declared then (instructions as
    `{"instructions": text}`), kept to show what differs.
    """

    item: str
    digest: str
    said: Mapping[str, Any]


@frozen
class Judged:
    """One item: `digest` and `said` are what the server declares now, None if it is gone; `definition` is the tool to
    import, None for instructions, for what is gone and for a name that is declared twice in different ways.
    """

    item: str
    standing: Standing
    digest: str | None
    said: Mapping[str, Any] | None
    definition: Definition | None = None
    flags: tuple[Flag, ...] = ()
    differences: tuple[Difference, ...] = ()


def item_of(tool: str) -> str:
    """The item of a tool, by the name its server gives it."""
    return f"tool:{tool}"


def judge(
    server: McpServer, pins: Mapping[str, Pin], found: Discovered, known: Collection[Known] = ()
) -> tuple[Judged, ...]:
    """A verdict for every tool the operator serves, everything pinned, and the instructions (also where there are none,
    so that their absence is agreed to as well). `pins` are by item; without any it is the first look. `known` are the
    tools of other servers and namespaces of the tenant. Ordered by item, instructions first.
    """
    raise NotImplementedError
