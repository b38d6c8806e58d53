"""Define the accepted resources, resource templates and prompts of a server.

Nothing else of a server is read, whatever the server would answer. The driver checks this before it sends a request,
and the MCP interface lists from it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deputize.core.mcp.servers import DefinitionKind, parse_item_kind, parse_item_name
from deputize.core.mcp.uri_templates import can_expand_to

Declaration = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedResources:
    """The declarations that an administrator accepted, by the server's own name or URI."""

    resources: Mapping[str, Declaration] = field(default_factory=dict)
    templates: Mapping[str, Declaration] = field(default_factory=dict)
    prompts: Mapping[str, Declaration] = field(default_factory=dict)

    @classmethod
    def from_pins(cls, pins: Iterable[tuple[str, Declaration]]) -> "PinnedResources":
        """Collect the declarations of pinned items; items of other kinds are skipped."""
        declarations: dict[DefinitionKind, dict[str, Declaration]] = {each: {} for each in DefinitionKind}
        for item, declaration in pins:
            kind = parse_item_kind(item)
            if kind is not None:
                declarations[kind][parse_item_name(item)] = declaration
        return cls(
            resources=declarations[DefinitionKind.RESOURCE],
            templates=declarations[DefinitionKind.TEMPLATE],
            prompts=declarations[DefinitionKind.PROMPT],
        )

    def has_resource(self, uri: str) -> bool:
        """Tell whether this URI is accepted, by itself or through a template."""
        return uri in self.resources or any(can_expand_to(template, uri) for template in self.templates)

    def has_reference(self, reference: Mapping[str, Any]) -> bool:
        """Tell whether this is an accepted prompt or template, as completions refer to them."""
        if reference.get("type") == "ref/prompt":
            return reference.get("name") in self.prompts
        uri = reference.get("uri")
        return reference.get("type") == "ref/resource" and (uri in self.templates or uri in self.resources)


NO_PINNED_RESOURCES = PinnedResources()
