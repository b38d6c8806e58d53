"""What came of the MCP servers of the settings while a gateway started."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deputize.doors.cli.output import counted
from deputize.doors.cli.rules_told import Told


def servers_told(servers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[bool, Told]]:
    """Each with whether all is well; what does not answer yet is asked again."""
    for each in servers:
        name, tools = each["name"], counted(each["tools"], "tool")
        facts = {key: each[key] for key in ("name", "status", "tools", "changes", "why")}
        if each["changes"]:
            told = f"{counted(each['changes'], 'change')} to review: deputize servers review {name}"
            yield False, ("server", facts, f"{tools} from server {name}; {told}")
        elif each["status"] == "connected":
            yield True, ("server", facts, f"{tools} from server {name}")
        elif each["status"] == "unavailable":
            yield False, ("server", facts, f"server {name} does not answer yet: {each['why']}")
        else:
            yield False, ("server", facts, f"server {name} takes its time; deputize servers list tells what came of it")
