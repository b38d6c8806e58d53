"""Authenticate operator clients by signed assertions (`private_key_jwt`, RFC 7523), and build their tokens' claims.

An assertion is for one tenant, because its audience is that tenant's issuer, and for one use:
`operations/admin/operator_tokens.py` commits its id before it releases a token.
"""

import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from deputize.core.clock import Clock
from deputize.core.errors import (
    ExchangeRefused,
    TokenAudienceMismatch,
    TokenIssuerUntrusted,
    TokenMalformed,
    TokenSignatureInvalid,
)
from deputize.core.settings import IdentitySettings, IssuerSettings, OperatorClientSettings
from deputize.govern.identity.claims import (
    MAX_TOKEN_ID_LENGTH,
    OPERATOR_CLIENT_CLAIM,
    Claims,
    is_text,
    parse_lifetime,
)
from deputize.govern.identity.jwks import IssuerKeys
from deputize.govern.identity.jws import UnverifiedToken, parse_unverified, verify_claims
from deputize.govern.identity.oidc_discovery import Fetch
from deputize.govern.identity.signing_keys import SigningKeys

# A client signs its assertion just before it asks; a longer lifetime would make it a standing credential.
MAX_ASSERTION_SECONDS = 300
# Claims of an assertion that would say that it speaks for another, or only together with a key.
_FORBIDDEN_CLAIMS = ("act", "may_act", "cnf")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientAssertion:
    """A verified assertion. `id` is the same for every use of it, and for no other assertion."""

    client: OperatorClientSettings
    tenant: str
    id: str


class OperatorClients:
    """The operator clients of the settings, with their keys."""

    def __init__(self, settings: IdentitySettings, signing_keys: SigningKeys, clock: Clock, fetch: Fetch) -> None:
        self._settings = settings
        self._signing_keys = signing_keys
        self._clock = clock
        self._clients = {client.client_id: client for client in settings.operators}
        self._keys = {
            client.client_id: IssuerKeys(_build_key_source(client), clock, fetch) for client in settings.operators
        }

    async def verify_assertion(self, assertion: bytes, client_id: str | None) -> ClientAssertion:
        """Verify an assertion, or raise the exact reason for refusing it. `client_id` is what the request says."""
        unverified_token = parse_unverified(assertion)
        client = self._find_client(unverified_token, client_id)
        key = await self._keys[client.client_id].get_key(unverified_token.algorithm, unverified_token.key_id)
        claims = verify_claims(assertion, key, client.client_id)
        self._require_proper_claims(claims, client)
        tenant = self._parse_tenant(claims, client)
        token_id = claims.get("jti")
        if not isinstance(token_id, str) or not is_text(token_id, MAX_TOKEN_ID_LENGTH):
            raise TokenMalformed(
                "the assertion has no valid id, so it could be used twice", advice="Give each a new claim jti."
            )
        return ClientAssertion(client=client, tenant=tenant, id=_derive_id(tenant, client.client_id, token_id))

    def _find_client(self, unverified_token: UnverifiedToken, client_id: str | None) -> OperatorClientSettings:
        client = self._clients.get(unverified_token.issuer)
        if client is None or client_id not in (None, client.client_id):
            raise TokenIssuerUntrusted(
                "no operator client is registered under the assertion's iss, or client_id names another one",
                advice="Ask the operator of this gateway to list the client under [[identity.operators]].",
            )
        if unverified_token.algorithm not in client.algorithms:
            raise TokenSignatureInvalid(
                f"the assertion is not signed with an algorithm allowed for its client ({', '.join(client.algorithms)})"
            )
        if unverified_token.is_access_token:
            raise TokenMalformed("this is an access token, not an assertion of a client", advice="Sign an assertion.")
        return client

    def _require_proper_claims(self, claims: Claims, client: OperatorClientSettings) -> None:
        if claims.get("sub") != client.client_id:
            raise TokenMalformed("a client can sign only for itself: iss and sub must both be its client_id")
        forbidden_claim = next((name for name in _FORBIDDEN_CLAIMS if name in claims), None)
        if forbidden_claim is not None:
            raise TokenMalformed(f"the assertion contains the claim {forbidden_claim}", advice="Leave it out.")
        now, leeway = self._clock.epoch_ms() / 1000, self._settings.leeway_seconds
        expires_at, _ = parse_lifetime(claims, now, leeway)
        if expires_at > now + MAX_ASSERTION_SECONDS + leeway:
            raise TokenMalformed(
                f"the assertion lasts longer than {MAX_ASSERTION_SECONDS} seconds",
                advice="Sign a new one for each request, with exp at most five minutes ahead.",
            )

    def _parse_tenant(self, claims: Claims, client: OperatorClientSettings) -> str:
        audience = claims.get("aud")
        if isinstance(audience, list) and len(audience) == 1:
            (audience,) = audience
        tenant = self._signing_keys.parse_tenant(audience) if isinstance(audience, str) else None
        if tenant is None:
            raise TokenAudienceMismatch(
                "the assertion's audience is not the issuer of a tenant of this gateway, and nothing else",
                advice=f"Set aud to {self._signing_keys.build_issuer_name('TENANT')}, with the name of the tenant.",
            )
        if tenant not in client.tenants:
            raise TokenIssuerUntrusted(
                "the operator client is not registered for this tenant",
                advice="Ask the operator of this gateway to add it to the client's tenants.",
            )
        return tenant


def choose_scopes(client: OperatorClientSettings, requested_scopes: frozenset[str] | None, rule: str) -> frozenset[str]:
    """Return the scopes of the client's token: all that it may have, or those that the request names."""
    extra_scopes = sorted((requested_scopes or frozenset()) - frozenset(client.scopes))
    if extra_scopes:
        raise ExchangeRefused(
            f"the operator client may not have the scopes {', '.join(extra_scopes)}",
            details={"rule": rule, "missing_scopes": extra_scopes},
            nothing_happened=True,
        )
    return frozenset(client.scopes) if requested_scopes is None else requested_scopes


def build_token_claims(
    assertion: ClientAssertion, scopes: frozenset[str], *, audience: str, now: int, seconds: int
) -> dict[str, Any]:
    """Build the claims of a client's token, without the issuer; `claims.build_operator_client` parses them."""
    client_id = assertion.client.client_id
    return {
        "aud": audience,
        "sub": client_id,
        "client_id": client_id,
        OPERATOR_CLIENT_CLAIM: client_id,
        "jti": assertion.id,
        "iat": now,
        "exp": now + seconds,
        "scope": " ".join(sorted(scopes)),
    }


def _build_key_source(client: OperatorClientSettings) -> IssuerSettings:
    return IssuerSettings(
        issuer=client.client_id,
        audience=client.client_id,
        jwks_url=client.jwks_url,
        jwks_file=client.jwks_file,
        algorithms=client.algorithms,
    )


def _derive_id(tenant: str, client_id: str, token_id: str) -> str:
    digest = hashlib.sha256("\0".join((tenant, client_id, token_id)).encode()).digest()
    # Python 3.11 knows no version 8; 5 is the other one for ids that are derived from names.
    return str(UUID(bytes=digest[:16], version=5))
