"""Declare the life of a tool's version, and who publishes it."""

from enum import StrEnum

from deputize.core.contract.parts import ContractPart, ToolRef


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
