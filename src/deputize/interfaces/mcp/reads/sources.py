"""Find the servers whose resources and prompts a caller can read, and resolve a URI or a name to one of them.

A URI is shown as the server spells it while it means one server only. If several servers known to this caller have it,
it is shown and requested with the server's name as a prefix, as in `orders+https://example.com/a`. Servers that are
unavailable or blocked count too, so that a URI never means another server for a while. Prompts always have the server's
name as a prefix, as tools do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deputize.core.errors import ResourceNotFound
from deputize.core.mcp.resources import Declaration, PinnedResources
from deputize.core.mcp.servers import DefinitionKind, format_item
from deputize.interfaces.mcp.context import McpContext

_SEPARATOR: Final = "__"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSource:
    """One server that a caller can read from through the contract `tool`.

    `is_loaded` says whether it can be used now. `present_items` is what the server declared when it was last probed;
    None before the first probe.
    """

    server: str
    tool: str
    is_loaded: bool
    pins: PinnedResources
    present_items: Mapping[str, str] | None

    def list_definitions(self, kind: DefinitionKind) -> dict[str, Declaration]:
        """List the pinned definitions of a kind that are still present."""
        if not self.is_loaded:
            return {}
        by_kind = {DefinitionKind.RESOURCE: self.pins.resources, DefinitionKind.TEMPLATE: self.pins.templates}
        definitions = by_kind.get(kind, self.pins.prompts)
        present_items = self.present_items
        return {
            name: definition
            for name, definition in definitions.items()
            if present_items is None or format_item(kind, name) in present_items
        }

    @property
    def uri_prefix(self) -> str:
        """The prefix of an ambiguous URI. A URI scheme cannot contain `_`."""
        return self.server.replace("_", "-") + "+"


async def load_sources(context: McpContext, method: str) -> list[ServerSource]:
    """Load the servers that have a method, sorted by name."""
    methods = await context.gateway.surface.list_server_methods(context.caller)
    sources = [
        ServerSource(
            server=each.server,
            tool=each.tool,
            is_loaded=each.is_loaded,
            pins=each.pins,
            present_items=each.present_items,
        )
        for each in methods
        if each.method == method
    ]
    return sorted(sources, key=lambda each: each.server)


def qualify_uri(uri: str, source: ServerSource, candidates: Sequence[ServerSource]) -> str:
    """Spell a URI, or a URI template, of a source as this caller has to request it."""
    is_clear = not any(uri.startswith(each.uri_prefix) for each in candidates) and not any(
        each is not source and _has_uri(each, uri) for each in candidates
    )
    return uri if is_clear else source.uri_prefix + uri


def resolve_resource(uri: str, candidates: Sequence[ServerSource]) -> tuple[ServerSource, str]:
    """Resolve a URI to its server and the server's own URI, or raise `ResourceNotFound`."""
    for each in candidates:
        if uri.startswith(each.uri_prefix):
            candidates, uri = (each,), uri.removeprefix(each.uri_prefix)
            break
    matches = [each for each in candidates if _has_uri(each, uri)]
    if len(matches) > 1:
        choices = ", ".join(each.uri_prefix + uri for each in matches)
        raise ResourceNotFound(
            f"several servers have the resource {uri[:200]}",
            details={"uri": uri[:200]},
            advice=f"Name the server, with one of these URIs: {choices[:1000]}.",
        )
    if not matches:
        raise ResourceNotFound(f"there is no resource {uri[:200]}", details={"uri": uri[:200]})
    return matches[0], uri


def qualify_prompt(name: str, source: ServerSource) -> str:
    """Spell a prompt's name with its server's name."""
    return f"{source.server}{_SEPARATOR}{name}"


def resolve_prompt(qualified_name: str, candidates: Sequence[ServerSource]) -> tuple[ServerSource, str]:
    """Resolve a prompt's name to its server and its own name there, or raise `ResourceNotFound`."""
    server, separator, name = qualified_name.partition(_SEPARATOR)
    for each in candidates:
        if separator and each.server == server and name in each.pins.prompts:
            return each, name
    raise ResourceNotFound(f"there is no prompt {qualified_name[:200]}", details={"name": qualified_name[:200]})


def _has_uri(source: ServerSource, uri: str) -> bool:
    return uri in source.pins.templates or source.pins.has_resource(uri)
