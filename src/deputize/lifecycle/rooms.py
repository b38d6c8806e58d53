"""What the lifecycle brings together: the five rooms and the store, as one value that `app.py` composes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deputize.core.clock import Clock
from deputize.core.settings import Settings
from deputize.execute.driver import Drivers
from deputize.execute.upstreams.servers import Upstreams
from deputize.govern.identity.signing import SigningKeys
from deputize.govern.limits.admission import Limits
from deputize.govern.policy.authzen import AuthZen
from deputize.lifecycle.authority import Authority
from deputize.lifecycle.credentials import Credentials
from deputize.lifecycle.decisions import DecisionLog
from deputize.lifecycle.hooks import Hooks
from deputize.lifecycle.servers.links import Links
from deputize.lifecycle.servers.signed_in import SignedIn
from deputize.lifecycle.servers.states import States
from deputize.prove.entries import Stamps
from deputize.prove.metrics import Metrics
from deputize.prove.tracing import Tracing
from deputize.runs.leases import Lease
from deputize.store.batch import GroupCommit
from deputize.store.keys import TenantKeys
from deputize.store.pool import Store

if TYPE_CHECKING:
    from deputize.govern.approvals.codes import Codes


@dataclass(frozen=True, kw_only=True, slots=True)
class Rooms:
    settings: Settings
    clock: Clock
    release: str
    store: Store
    writer: GroupCommit
    # What is done to runs before they begin and after they end; apart, so that no call waits behind it for its answer.
    queue: GroupCommit
    keys: TenantKeys
    authority: Authority
    decisions: DecisionLog
    hooks: Hooks
    remote_policy: AuthZen | None
    credentials: Credentials
    # None where the settings name no address to issue tokens under.
    signing: SigningKeys | None
    limits: Limits
    driver: Drivers
    upstreams: Upstreams
    # People's accounts at servers, and what calls and looks carry at those that want a sign-in.
    links: Links
    signed_in: SignedIn
    # How the servers behind them stood when this process last looked.
    servers: States
    lease: Lease
    metrics: Metrics
    tracing: Tracing
    stamps: Stamps
    # In development only: what whoever sits at the terminal decides with.
    codes: "Codes | None" = None
