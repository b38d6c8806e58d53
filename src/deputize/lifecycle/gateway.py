"""Everything a door may use, in one value. Doors translate to and from it; they reach for nothing else."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import asyncpg

from deputize.core.caller import Caller
from deputize.core.errors import Problem, TokenMissing, Unavailable
from deputize.core.settings import Settings
from deputize.govern.identity.tokens import TokenVerifier
from deputize.lifecycle.answering import Answering
from deputize.lifecycle.approvals.decide import Approvals
from deputize.lifecycle.approvals.suggesting import Suggestions
from deputize.lifecycle.backtest import Backtests
from deputize.lifecycle.calls import Calls
from deputize.lifecycle.cancel import Cancellations
from deputize.lifecycle.command import Commands
from deputize.lifecycle.console import Console
from deputize.lifecycle.delegate import Delegations
from deputize.lifecycle.explaining import Explaining
from deputize.lifecycle.health import Health
from deputize.lifecycle.keeping import Rollbacks
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.servers.linking import Linking
from deputize.lifecycle.servers.review import Review
from deputize.lifecycle.servers.seen import Servers
from deputize.lifecycle.surface import Surface
from deputize.lifecycle.tickets import Tickets
from deputize.lifecycle.webhooks import Webhooks
from deputize.lifecycle.wellknown import RESOURCE_PATH, WellKnown
from deputize.prove.metrics import Metrics

if TYPE_CHECKING:
    from deputize.lifecycle.worker import Worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Gateway:
    settings: Settings
    tokens: TokenVerifier
    lifecycle: Lifecycle
    commands: Commands
    surface: Surface
    calls: Calls
    cancellations: Cancellations
    webhooks: Webhooks
    tickets: Tickets
    approvals: Approvals
    suggestions: Suggestions
    servers: Servers
    review: Review
    linking: Linking
    console: Console
    rollbacks: Rollbacks
    explaining: Explaining
    backtests: Backtests
    delegations: Delegations
    wellknown: WellKnown
    health: Health
    metrics: Metrics
    # Tools the settings name that were refused at start-up, each with its reasons; the others are served.
    refused: list[Problem] = field(default_factory=list)
    # The worker inside this process, where it has one.
    workers: list["Worker"] = field(default_factory=list)

    @property
    def answering(self) -> Answering:
        """Answers to what runs were asked back, by their ids: made of what is here already."""
        return Answering(self.lifecycle, self.calls)

    @property
    def metadata_url(self) -> str | None:
        """Where a client that was refused learns whose token to get (RFC 9728)."""
        signing = self.lifecycle.rooms.signing
        return None if signing is None else signing.public_url + RESOURCE_PATH

    async def caller(self, authorization: bytes | None, *, deciding: bool = False) -> Caller:
        """Who sent this Authorization header, unless that was revoked: whatever is asked for, they learn nothing.
        Tokens for the console are good where people see and decide what waits for them, and nowhere else.
        """
        token = bearer(authorization)
        caller = self.tokens.cached(token, deciding=deciding) or await self.tokens.verify(token, deciding=deciding)
        (await self.lifecycle.rooms.authority.of(caller.tenant)).revocations.check(caller)
        return caller


def bearer(authorization: bytes | None) -> bytes:
    """The token of an Authorization header."""
    if authorization is None or authorization[:7].lower() != b"bearer ":
        raise TokenMissing("the request carries no bearer token")
    return authorization[7:].strip()


# The database is away, full or shutting down; nothing a caller asked for is at fault.
_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    OSError,
    TimeoutError,
)


def problem_of(error: Exception) -> Problem | None:
    """What an error from below means to a caller, if it means more than that something is broken."""
    if isinstance(error, _AWAY):
        return Unavailable("PostgreSQL does not answer", retry_after_ms=1000)
    return None
