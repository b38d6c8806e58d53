"""Who is behind a call: the user, the agent acting for them, and what the token lets them do."""

from dataclasses import dataclass, field

from deputize.core.frozen import frozen

ADMIN_SCOPE = "deputize:admin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Capability:
    """One tool a token names, with the versions it covers."""

    tool: str
    versions: str = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Made by `govern/identity` from a verified token; nothing else makes one.

    `user` is the subject the authority comes from, `agents` the delegation chain, nearest actor first.
    `capabilities` of None means the token names no tools and so limits none.
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
    # Per-subject commitments for the audit log, user first; erasing a subject's salt unlinks them.
    pseudonyms: tuple[str, ...] = field(default=())

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.user, *self.agents)

    @property
    def agent(self) -> str:
        return self.agents[0] if self.agents else ""

    @property
    def is_admin(self) -> bool:
        return ADMIN_SCOPE in self.scopes


@dataclass(frozen=True, kw_only=True, slots=True)
class Epochs:
    """How often a tenant's registry, policy and revocations have changed: what a decision was made from."""

    registry: int = 0
    policy: int = 0
    revocation: int = 0

    def covers(self, other: "Epochs") -> bool:
        return self.registry >= other.registry and self.policy >= other.policy and self.revocation >= other.revocation


@frozen
class Decision:
    """Allow or deny, with the rules that said so and what they were decided from."""

    rules: tuple[str, ...]
    epochs: Epochs
    policy_digest: str = ""
