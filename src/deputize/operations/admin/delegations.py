"""Delegate authority: exchange a user's token for an agent's, or an agent's for another's, always narrower (RFC 8693).

This needs no administrator: the authority is that of the token. The grant is committed and recorded before its token is
returned; a caller who is revoked by then delegates nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

from deputize.acts.act import change_authority, commit_act
from deputize.catalog.versions import InvalidVersionRange, is_in_range, parse_range
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.tools import Secret
from deputize.core.delegation import DelegationRequest
from deputize.core.errors import ExchangeRefused, GrantNotFound, NoSuchRoute, PermissionProblem, Problem
from deputize.core.grant_constraints import InvalidConstraints, parse_constraints
from deputize.govern.identity import grants, minted_tokens, revocations
from deputize.govern.identity.claims import OPERATOR_CLIENT_CLAIM
from deputize.govern.identity.jws import MAX_TOKEN_BYTES
from deputize.govern.identity.signing_keys import SigningKeys
from deputize.govern.identity.token_exchange import (
    AGENT_RULE,
    CONSTRAINTS_RULE,
    TOOLS_RULE,
    Delegation,
    build_claims,
    derive_delegation,
)
from deputize.govern.identity.token_verifier import Actor, TokenVerifier, VerifiedToken
from deputize.govern.token_authorization import is_tool_visible
from deputize.lifecycle.approval.unstarted_call import count_waiting_calls, withdraw_revoked_requests
from deputize.lifecycle.credentials.broker import MintToken
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection


@dataclass(frozen=True, kw_only=True, slots=True)
class IssuedToken:
    """A token whose delegation is committed."""

    token: str = field(repr=False)
    grant: Delegation

    @property
    def seconds(self) -> int:
        return self.grant.not_after - self.grant.issued_at


class Delegations:
    """Token exchange and grants; `signing_keys` is None if identity.public_url is not set, and then none is issued."""

    def __init__(self, runtime: Runtime, tokens: TokenVerifier, signing_keys: SigningKeys | None) -> None:
        self._runtime = runtime
        self._tokens = tokens
        self._signing_keys = signing_keys

    async def exchange_token(
        self, subject_token: bytes, actor_token: bytes | None, request: DelegationRequest, *, address: str = ""
    ) -> IssuedToken:
        """Issue a token for the agent of `actor_token`, or for the agent that the subject token's holder names.

        `address` is the client's; failures are counted by it while it is not known who the caller is.
        """
        if self._signing_keys is None:
            raise NoSuchRoute("token exchange is not available: identity.public_url is not set")
        runtime = self._runtime
        subject = await self._verify_subject(subject_token, address)
        caller = subject.caller
        actor = await self._tokens.verify_actor(actor_token, caller.tenant) if actor_token is not None else None
        request = _resolve_agent(request, actor)
        _require_may_act(subject.claims, request.agent, actor)
        _require_valid_ranges(request)
        await self._require_known_tools(caller, request)
        key = self._signing_keys.get_ready_key(caller.tenant) or await self._signing_keys.load_current_key(
            caller.tenant
        )
        delegation = derive_delegation(
            caller,
            request,
            id=runtime.clock.new_id(),
            now=runtime.clock.epoch_ms() // 1000,
            max_lifetime=runtime.settings.identity.max_grant_seconds,
            is_in_range=is_in_range,
        )
        claims = build_claims(delegation, caller, audience=key.audience)
        # Pass `may_act` on, or the agent it allows could delegate to anyone else.
        token = key.sign({**claims, **{name: subject.claims[name] for name in ("may_act",) if name in subject.claims}})
        if len(token) > MAX_TOKEN_BYTES:
            raise ExchangeRefused(
                f"the token would be longer than {MAX_TOKEN_BYTES} bytes",
                advice="Name fewer tools, or delegate for a user with fewer groups.",
                nothing_happened=True,
            )

        async def act(connection: Connection) -> None:
            await grants.add_grant(connection, delegation)

        receiver = replace(
            caller,
            agents=delegation.agents,
            agent_issuers=delegation.agent_issuers,
            grants=delegation.grants,
        )
        proven_actors = (actor.caller,) if actor is not None and actor.caller is not None else ()
        await commit_act(runtime, caller, "delegate", delegation.id, act, (receiver, *proven_actors))
        return IssuedToken(token=token, grant=delegation)

    async def _verify_subject(self, subject_token: bytes, address: str) -> VerifiedToken:
        """Verify the subject token, and count the exchange by its user, or by the address if the token is invalid."""
        try:
            subject = await self._tokens.verify_token(subject_token)
        except PermissionProblem as problem:
            self._runtime.request_limits.count_failure(address, problem)
            raise
        # An actor token may name a host that answers slowly.
        self._runtime.request_slots.take_slot(subject.caller)
        await self._runtime.request_limits.count_exchange(subject.caller)
        if OPERATOR_CLIENT_CLAIM in subject.claims:
            raise ExchangeRefused(
                "an operator client cannot delegate",
                advice="Delegate from the token of a person or an agent.",
                nothing_happened=True,
            )
        return subject

    async def _require_known_tools(self, caller: Caller, request: DelegationRequest) -> None:
        """Require that constraints name tools which the caller can see: a misspelt name would constrain nothing."""
        if request.constraints is None:
            return
        tools = (await self._runtime.authority.load_tenant(caller.tenant)).tools
        try:
            for name in parse_constraints(request.constraints)[1].arguments:
                tools.resolve_version(name, visible=partial(is_tool_visible, caller))
        except InvalidConstraints:
            # Refused with its reason when the delegation is derived.
            return
        except Problem as problem:
            raise ExchangeRefused(
                f"constraints: {problem.message}", details={"rule": CONSTRAINTS_RULE}, nothing_happened=True
            ) from problem

    async def list_grants(self, caller: Caller, *, before: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        """List the grants that the caller delegated (an auditor: the whole tenant's), newest first."""
        await self._check_revocation(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            whose = grants.GrantFilter.for_caller(caller, for_auditor=True)
            return await grants.list_grants(connection, caller.tenant, whose, before=before, limit=limit)

    async def show_grant(self, caller: Caller, grant_id: str) -> dict[str, Any]:
        """Show a grant, and what revoking it would end: grants with their tokens, and calls that wait for approval."""
        await self._check_revocation(caller)
        tenant = caller.tenant
        async with self._runtime.store.read_transaction(tenant) as connection:
            grant = await _load_grant(connection, caller, grant_id)
            grant_count = await revocations.count_ended_grants(connection, tenant, "grant", grant["grant_id"])
        call_count = await count_waiting_calls(self._runtime, tenant, grant["grant_id"])
        return {**grant, "revoking_ends": {"grants": grant_count, "waiting_calls": call_count}}

    async def revoke_grant(self, caller: Caller, grant_id: str, *, reason: str = "") -> int:
        """Revoke a grant and everything derived from it; allowed for the delegating caller and for administrators.

        A grant never changes, so whose it is can be decided before the act.
        """
        await self._check_revocation(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            known_id = (await _load_grant(connection, caller, grant_id))["grant_id"]

        async def act(connection: Connection) -> int:
            return await revocations.revoke(connection, caller.tenant, "grant", known_id, reason=reason, by=caller.user)

        epoch = await change_authority(self._runtime, caller, "revoke:grant", known_id, act, is_tightening=True)
        await withdraw_revoked_requests(self._runtime, caller.tenant)
        return epoch

    async def _check_revocation(self, caller: Caller) -> None:
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)


async def _load_grant(connection: Connection, caller: Caller, grant_id: str) -> dict[str, Any]:
    """Load a grant; another caller's grant looks like one that does not exist."""
    try:
        grant_uuid = str(UUID(grant_id))
    except ValueError:
        grant_uuid = None
    grant = (
        None
        if grant_uuid is None
        else await grants.find_grant(connection, caller.tenant, grants.GrantFilter.for_caller(caller), grant_uuid)
    )
    if grant is None:
        raise GrantNotFound("no delegation has this id, or it is not yours")
    return grant


def _resolve_agent(request: DelegationRequest, actor: Actor | None) -> DelegationRequest:
    if actor is None:
        return request
    if request.agent not in ("", actor.name):
        raise ExchangeRefused(
            "the actor token belongs to another agent than `agent` names", details={"rule": AGENT_RULE}
        )
    return replace(request, agent=actor.name, proven_by=actor.subject_issuer)


def _require_may_act(claims: Mapping[str, Any], agent: str, actor: Actor | None) -> None:
    """Require that the subject token's `may_act` claim, if it has one, allows this agent (RFC 8693, 4.4)."""
    if "may_act" not in claims:
        return
    actor_claim = claims["may_act"]
    is_allowed = isinstance(actor_claim, dict) and actor_claim.get("sub") == agent
    if is_allowed and "iss" in actor_claim:
        is_allowed = actor is not None and actor_claim["iss"] == actor.issuer
    if not is_allowed:
        raise ExchangeRefused(
            "the subject token's may_act claim allows only another agent", details={"rule": AGENT_RULE}
        )


def _require_valid_ranges(request: DelegationRequest) -> None:
    for each in request.tools or ():
        try:
            parse_range(each.versions)
        except InvalidVersionRange as error:
            raise ExchangeRefused(f"{each.tool}: {error}", details={"rule": TOOLS_RULE, "tool": each.tool}) from None


def make_token_minter(signing_keys: SigningKeys | None, clock: Clock) -> MintToken | None:
    """Return a function that mints tokens for upstream services from a call's authority; None without signing keys."""
    if signing_keys is None:
        return None

    async def mint(authorized: Authorized, call_id: str, seconds: float, scopes: tuple[str, ...]) -> Secret:
        caller, contract = authorized.validated.call.caller, authorized.validated.tool.contract
        key = signing_keys.get_ready_key(caller.tenant) or await signing_keys.load_current_key(caller.tenant)
        now = clock.epoch_ms() / 1000
        token = minted_tokens.mint_call_token(
            key, caller, contract, call_id=call_id, seconds=seconds, now=now, scopes=scopes
        )
        return Secret(token, name="delegated")

    return mint
