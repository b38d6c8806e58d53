"""Keep the state of each server at its last probe, in memory, for listings.

`operations/servers/monitor.py` records the probes. Calls do not depend on this state: the driver checks each call
against its own discovery.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deputize.core.contract.availability import AdmittedDrift, AvailabilityCode
from deputize.core.contract.contract import Contract, Effects
from deputize.core.mcp.servers import CALL_TOOL, DefinitionKind, DiscoveredServer, format_item, parse_mcp_target

# The number of rejected definitions that are reported.
MAX_REJECTIONS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """A server at its last probe: `since` is when it entered its state, `probed_at` the time of the last probe.

    What a server declared last stays known while it is unavailable.
    """

    is_connected: bool
    since: str
    probed_at: str
    reason: str = ""
    # True if it is unavailable until the operator changes something.
    needs_setup: bool = False
    protocol: str = ""
    title: str = ""
    version: str = ""
    # By item, the digest of each definition at the last probe.
    digests: Mapping[str, str] = field(default_factory=dict)
    instructions_digest: str = ""
    # One sentence for each invalid definition, which is neither registered nor held for review.
    rejections: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolUnavailability:
    """Why a server's tool cannot be called now: a code for programs, a reason for people."""

    code: AvailabilityCode
    reason: str


class ServerStates:
    """The states of all servers, by tenant and server."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], ServerState] = {}
        # The digest of the pinned instructions, by tenant and server.
        self._pinned_instructions: dict[tuple[str, str], str] = {}

    def get_state(self, tenant: str, server: str) -> ServerState | None:
        """Return a server's state; None if this process has not probed it yet."""
        return self._states.get((tenant, server))

    def pin_instructions(self, tenant: str, server: str, instructions: str) -> None:
        """Set the digest of the pinned instructions; empty if none are pinned."""
        self._pinned_instructions[tenant, server] = instructions

    def record_probe(self, tenant: str, server: str, discovery: DiscoveredServer, *, now: str) -> None:
        """Record a successful probe."""
        previous = self.get_state(tenant, server)
        self._states[tenant, server] = ServerState(
            is_connected=True,
            since=previous.since if previous is not None and previous.is_connected else now,
            probed_at=now,
            protocol=discovery.protocol,
            title=discovery.title,
            version=discovery.version,
            digests=discovery.digests_by_item,
            instructions_digest=discovery.instructions_digest,
            rejections=discovery.rejections[:MAX_REJECTIONS],
        )

    def record_failure(self, tenant: str, server: str, reason: str, *, now: str, needs_setup: bool = False) -> None:
        """Record a failed probe."""
        previous = self.get_state(tenant, server) or ServerState(is_connected=False, since=now, probed_at=now)
        since = now if previous.is_connected else previous.since
        self._states[tenant, server] = replace(
            previous, is_connected=False, since=since, probed_at=now, reason=reason, needs_setup=needs_setup
        )

    def find_unavailability(
        self, tenant: str, contract: Contract, *, admitted_drift: AdmittedDrift = AdmittedDrift.NONE
    ) -> ToolUnavailability | None:
        """Find why a call of this server's tool would be refused now; None if it would not, or is not known yet.

        With `admitted_drift`, rules may let calls of a changed tool pass.
        """
        target = parse_mcp_target(contract.handler.target)
        server, kind = target.server, DefinitionKind.TOOL if target.method == CALL_TOOL else DefinitionKind.METHOD
        state = self.get_state(tenant, server)
        if state is None:
            return None
        if not state.is_connected:
            code = AvailabilityCode.SETUP_REQUIRED if state.needs_setup else AvailabilityCode.SERVER_UNAVAILABLE
            return ToolUnavailability(code=code, reason=f"the server {server} is unavailable: {state.reason}")
        digest = state.digests.get(format_item(kind, target.name))
        if digest is None:
            return ToolUnavailability(
                code=AvailabilityCode.SERVER_UNAVAILABLE, reason=f"the server {server} no longer has this tool"
            )
        # Resources, templates and prompts are compared with their own pins when they are read.
        if admitted_drift.admits(contract.effects) or (
            contract.effects is Effects.READ and kind is DefinitionKind.METHOD
        ):
            return None
        if digest != contract.handler.pin:
            return ToolUnavailability(
                code=AvailabilityCode.TOOL_DRIFTED,
                reason=f"the server {server} changed this tool; the change is not accepted yet",
            )
        if state.instructions_digest != self._pinned_instructions.get((tenant, server)):
            return ToolUnavailability(
                code=AvailabilityCode.TOOL_DRIFTED,
                reason=f"the server {server} changed its instructions; the change is not accepted yet",
            )
        return None
