"""Declare the life of a tool's version, and who publishes it."""

from enum import StrEnum
from typing import Any, Final

from deputize.core.contract.parts import ContractPart, ToolRef

# The version of a tool whose author has not declared its effects yet.
DRAFT_VERSION: Final = "0.0.0"
# What a contract says where its author wrote no description; it counts as missing.
NO_DESCRIPTION: Final = "There is no description yet."
# What `deputize tool check --fix` writes where only the author knows the text; it counts as missing.
PLACEHOLDER: Final = "CHANGEME"


class LifecycleState(StrEnum):
    """The state of a version of a tool, from draft to retired."""

    DRAFT = "draft"
    AVAILABLE = "available"
    DISABLED = "disabled"
    REQUIRES_SETUP = "requires_setup"
    DEFERRED = "deferred"
    DEPRECATED = "deprecated"
    RETIRED = "retired"


class EndOfLife(ContractPart):
    """Dates and links for the end of a version's life."""

    deprecation_date: str | None = None
    sunset_date: str | None = None
    migration_guide_url: str | None = None
    replacement: ToolRef | None = None


class Author(ContractPart):
    """Who wrote the tool."""

    name: str = ""
    email: str = ""
    url: str = ""


def has_placeholder(value: Any) -> bool:
    """Tell whether a text, or a text inside a JSON value, starts with the placeholder."""
    if isinstance(value, str):
        return value.lstrip().startswith(PLACEHOLDER)
    if isinstance(value, dict):
        return any(map(has_placeholder, value.values()))
    return isinstance(value, list | tuple) and any(map(has_placeholder, value))
