"""Run OAuth 2.1 flows: the authorization code flow for a person, client credentials for the gateway.

As MCP requires (2025-11-25, 2026-07-28): PKCE with S256, the resource in every request (RFC 8707), the `iss` parameter
of the response checked (RFC 9207), and the scopes that the server challenges for. A pending authorization has all that
is needed to complete it, so that the code is sent only to the issuer that the person was sent to.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from deputize.core.clock import Clock
from deputize.core.errors import UpstreamSignInFailed
from deputize.execute.upstreams.oauth import client_registration, metadata, tokens
from deputize.execute.upstreams.oauth.client_registration import OAuthClient
from deputize.execute.upstreams.oauth.metadata import OFFLINE_ACCESS, AuthorizationServer
from deputize.execute.upstreams.oauth.oauth_requests import HttpRequester
from deputize.execute.upstreams.oauth.tokens import TokenEndpoint, Tokens
from deputize.execute.upstreams.oauth.www_authenticate import Challenge, merge_scopes

_MAX_CODE_LENGTH: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingAuthorization:
    """An authorization that waits for the person to return: what to check, and where to exchange the code."""

    state: str
    verifier: str = field(repr=False)
    issuer: str
    requires_iss: bool
    endpoint: TokenEndpoint
    # The requested scopes; if the server requires more later, these are requested again with them.
    scopes: tuple[str, ...]


class OAuthFlow:
    """OAuth flows with one redirect URI; `client_metadata_url` is where the gateway serves its client metadata."""

    def __init__(
        self, http: HttpRequester, clock: Clock, *, redirect_uri: str, client_metadata_url: str | None
    ) -> None:
        self._http = http
        self._clock = clock
        self.redirect_uri = redirect_uri
        self.client_metadata_url = client_metadata_url

    async def discover_auth_server(
        self, server_url: str, challenge: Challenge, *, issuer: str | None = None
    ) -> AuthorizationServer:
        """Discover the authorization server of an MCP server."""
        return await metadata.discover_auth_server(self._http, server_url, challenge, issuer=issuer)

    async def resolve_client(
        self,
        auth_server: AuthorizationServer,
        *,
        client_id: str | None,
        secret: str | None,
        registration: OAuthClient | None,
    ) -> OAuthClient:
        """Resolve this gateway's client at an authorization server.

        `registration` is an earlier dynamic registration; it is reused only at the same issuer.
        """
        if client_id is not None:
            return client_registration.build_configured_client(auth_server, client_id, secret)
        if auth_server.supports_client_metadata and self.client_metadata_url is not None:
            return client_registration.build_metadata_client(auth_server, self.client_metadata_url)
        now = self._clock.epoch_ms() // 1000
        if (
            registration is not None
            and registration.issuer == auth_server.issuer
            and (registration.secret_expires_at == 0 or registration.secret_expires_at > now + 60)
        ):
            return registration
        if auth_server.registration_endpoint is not None:
            return await client_registration.register_client(self._http, auth_server, self.redirect_uri)
        raise UpstreamSignInFailed(
            "the server's authorization server does not support dynamic client registration",
            details={"issuer": auth_server.issuer},
            advice="The operator must register this gateway there and set issuer and client_id under [[servers]] or "
            "[[services]].",
        )

    def start_authorization(
        self, auth_server: AuthorizationServer, client: OAuthClient, scopes: tuple[str, ...]
    ) -> tuple[str, PendingAuthorization]:
        """Build the URL to send the person to, and the pending authorization to keep."""
        if auth_server.authorization_endpoint is None:
            raise UpstreamSignInFailed("the server's authorization server has no authorization endpoint")
        if not auth_server.supports_s256:
            raise UpstreamSignInFailed("the server's authorization server does not declare PKCE with S256")
        pending = PendingAuthorization(
            state=self._make_nonce(),
            verifier=self._make_nonce(),
            issuer=auth_server.issuer,
            requires_iss=auth_server.supports_iss_parameter,
            endpoint=TokenEndpoint(url=auth_server.token_endpoint, resource=auth_server.resource, client=client),
            scopes=scopes,
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": self.redirect_uri,
            "state": pending.state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": auth_server.resource,
        }
        query |= {"scope": " ".join(scopes)} if scopes else {}
        # OpenID Connect issues no refresh token without the person's consent.
        query |= {"prompt": "consent"} if OFFLINE_ACCESS in scopes else {}
        separator = "&" if "?" in auth_server.authorization_endpoint else "?"
        return f"{auth_server.authorization_endpoint}{separator}{urlencode(query)}", pending

    async def complete_authorization(self, pending: PendingAuthorization, answer: Mapping[str, str]) -> Tokens:
        """Check the authorization response, and exchange its code for tokens."""
        if not hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise UpstreamSignInFailed("the state does not match the sign-in that was started; start again")
        issuer = answer.get("iss")
        if issuer != pending.issuer and (issuer is not None or pending.requires_iss):
            raise UpstreamSignInFailed("the response came from another authorization server than you were sent to")
        code = answer.get("code", "")
        if not code or len(code) > _MAX_CODE_LENGTH:
            raise UpstreamSignInFailed(
                f"the server's authorization server did not grant access ({_clean_error_code(answer.get('error', ''))})"
            )
        return await tokens.exchange_code(
            self._http,
            self._clock,
            pending.endpoint,
            code=code,
            verifier=pending.verifier,
            redirect_uri=self.redirect_uri,
        )

    async def refresh_tokens(self, endpoint: TokenEndpoint, refresh: str) -> Tokens:
        """Refresh tokens at the endpoint that issued them."""
        return await tokens.refresh_tokens(self._http, self._clock, endpoint, refresh=refresh)

    async def revoke_tokens(self, client: OAuthClient, *, access: str, refresh: str | None) -> bool:
        """Revoke tokens at the issuer of their client; False if it does not offer that.

        The refresh token comes first: with it, servers also revoke what was issued from it.
        """
        url = await metadata.discover_revocation_endpoint(self._http, client.issuer)
        if url is None:
            return False
        if refresh is not None:
            await tokens.revoke_token(self._http, self._clock, client, url, token=refresh, hint="refresh_token")
        await tokens.revoke_token(self._http, self._clock, client, url, token=access, hint="access_token")
        return True

    async def request_client_token(
        self, auth_server: AuthorizationServer, client: OAuthClient, scopes: tuple[str, ...]
    ) -> Tokens:
        """Request a token for the gateway itself with client credentials."""
        endpoint = TokenEndpoint(url=auth_server.token_endpoint, resource=auth_server.resource, client=client)
        return await tokens.request_client_token(self._http, self._clock, endpoint, scopes=scopes)

    def _make_nonce(self) -> str:
        return base64.urlsafe_b64encode(self._clock.random_bytes(32)).rstrip(b"=").decode()


def select_scopes(
    auth_server: AuthorizationServer, challenge: Challenge, previous_scopes: tuple[str, ...], *, offline: bool
) -> tuple[str, ...]:
    """Select the scopes to request: those of the challenge and of earlier requests; else all supported; else none."""
    scopes = (
        merge_scopes(previous_scopes, challenge.scopes)
        if challenge.scopes or previous_scopes
        else (auth_server.scopes or ())
    )
    return (
        merge_scopes(scopes, (OFFLINE_ACCESS,))
        if offline and scopes and auth_server.supports_offline_access
        else scopes
    )


def is_scope_loop(challenge: Challenge, requested_scopes: tuple[str, ...]) -> bool:
    """Tell whether the server requires only scopes that were already requested, so that retrying would loop."""
    return challenge.is_scope_insufficient and set(challenge.scopes) <= set(requested_scopes)


def _clean_error_code(error: str) -> str:
    """Return the OAuth error code if it is one (RFC 6749); any other text in the URL may come from an attacker."""
    is_error_code = error.isascii() and error.replace("_", "").isalpha() and len(error) < 64
    return error if is_error_code else "no code was returned"
