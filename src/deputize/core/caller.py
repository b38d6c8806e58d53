"""Who is behind a call: the user, the agent acting for them, and what the token lets them do."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from deputize.core.contract import Effects

ADMIN_SCOPE = "deputize:admin"
# Who has it may, together with another who has it, let a call go on that nobody else was there to approve.
BREAK_GLASS_SCOPE = "deputize:break-glass"
# Who issued the authority of the process itself, which nobody can revoke; no issuer of tokens may be called so.
PROCESS = "process"
# Who shows a code that only the terminal of `deputize dev` shows; no issuer of tokens may be called so either.
TERMINAL = "terminal"
# The issuer of the one caller this gateway makes up itself: it asks what became of a call that nobody waits for.
RECONCILER = "deputize:reconciliation"
Trust = Literal["untrusted", "standard", "trusted"]
# No name of a subject holds a control character.
_BETWEEN_AGENTS = "\x1f"


@dataclass(frozen=True, kw_only=True, slots=True)
class Capability:
    """One tool a token names, with the versions it covers."""

    tool: str
    versions: str = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Made by `govern/identity` from a verified token; nothing else makes one.

    `user` is the subject the authority comes from, `agents` the delegation chain, nearest actor first.
    `capabilities` of None means the token names no tools and so limits none. `grants` are the delegations behind the
    token, nearest first; `ceiling` is the worst effect they allow; `task` is what they were made for. `first_token` is
    the id of the token that the first of them was made from.

    `console` says that the token is a person's own and was made for deciding what others asked for; `only_decides`,
    that it was made for nothing else, so it makes no call and lends nothing. `methods` are the ways the person signed
    in by (`amr` and `acr`). Policies read none of them, and nobody who is written down comes back with any: who decides
    is there in person.
    """

    tenant: str
    user: str
    agents: tuple[str, ...] = ()
    scopes: frozenset[str] = frozenset()
    capabilities: tuple[Capability, ...] | None = None
    session: str | None = None
    token_id: str = ""
    issuer: str = ""
    expires_at: int = 0
    issued_at: int = 0
    groups: frozenset[str] = frozenset()
    trust: Trust = "standard"
    human: bool = False
    auth_time: int = 0
    methods: frozenset[str] = frozenset()
    console: bool = False
    only_decides: bool = False
    grants: tuple[str, ...] = ()
    first_token: str = ""
    task: str | None = None
    ceiling: Effects | None = None
    # Names everything a decision may know of this caller: equal standings share decisions; empty means ask anew.
    standing: str = ""
    # Per-subject commitments for the audit log, user first; erasing a subject's salt unlinks them.
    pseudonyms: tuple[str, ...] = field(default=())

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.user, *self.agents)

    @property
    def agent(self) -> str:
        return self.agents[0] if self.agents else ""

    @property
    def lent_to(self) -> tuple[str, ...]:
        """The user and the agent they lent to, whoever acts: what is lent on is still lent by them, and counts as
        theirs. An agent that lends to itself under another name gets no second allowance.
        """
        return (self.user, *self.agents[-1:])

    @property
    def acting(self) -> str:
        """The whole chain of agents as one name. The nearest alone would not do: whoever was lent something may lend it
        on to an agent of any name, and would be taken for that one.
        """
        return _BETWEEN_AGENTS.join(self.agents)

    @property
    def is_admin(self) -> bool:
        return ADMIN_SCOPE in self.scopes

    def made(self, user: str, acting: str) -> bool:
        """Whether a call that is recorded under these names is this caller's: a user's whoever acted for them, an
        agent's only what that very chain did.
        """
        return user == self.user and (not self.agents or acting == self.acting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Epochs:
    """How often a tenant's registry, policy and revocations have changed: what a decision was made from."""

    registry: int = 0
    policy: int = 0
    revocation: int = 0

    def covers(self, other: "Epochs") -> bool:
        return self.registry >= other.registry and self.policy >= other.policy and self.revocation >= other.revocation


def nearest_of(acting: str) -> str:
    """The agent that acts, of a chain that was made one name."""
    return acting.partition(_BETWEEN_AGENTS)[0]


def standing_of(caller: Caller) -> str:
    """A digest of everything policies may read of a caller. Length-prefixed, so no two callers spell the same bytes."""
    parts = (
        caller.tenant, caller.issuer, caller.user, caller.trust, str(caller.human), caller.task or "",
        str(len(caller.agents)), *caller.agents,
        str(len(caller.groups)), *sorted(caller.groups),
        str(len(caller.scopes)), *sorted(caller.scopes),
        "" if caller.session is None else f"session {caller.session}",
    )  # fmt: skip
    spelled = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hashlib.sha256(spelled).hexdigest()[:32]
