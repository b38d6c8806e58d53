"""Define the reasons for which a tool is available to a caller, or is not."""

from enum import StrEnum


class AvailabilityCode(StrEnum):
    """Why a tool is loaded, deferred, blocked or excluded on a surface."""

    PERMITTED = "permitted"
    NEEDS_APPROVAL = "needs_approval"
    DECIDED_PER_CALL = "decided_per_call"
    DEFERRED_UNTIL_DISCOVERED = "deferred_until_discovered"
    POLICY_BLOCKED = "policy_blocked"
    ROLE_NOT_ALLOWED = "role_not_allowed"
    SETUP_REQUIRED = "setup_required"
    FEATURE_DISABLED = "feature_disabled"
    SERVER_UNAVAILABLE = "server_unavailable"
    CIRCUIT_OPEN = "circuit_open"
    TOOL_DRIFTED = "tool_drifted"
    OUTSIDE_SELECTION = "outside_selection"
