"""Define the reasons for which a tool is available to a caller, or is not."""

from enum import IntEnum, StrEnum

from deputize.core.contract.effects import Effects


class AdmittedDrift(IntEnum):
    """Which calls of a tool pass although its server changed it and nobody accepted that; the last one is all."""

    NONE = 0
    READS = 1
    WRITES = 2

    def admits(self, effects: Effects) -> bool:
        """Tell whether a call with these effects passes."""
        return self >= (AdmittedDrift.READS if effects is Effects.READ else AdmittedDrift.WRITES)


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
