"""What somebody agreed to of a server beside its tools: resources, templates of resources, and prompts.

Nothing else of it is read, whatever the server would answer. Above: the driver, which asks before it sends anything,
and the MCP door, which lists. Below: `core/uris.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deputize.core.servers import Kind, kind_of, name_in
from deputize.core.uris import matches

Said = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offers:
    """By the name or address its server gives it, what it said of each when somebody agreed."""

    resources: Mapping[str, Said] = field(default_factory=dict)
    templates: Mapping[str, Said] = field(default_factory=dict)
    prompts: Mapping[str, Said] = field(default_factory=dict)

    @classmethod
    def of(cls, pins: Iterable[tuple[str, Said]]) -> "Offers":
        """From items and what was said of each; whatever is neither is passed over."""
        found: dict[Kind, dict[str, Said]] = {each: {} for each in Kind}
        for item, said in pins:
            kind = kind_of(item)
            if kind is not None:
                found[kind][name_in(item)] = said
        return cls(resources=found[Kind.RESOURCE], templates=found[Kind.TEMPLATE], prompts=found[Kind.PROMPT])

    def has_resource(self, uri: str) -> bool:
        """Whether this address was agreed to: by itself, or as one that a template stands for."""
        return uri in self.resources or any(matches(template, uri) for template in self.templates)

    def has_reference(self, reference: Mapping[str, Any]) -> bool:
        """Whether this is a prompt or a template that was agreed to, as completions name them."""
        if reference.get("type") == "ref/prompt":
            return reference.get("name") in self.prompts
        uri = reference.get("uri")
        return reference.get("type") == "ref/resource" and (uri in self.templates or uri in self.resources)


NOTHING = Offers()
