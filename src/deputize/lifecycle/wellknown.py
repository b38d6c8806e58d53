"""What anybody may know of this gateway before showing a token: whose tokens it takes, and the keys it signs with.

A tenant that never signed anything, and one that does not exist, are answered alike.
"""

from collections.abc import Iterable
from typing import Any

from deputize.core.caller import ADMIN_SCOPE
from deputize.core.errors import NoSuchRoute
from deputize.core.settings import Settings
from deputize.execute.upstreams.signing_in.clients import document
from deputize.execute.upstreams.signing_in.flow import SigningIn
from deputize.govern.identity.claims import is_tenant
from deputize.govern.identity.discovery import can_be_discovered
from deputize.govern.identity.signing import SigningKeys

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
TOKEN_PATH = "/oauth/token"
RESOURCE_PATH = "/.well-known/oauth-protected-resource"
MCP_PATH = "/mcp"


class WellKnown:
    """`scopes` are those of the operator's own tools; a stranger's client is not told to ask for administering."""

    def __init__(
        self, settings: Settings, signing: SigningKeys | None, scopes: Iterable[str], signing_in: SigningIn
    ) -> None:
        self._settings = settings
        self._signing = signing
        self._signing_in = signing_in
        self._scopes = sorted(set(scopes) - {ADMIN_SCOPE})

    def resource(self, path: str = "") -> dict[str, Any]:
        """RFC 9728, of the gateway or of one of its doors. What is empty is left out, as it asks."""
        optional = {
            "authorization_servers": [
                each.issuer for each in self._settings.identity.issuers if can_be_discovered(each.issuer)
            ],
            "scopes_supported": self._scopes,
        }
        return {
            "resource": self._keys().public_url + path,
            "resource_name": "Deputize",
            "bearer_methods_supported": ["header"],
            **{name: value for name, value in optional.items() if value},
        }

    def client(self) -> dict[str, Any]:
        """Who this gateway is where it signs in to MCP servers: its address is its name there."""
        url = self._signing_in.document
        if url is None:
            raise NoSuchRoute("there is nothing here")
        return document(url, self._signing_in.back_to)

    def authorization_server(self, tenant: str) -> dict[str, Any]:
        """RFC 8414, of the issuer under which this gateway lends a tenant's authority."""
        signing = self._of(tenant)
        return {
            "issuer": signing.issuer_of(tenant),
            "token_endpoint": signing.public_url + TOKEN_PATH,
            "jwks_uri": f"{signing.issuer_of(tenant)}/jwks.json",
            "grant_types_supported": [TOKEN_EXCHANGE],
            "response_types_supported": [],
            "token_endpoint_auth_methods_supported": ["none"],
        }

    async def jwks(self, tenant: str) -> dict[str, Any]:
        return await self._of(tenant).jwks(tenant)

    def _of(self, tenant: str) -> SigningKeys:
        if not is_tenant(tenant):
            raise NoSuchRoute("there is nothing here")
        return self._keys()

    def _keys(self) -> SigningKeys:
        if self._signing is None:
            raise NoSuchRoute("there is nothing here")
        return self._signing
