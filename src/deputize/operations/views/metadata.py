"""Publish what a client may know before it has a token: trusted issuers, and the keys this gateway signs with.

A tenant that never signed anything and one that does not exist get the same answer.
"""

from collections.abc import Iterable
from typing import Any

from deputize.core.caller import ADMIN_SCOPE
from deputize.core.delegation import TOKEN_EXCHANGE_GRANT_TYPE
from deputize.core.errors import NoSuchRoute
from deputize.core.settings import Settings
from deputize.core.settings.urls import TOKEN_PATH
from deputize.execute.upstreams.oauth.client_registration import build_client_metadata
from deputize.execute.upstreams.oauth.flow import OAuthFlow
from deputize.govern.identity.claims import is_tenant_name
from deputize.govern.identity.oidc_discovery import is_discoverable
from deputize.govern.identity.signing_keys import SigningKeys

# Every tenant has it alike: which tenants operator clients may act in is not public.
_OPERATOR_CLIENT_METADATA = {
    "grant_types_supported": [TOKEN_EXCHANGE_GRANT_TYPE, "client_credentials"],
    "token_endpoint_auth_methods_supported": ["none", "private_key_jwt"],
    "token_endpoint_auth_signing_alg_values_supported": ["RS256", "ES256", "EdDSA"],
}


class GatewayMetadata:
    """The gateway's public metadata; `scopes` are those of the operator's tools, without the administrator's scope."""

    def __init__(
        self, settings: Settings, signing_keys: SigningKeys | None, scopes: Iterable[str], oauth_flow: OAuthFlow
    ) -> None:
        self._settings = settings
        self._signing_keys = signing_keys
        self._oauth_flow = oauth_flow
        self._scopes = sorted(set(scopes) - {ADMIN_SCOPE})

    def describe_resource(self, path: str = "") -> dict[str, Any]:
        """Describe the protected resource (RFC 9728): the gateway or one of its interfaces, without empty fields."""
        optional = {
            "authorization_servers": [
                each.issuer for each in self._settings.identity.issuers if is_discoverable(each.issuer)
            ],
            "scopes_supported": self._scopes,
            "deputize_login": [
                {
                    "issuer": each.issuer,
                    "client_id": each.login_client_id,
                    "audience": each.audience,
                    **({"console_audience": each.console_audience} if each.human and each.console_audience else {}),
                }
                for each in self._settings.identity.issuers
                if each.login_client_id is not None
            ],
        }
        return {
            "resource": self._require_keys().public_url + path,
            "resource_name": "Deputize",
            "bearer_methods_supported": ["header"],
            **{name: value for name, value in optional.items() if value},
        }

    def describe_client(self) -> dict[str, Any]:
        """Describe this gateway as an OAuth client of MCP servers; the document's URL is its client id."""
        url = self._oauth_flow.client_metadata_url
        if url is None:
            raise NoSuchRoute("this gateway publishes no client metadata")
        return build_client_metadata(url, self._oauth_flow.redirect_uri)

    def describe_authorization_server(self, tenant: str) -> dict[str, Any]:
        """Describe the issuer of a tenant's delegated tokens (RFC 8414)."""
        signing_keys = self._get_tenant_keys(tenant)
        return {
            "issuer": signing_keys.build_issuer_name(tenant),
            "token_endpoint": signing_keys.public_url + TOKEN_PATH,
            "jwks_uri": f"{signing_keys.build_issuer_name(tenant)}/jwks.json",
            "grant_types_supported": [TOKEN_EXCHANGE_GRANT_TYPE],
            "response_types_supported": [],
            "token_endpoint_auth_methods_supported": ["none"],
            **(_OPERATOR_CLIENT_METADATA if self._settings.identity.operators else {}),
        }

    async def get_jwks(self, tenant: str) -> dict[str, Any]:
        return await self._get_tenant_keys(tenant).load_jwks(tenant)

    def _get_tenant_keys(self, tenant: str) -> SigningKeys:
        if not is_tenant_name(tenant):
            raise NoSuchRoute("no such route")
        return self._require_keys()

    def _require_keys(self) -> SigningKeys:
        if self._signing_keys is None:
            raise NoSuchRoute("this gateway signs no tokens")
        return self._signing_keys
