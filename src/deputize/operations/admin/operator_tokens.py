"""Issue short-lived tokens to operator clients, which authenticate with `private_key_jwt` (RFC 7523).

The use of an assertion is committed and recorded before its token is returned, so each gives one token at most, also if
the process ends in between.
"""

from dataclasses import dataclass, field

from deputize.acts.act import commit_act
from deputize.core.delegation import EXCHANGE_SCOPES_RULE
from deputize.core.errors import ExchangeRefused, NoSuchRoute, PermissionProblem
from deputize.govern.identity import grants
from deputize.govern.identity.client_assertions import (
    ClientAssertion,
    OperatorClients,
    build_token_claims,
    choose_scopes,
)
from deputize.govern.identity.signing_keys import SigningKeys
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection

ASSERTION_USED_RULE = "assertion-used"
_MAX_TOKEN_SECONDS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorToken:
    """A token for an operator client, whose assertion is used up."""

    token: str = field(repr=False)
    scopes: frozenset[str]
    seconds: int


class OperatorTokens:
    """Tokens for operator clients. Without `signing_keys` and `clients`, none is issued."""

    def __init__(
        self,
        runtime: Runtime,
        tokens: TokenVerifier,
        signing_keys: SigningKeys | None,
        clients: OperatorClients | None,
    ) -> None:
        self._runtime = runtime
        self._tokens = tokens
        self._signing_keys = signing_keys
        self._clients = clients

    async def issue_token(
        self, assertion: bytes, *, client_id: str | None, scopes: frozenset[str] | None, address: str = ""
    ) -> OperatorToken:
        """Issue a token for a client's assertion; failures are counted by the client's network address."""
        if self._signing_keys is None or self._clients is None:
            raise NoSuchRoute("tokens for clients are not available: identity.public_url is not set")
        runtime = self._runtime
        try:
            verified_assertion = await self._clients.verify_assertion(assertion, client_id)
        except PermissionProblem as problem:
            runtime.request_limits.count_failure(address, problem)
            raise
        token_scopes = choose_scopes(verified_assertion.client, scopes, EXCHANGE_SCOPES_RULE)
        now = runtime.clock.epoch_ms() // 1000
        seconds = min(_MAX_TOKEN_SECONDS, runtime.settings.identity.operator_fresh_seconds)
        key = await self._signing_keys.load_current_key(verified_assertion.tenant)
        claims = build_token_claims(verified_assertion, token_scopes, audience=key.audience, now=now, seconds=seconds)
        token = key.sign(claims)
        # The caller as every gateway will see it.
        caller = (await self._tokens.verify_token(token.encode())).caller
        runtime.request_slots.take_slot(caller)
        await runtime.request_limits.count_exchange(caller)

        async def use_assertion(connection: Connection) -> None:
            await _use_assertion(connection, verified_assertion, caller.user, token_scopes, now + seconds)

        try:
            await commit_act(runtime, caller, "operator-token", verified_assertion.id, use_assertion, ())
        except ExchangeRefused as problem:
            runtime.request_limits.count_failure(address, problem)
            raise
        return OperatorToken(token=token, scopes=token_scopes, seconds=seconds)


async def _use_assertion(
    connection: Connection, assertion: ClientAssertion, user: str, scopes: frozenset[str], expires_at: int
) -> None:
    is_new = await grants.add_operator_token(
        connection, assertion.tenant, assertion.id, user=user, scopes=scopes, expires_at=expires_at
    )
    if not is_new:
        raise ExchangeRefused(
            "this assertion was used before",
            details={"rule": ASSERTION_USED_RULE},
            advice="Sign a new assertion, with a new jti, for each request.",
            nothing_happened=True,
        )
