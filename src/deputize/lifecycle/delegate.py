"""Lending authority: a user's token becomes an agent's, an agent's another's, and each time it shrinks (RFC 8693).

Nobody has to be an administrator: the authority is the token in hand. The grant is durable, and recorded, before its
token leaves; a caller who is revoked by then lends nothing. Above: `doors/rest/oauth.py` and `grants.py`. Below:
`govern/identity`, and the barrier.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from deputize.catalog.versions import NotARange, in_range, parse_range
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.definition import Secret
from deputize.core.errors import ExchangeRefused, GrantNotFound, NoSuchRoute
from deputize.govern.identity import credentials, grants, revocations
from deputize.govern.identity.exchange import AGENT, TOOLS, Asked, Delegation, claims_of, shrunk
from deputize.govern.identity.signing import SigningKeys
from deputize.govern.identity.tokens import MAX_TOKEN_BYTES, Actor, TokenVerifier
from deputize.lifecycle.barrier import add, change
from deputize.lifecycle.credentials import Mint
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.rooms import Rooms
from deputize.store.pool import Connection


@dataclass(frozen=True, kw_only=True, slots=True)
class Issued:
    """A token of a delegation that is durable."""

    token: str = field(repr=False)
    grant: Delegation

    @property
    def seconds(self) -> int:
        return self.grant.not_after - self.grant.issued_at


class Delegations:
    """`signing` is None where the settings name no address to issue tokens under; then nothing is lent."""

    def __init__(self, rooms: Rooms, tokens: TokenVerifier, signing: SigningKeys | None) -> None:
        self._rooms = rooms
        self._tokens = tokens
        self._signing = signing

    async def exchange(self, subject_token: bytes, actor_token: bytes | None, asked: Asked) -> Issued:
        """A token for the agent behind `actor_token`, or for the one the holder of the subject token names."""
        if self._signing is None:
            raise NoSuchRoute("this gateway exchanges no tokens")
        rooms = self._rooms
        subject = await self._tokens.examine(subject_token)
        caller = subject.caller
        actor = await self._tokens.actor(actor_token, caller.tenant) if actor_token is not None else None
        asked = _named(asked, actor)
        _require_may_act(subject.claims, asked.agent, actor)
        _require_readable(asked)
        key = self._signing.ready(caller.tenant) or await self._signing.current(caller.tenant)
        made = shrunk(
            caller,
            asked,
            id=rooms.clock.new_id(),
            now=rooms.clock.epoch_ms() // 1000,
            longest=rooms.settings.identity.max_grant_seconds,
            in_range=in_range,
        )
        claims = claims_of(made, caller, audience=key.audience)
        # Who alone may act is told by what is lent too, or the one who may would let in everybody else.
        token = key.sign({**claims, **{name: subject.claims[name] for name in ("may_act",) if name in subject.claims}})
        if len(token) > MAX_TOKEN_BYTES:
            raise ExchangeRefused(
                f"the token would be longer than {MAX_TOKEN_BYTES} bytes",
                advice="Name fewer tools, or a user of fewer groups.",
                nothing_happened=True,
            )

        async def act(connection: Connection) -> None:
            await grants.add(connection, made)

        receiver = replace(caller, agents=made.agents, grants=made.grants)
        proven = (actor.caller,) if actor is not None and actor.caller is not None else ()
        await add(rooms, caller, "delegate", made.id, act, (receiver, *proven))
        return Issued(token=token, grant=made)

    async def page(self, caller: Caller, *, before: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        """What the caller lent, or for an administrator everybody did, newest first."""
        await self._require_free(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            whose = grants.Whose.of(caller)
            return await grants.listed(connection, caller.tenant, whose, before=before, limit=limit)

    async def show(self, caller: Caller, grant_id: str) -> dict[str, Any]:
        await self._require_free(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            return await _found(connection, caller, grant_id)

    async def revoke(self, caller: Caller, grant_id: str, *, reason: str = "") -> int:
        """Takes a delegation back, with everything made from it. Whoever lent it may, and administrators."""

        async def act(connection: Connection) -> int:
            found = await _found(connection, caller, grant_id)
            return await revocations.revoke(
                connection, caller.tenant, "grant", found["grant_id"], reason=reason, by=caller.user
            )

        return await change(self._rooms, caller, "revoke:grant", grant_id, act)

    async def _require_free(self, caller: Caller) -> None:
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)


async def _found(connection: Connection, caller: Caller, grant_id: str) -> dict[str, Any]:
    """Somebody else's answers like nobody's."""
    try:
        named = str(UUID(grant_id))
    except ValueError:
        named = None
    found = None if named is None else await grants.shown(connection, caller.tenant, grants.Whose.of(caller), named)
    if found is None:
        raise GrantNotFound("there is no delegation with this id")
    return found


def _named(asked: Asked, actor: Actor | None) -> Asked:
    if actor is None:
        return asked
    if asked.agent not in ("", actor.name):
        raise ExchangeRefused("the actor token is another agent's than the one named", details={"rule": AGENT})
    return replace(asked, agent=actor.name, proven=True)


def _require_may_act(claims: Mapping[str, Any], agent: str, actor: Actor | None) -> None:
    """RFC 8693, 4.4: a token may say who alone may act for its subject."""
    if "may_act" not in claims:
        return
    named = claims["may_act"]
    allowed = isinstance(named, dict) and named.get("sub") == agent
    if allowed and "iss" in named:
        allowed = actor is not None and named["iss"] == actor.issuer
    if not allowed:
        raise ExchangeRefused("the token in hand names another agent that may act for it", details={"rule": AGENT})


def _require_readable(asked: Asked) -> None:
    for each in asked.tools or ():
        try:
            parse_range(each.versions)
        except NotARange as error:
            raise ExchangeRefused(f"{each.tool}: {error}", details={"rule": TOOLS, "tool": each.tool}) from None


def minting(signing: SigningKeys | None, clock: Clock) -> Mint | None:
    """Tokens for what tools call, made from the authority of one call; none where this gateway signs nothing."""
    if signing is None:
        return None

    async def mint(authorized: Authorized, call_id: str, seconds: float, scopes: tuple[str, ...]) -> Secret:
        caller, contract = authorized.validated.received.caller, authorized.validated.tool.contract
        key = signing.ready(caller.tenant) or await signing.current(caller.tenant)
        now = clock.epoch_ms() / 1000
        token = credentials.mint(key, caller, contract, call_id=call_id, seconds=seconds, now=now, scopes=scopes)
        return Secret(token, name="delegated")

    return mint
