"""How each server stood when this process last looked, in memory: what the surface reads for every listing.

Written by `connected.py`; nothing here decides about a call. The driver holds each call against its own look.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deputize.core.contract import Contract, Effects
from deputize.core.servers import CALL_TOOL, Discovered, Kind, address, item_of

# Who declares more nonsense than this is told of the first of it.
MOST_LEFT_OUT = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """`since` is when it was first found like this, `looked_at` when it was looked at last. What it said last stays
    known while it is away.
    """

    connected: bool
    since: str
    looked_at: str
    why: str = ""
    protocol: str = ""
    title: str = ""
    version: str = ""
    # By item, the digest of everything of it that is served, as it was seen last.
    digests: Mapping[str, str] = field(default_factory=dict)
    instructions: str = ""
    # What it declared that is no definition, and so is neither registered nor held: a sentence for each.
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Against:
    """Why a tool of a server cannot be used now: for programs, and for people."""

    code: str
    why: str


class States:
    def __init__(self) -> None:
        self._states: dict[tuple[str, str], ServerState] = {}
        # The digest of the instructions somebody agreed to, by tenant and server.
        self._agreed: dict[tuple[str, str], str] = {}

    def of(self, tenant: str, server: str) -> ServerState | None:
        """None for one that this process has not looked at yet."""
        return self._states.get((tenant, server))

    def agree(self, tenant: str, server: str, instructions: str) -> None:
        """The digest of the instructions that count; empty where nobody agreed to any."""
        self._agreed[tenant, server] = instructions

    def found(self, tenant: str, server: str, said: Discovered, *, now: str) -> None:
        before = self.of(tenant, server)
        self._states[tenant, server] = ServerState(
            connected=True,
            since=before.since if before is not None and before.connected else now,
            looked_at=now,
            protocol=said.protocol,
            title=said.title,
            version=said.version,
            digests=said.digests_by_item,
            instructions=said.instructions_digest,
            left_out=said.refused[:MOST_LEFT_OUT],
        )

    def lost(self, tenant: str, server: str, why: str, *, now: str) -> None:
        before = self.of(tenant, server)
        if before is None:
            self._states[tenant, server] = ServerState(connected=False, since=now, looked_at=now, why=why)
            return
        since = now if before.connected else before.since
        self._states[tenant, server] = replace(before, connected=False, since=since, looked_at=now, why=why)

    def against(self, tenant: str, contract: Contract) -> Against | None:
        """Why this tool of a server would be refused now, if it would; of one not looked at yet nothing is known."""
        at = address(contract.handler.target)
        server, kind = at.server, Kind.TOOL if at.method == CALL_TOOL else Kind.METHOD
        state = self.of(tenant, server)
        if state is None:
            return None
        if not state.connected:
            return Against(code="server_unavailable", why=f"the server {server} does not answer: {state.why}")
        digest = state.digests.get(item_of(kind, at.name))
        if digest is None:
            return Against(code="server_unavailable", why=f"the server {server} does not offer it any more")
        if contract.effects is Effects.READ:
            return None
        if digest != contract.handler.pin:
            return Against(code="tool_drifted", why=f"the server {server} changed it since somebody agreed to it")
        if state.instructions != self._agreed.get((tenant, server)):
            return Against(code="tool_drifted", why=f"the server {server} changed its instructions; nobody agreed yet")
        return None
