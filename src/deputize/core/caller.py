"""Define who makes a call: the user, the agents acting for them, and what their token allows."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from deputize.core.contract.contract import Effects
from deputize.core.subject import AGENT_PREFIX, build_subject, qualify_subject

ADMIN_SCOPE = "deputize:admin"
# Two people with this scope can override a missing approval in an emergency.
BREAK_GLASS_SCOPE = "deputize:break-glass"
# Cancels calls, sets kill switches and resolves human tasks of the tenant, and reads what an auditor reads.
OPERATE_SCOPE = "deputize:operate"
# Reads the tenant: its audit, calls, policies, switches, agents and servers, but neither arguments nor results. Changes
# nothing.
AUDIT_SCOPE = "deputize:audit"
# Takes back what calls did, for people only: no agent undoes.
UNDO_SCOPE = "deputize:undo"
# The issuer of the process itself, which cannot be revoked; no issuer of tokens may have this name.
PROCESS_ISSUER = "process"
# The issuer of approval codes on the terminal of `deputize dev`; no issuer of tokens may have this name.
TERMINAL_ISSUER = "terminal"
# The issuer of the gateway's own caller, which reconciles calls with an UNKNOWN outcome.
RECONCILER_ISSUER = "deputize:reconciliation"
Trust = Literal["untrusted", "standard", "trusted"]
# Subjects never contain control characters.
AGENT_SEPARATOR = "\x1f"
GRANT_SEPARATOR = "\x1e"


@dataclass(frozen=True, kw_only=True, slots=True)
class Capability:
    """One tool a token names, with the versions it covers."""

    tool: str
    versions: str = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """The caller of a request, made by `govern/identity` from a verified token.

    `user` is the subject the authority comes from, as it is stored: a bare name, or qualified by its issuer
    (`core/subject.py`). `agents` is the delegation chain, nearest actor first. An agent's name is a label, unless
    `agent_issuers` has at its place the issuer that proved it; `""` stands for no proof. `primary_issuer` is the
    tenant's, whose subjects are named without it. `capabilities` is None if the
    token names no tools and so limits none. `grants` are the delegations behind the token, nearest first; `ceiling` is
    the worst effect they allow; `task` is what they are for. `first_token` is the id of the token that the first of
    them was made from.

    `console` is True if the token belongs to a person and may decide approval requests; `only_decides`, if it may do
    nothing else: no calls and no delegations. `operator` is True if the token belongs to a person who signed in at an
    issuer of operators. `methods` are the person's sign-in methods (`amr` and `acr`). Policies
    read none of these four, and a caller restored from the database has none: an approver is present in person.
    """

    tenant: str
    user: str
    agents: tuple[str, ...] = ()
    agent_issuers: tuple[str, ...] = ()
    primary_issuer: str | None = None
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
    operator: bool = False
    grants: tuple[str, ...] = ()
    first_token: str = ""
    task: str | None = None
    ceiling: Effects | None = None
    # The constraints of each delegation behind the token, as canonical JSON; all of them hold.
    constraints: tuple[str, ...] = ()
    # A digest of all that policies may read: callers with equal digests share cached decisions; empty caches none.
    decision_cache_key: str = ""
    # The code from the terminal of `deputize dev` that was sent with an administrative request; shown in no repr.
    confirmation_code: str = field(default="", repr=False)
    # Per-subject commitments for the audit log, user first; erasing a subject's salt unlinks them.
    pseudonyms: tuple[str, ...] = field(default=())

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.user, *self.agents)

    @property
    def pseudonym_subjects(self) -> tuple[str, ...]:
        """The subjects as pseudonyms are made of them: an agent never shares the pseudonym of a person."""
        return (self.user, *(f"{AGENT_PREFIX}{agent}" for agent in self.agents))

    @property
    def agent(self) -> str:
        return self.agents[0] if self.agents else ""

    @property
    def delegation_origin(self) -> tuple[str, ...]:
        """The user and the agent they delegated to, whichever agent acts. Limits count by it, so an agent that
        delegates to itself under another name gets no second allowance.
        """
        return (self.user, *self.agents[-1:])

    @property
    def agent_chain(self) -> str:
        """The whole chain of agents as one name. The nearest agent is not enough: a delegate may delegate on to an
        agent of any name, and would pass for that one.
        """
        return AGENT_SEPARATOR.join(self.agents)

    @property
    def agent_key(self) -> str:
        """Who acts for the user, as calls record it: the chain of agents and the delegation they act by. The names are
        not enough: the next delegation to an agent of these names may be narrower, or to somebody else.
        """
        return (
            f"{self.agent_chain}{GRANT_SEPARATOR}{self.grants[0]}" if self.agents and self.grants else self.agent_chain
        )

    @property
    def proven_agents(self) -> tuple[str, ...]:
        """The agents whose identity an issuer proved, each qualified by that issuer. An agent that only bears a name
        is not the person or agent of that name.
        """
        return tuple(
            qualify_subject(issuer, agent)
            for agent, issuer in zip(self.agents, self.agent_issuers, strict=False)
            if issuer
        )

    @property
    def proven_agent(self) -> str | None:
        """The nearest agent whose identity is proven, named as the same subject would be as a user; a DID by itself.
        A name that a delegation chose on top of it proves nothing, so it hides no one.
        """
        for agent, issuer in zip(self.agents, self.agent_issuers, strict=False):
            if issuer:
                return agent if issuer == agent else build_subject(issuer, agent, self.primary_issuer)
        return None

    @property
    def participants(self) -> tuple[str, ...]:
        """Those who certainly took part in a call, and so may not approve it: the user, then the proven agents."""
        return (self.user, *self.proven_agents)

    @property
    def is_limited(self) -> bool:
        """True if the token allows less than its scopes do."""
        return self.capabilities is not None or self.ceiling is not None or bool(self.constraints)

    @property
    def is_admin(self) -> bool:
        return ADMIN_SCOPE in self.scopes

    @property
    def can_operate(self) -> bool:
        """True if the caller may cancel calls, set kill switches and resolve human tasks of the whole tenant."""
        return self.is_admin or OPERATE_SCOPE in self.scopes

    @property
    def is_auditor(self) -> bool:
        """True if the caller may read the audit entries of the whole tenant."""
        return self.can_operate or AUDIT_SCOPE in self.scopes

    def is_maker_of(self, user: str, agent_key: str) -> bool:
        """Tell whether a stored call is this caller's. A user made all calls of their agents; an agent made only those
        of exactly its chain and delegation.
        """
        return user == self.user and (not self.agents or agent_key == self.agent_key)

    def is_delegate_of(self, user: str, agent_key: str) -> bool:
        """Tell whether this caller's delegation was made from the one of a stored call, or by the user who made it."""
        if user != self.user or not self.agents:
            return False
        if not agent_key:
            return True
        chain, _, grant = agent_key.partition(GRANT_SEPARATOR)
        # Without a delegation nothing tells the agents of one name apart.
        return grant in self.grants[1:] and f"{AGENT_SEPARATOR}{self.agent_chain}".endswith(f"{AGENT_SEPARATOR}{chain}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Epochs:
    """Counters of changes to a tenant's registry, policies and revocations; a decision is valid for its epochs."""

    registry: int = 0
    policy: int = 0
    revocation: int = 0

    def is_at_least(self, other: "Epochs") -> bool:
        """Tell whether no epoch is older than the other's."""
        return self.registry >= other.registry and self.policy >= other.policy and self.revocation >= other.revocation


def parse_agent_chain(agent_key: str) -> str:
    """Read the chain of agents from what a call records of them."""
    return agent_key.partition(GRANT_SEPARATOR)[0]


def parse_grant(agent_key: str) -> str:
    """Read the delegation that an agent acted by; empty if there was none."""
    return agent_key.partition(GRANT_SEPARATOR)[2]


def parse_nearest_agent(agent_key: str) -> str:
    """Read the acting agent."""
    return parse_agent_chain(agent_key).partition(AGENT_SEPARATOR)[0]


def parse_agents(agent_key: str) -> tuple[str, ...]:
    """Read all agents, nearest first."""
    chain = parse_agent_chain(agent_key)
    return tuple(chain.split(AGENT_SEPARATOR)) if chain else ()


def compute_decision_cache_key(caller: Caller) -> str:
    """Digest everything policies may read of a caller. Parts are length-prefixed, so no two callers collide."""
    parts = (
        caller.tenant, caller.issuer, caller.user, caller.trust, str(caller.human), caller.task or "",
        str(len(caller.agents)), *caller.agents, caller.proven_agent or "",
        str(len(caller.groups)), *sorted(caller.groups),
        str(len(caller.scopes)), *sorted(caller.scopes),
        "" if caller.session is None else f"session {caller.session}",
    )  # fmt: skip
    data = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hashlib.sha256(data).hexdigest()[:32]


def operator_caller(tenant: str) -> Caller:
    """Build the caller for the operator of this process; the audit log records it like any administrator."""
    return Caller(
        tenant=tenant,
        user="operator",
        scopes=frozenset({ADMIN_SCOPE}),
        issuer=PROCESS_ISSUER,
        token_id="boot",
    )
