"""Define what an MCP server declares: itself, its tools, resources, prompts and other methods.

`core/contract/normalized_definition.py` says when two declarations are equal, `core/mcp/resources.py` which of them
are accepted.
"""

from enum import StrEnum
from typing import Any, Final

from deputize.core.canonical import compute_digest
from deputize.core.contract.normalized_definition import compute_definition_digest, strip_meta, strip_volatile_fields
from deputize.core.value_types import frozen

# The digest of a name that a server declares several times with different content; no pin ever equals it.
AMBIGUOUS_DIGEST = "ambiguous"
CALL_TOOL: Final = "tools/call"
READ_RESOURCE: Final = "resources/read"
GET_PROMPT: Final = "prompts/get"
COMPLETE: Final = "completion/complete"


class DefinitionKind(StrEnum):
    """The kind of a definition. A METHOD is not declared by itself: it stands for a capability of the server."""

    TOOL = "tool"
    RESOURCE = "resource"
    TEMPLATE = "template"
    PROMPT = "prompt"
    METHOD = "method"


_KIND_VALUES: Final = frozenset(each.value for each in DefinitionKind)
_NAME_FIELDS: Final = {DefinitionKind.RESOURCE: "uri", DefinitionKind.TEMPLATE: "uriTemplate"}


@frozen
class Definition:
    """A tool, resource, template or prompt as its server declares it. The digest is over its meaning, so formatting and
    the order of names change nothing. The name of a resource or template is its URI.
    """

    name: str
    declaration: dict[str, Any]
    digest: str
    kind: DefinitionKind = DefinitionKind.TOOL

    @classmethod
    def from_declaration(cls, declaration: dict[str, Any], kind: DefinitionKind = DefinitionKind.TOOL) -> "Definition":
        """Parse an entry of a list. Raise `NotCanonical` for values that JSON cannot represent."""
        if kind is not DefinitionKind.TOOL:
            declaration = strip_volatile_fields(declaration)
        name = str(declaration[_NAME_FIELDS.get(kind, "name")])
        return cls(
            name=name, declaration=strip_meta(declaration), digest=compute_definition_digest(declaration), kind=kind
        )

    @property
    def item(self) -> str:
        """The identifier of this definition in pins and reviews."""
        return format_item(self.kind, self.name)


def format_item(kind: DefinitionKind, name: str) -> str:
    """Write the identifier of a definition: `kind:name`."""
    return f"{kind}:{name}"


def parse_item_kind(item: str) -> DefinitionKind | None:
    """Read the kind from an item; None for a server's instructions, which are no definition."""
    kind, colon, _ = item.partition(":")
    return DefinitionKind(kind) if colon and kind in _KIND_VALUES else None


def parse_item_name(item: str) -> str:
    """Read the server's own name from an item."""
    return item.partition(":")[2]


@frozen
class McpTarget:
    """The target of a contract of the `mcp` driver: a tool of a server, or another of its methods."""

    server: str
    method: str
    name: str


def parse_mcp_target(target: str) -> McpTarget:
    """Parse a target: `server/tool` as the server spells it, or `server:method`. Names of servers contain no colon, so
    no tool can pass for a method.
    """
    server, _, name = target.partition("/")
    owner, colon, _ = server.partition(":")
    if not colon:
        return McpTarget(server=server, method=CALL_TOOL, name=name)
    method = target.partition(":")[2]
    return McpTarget(server=owner, method=method, name=method)


def parse_mcp_method(driver: str, target: str) -> str | None:
    """Read the method of a server that a contract calls; None if it calls a tool."""
    mcp_target = parse_mcp_target(target) if driver == "mcp" else None
    return None if mcp_target is None or mcp_target.method == CALL_TOOL else mcp_target.method


@frozen
class DiscoveredServer:
    """What a server declares: its title, its instructions, and its tools in its own order. `other_definitions` are the
    resources, templates and prompts that the settings serve. `rejections` has a sentence for each invalid definition.
    """

    protocol: str
    title: str
    version: str
    instructions: str
    tools: tuple[Definition, ...]
    rejections: tuple[str, ...] = ()
    other_definitions: tuple[Definition, ...] = ()

    @property
    def instructions_digest(self) -> str:
        return compute_digest({"instructions": self.instructions})

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each tool by its name; an ambiguous name has a digest that no pin equals."""
        return {parse_item_name(item): digest for item, digest in _collect_digests(self.tools).items()}

    @property
    def digests_by_item(self) -> dict[str, str]:
        """The digest of each definition by its item."""
        return _collect_digests((*self.tools, *self.other_definitions))


def _collect_digests(definitions: tuple[Definition, ...]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for each in definitions:
        is_same = digests.setdefault(each.item, each.digest) == each.digest
        digests[each.item] = each.digest if is_same else AMBIGUOUS_DIGEST
    return digests
