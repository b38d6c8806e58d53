"""What an MCP server says of itself, its tools and whatever else it has, as words: nothing here speaks to one.

What of it counts as said, and what is only the way it was written, is told in `core/declared.py`; what of it somebody
agreed to beside tools, in `core/offers.py`.
"""

from enum import StrEnum
from typing import Any, Final

from deputize.core.canonical import digest
from deputize.core.declared import digest_of, without_asides, without_what_passes
from deputize.core.frozen import frozen

# What a name stands for under which a server declares several tools that differ: nobody can have agreed to it.
AMBIGUOUS = "ambiguous"
CALL_TOOL: Final = "tools/call"
READ_RESOURCE: Final = "resources/read"
GET_PROMPT: Final = "prompts/get"
COMPLETE: Final = "completion/complete"


class Kind(StrEnum):
    """What a definition is of. A METHOD is not declared by itself: it stands for the capability to be asked so."""

    TOOL = "tool"
    RESOURCE = "resource"
    TEMPLATE = "template"
    PROMPT = "prompt"
    METHOD = "method"


_KINDS: Final = frozenset(each.value for each in Kind)
_NAMED_BY: Final = {Kind.RESOURCE: "uri", Kind.TEMPLATE: "uriTemplate"}


@frozen
class Definition:
    """One thing as its server declares it. `said` is what was received, less what means nothing; the digest is over
    what it means, so the order of names and the way it was formatted change nothing. Resources and templates are named
    by their addresses.
    """

    name: str
    said: dict[str, Any]
    digest: str
    kind: Kind = Kind.TOOL

    @classmethod
    def of(cls, said: dict[str, Any], kind: Kind = Kind.TOOL) -> "Definition":
        """From an entry of a list as it came. Raises `NotCanonical` for what JSON cannot say."""
        if kind is not Kind.TOOL:
            said = without_what_passes(said)
        name = str(said[_NAMED_BY.get(kind, "name")])
        return cls(name=name, said=without_asides(said), digest=digest_of(said), kind=kind)

    @property
    def item(self) -> str:
        """What pins and reviews call it."""
        return item_of(self.kind, self.name)


def item_of(kind: Kind, name: str) -> str:
    return f"{kind}:{name}"


def kind_of(item: str) -> Kind | None:
    """None for what is none of these: a server's instructions."""
    kind, colon, _ = item.partition(":")
    return Kind(kind) if colon and kind in _KINDS else None


def name_in(item: str) -> str:
    """The name of an item, as its server spells it."""
    return item.partition(":")[2]


@frozen
class Address:
    """Where a contract of the `mcp` driver leads: to a tool of a server, or to one of its other methods."""

    server: str
    method: str
    name: str


def address(target: str) -> Address:
    """A tool is `server/tool`, as the server spells it; a method is `server:method`. No name of a server has a colon in
    it, so no tool can pass for a method.
    """
    server, _, name = target.partition("/")
    owner, colon, _ = server.partition(":")
    if not colon:
        return Address(server=server, method=CALL_TOOL, name=name)
    method = target.partition(":")[2]
    return Address(server=owner, method=method, name=method)


def method_of(driver: str, target: str) -> str | None:
    """The method of a server that a contract stands for; None for every tool."""
    at = address(target) if driver == "mcp" else None
    return None if at is None or at.method == CALL_TOOL else at.method


@frozen
class Discovered:
    """A server as it was found: what it calls itself, how it wants to be used, and all its tools, in its order. Beside
    them stand what else it has and the operator wants: `others`. What it declared that is no definition at all is
    `refused`, a sentence for each.
    """

    protocol: str
    title: str
    version: str
    instructions: str
    tools: tuple[Definition, ...]
    refused: tuple[str, ...] = ()
    others: tuple[Definition, ...] = ()

    @property
    def instructions_digest(self) -> str:
        return digest({"instructions": self.instructions})

    @property
    def digests(self) -> dict[str, str]:
        """Each tool's digest by its name; where a name is declared twice in different ways, none that was agreed to."""
        return {name_in(item): digest for item, digest in _digests(self.tools).items()}

    @property
    def digests_by_item(self) -> dict[str, str]:
        """The same of everything it has."""
        return _digests((*self.tools, *self.others))


def _digests(definitions: tuple[Definition, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in definitions:
        same = found.setdefault(each.item, each.digest) == each.digest
        found[each.item] = each.digest if same else AMBIGUOUS
    return found
