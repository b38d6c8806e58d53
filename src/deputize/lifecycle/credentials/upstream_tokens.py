"""Choose the token for a call or a probe at a server that needs a sign-in, and handle its rejection.

`broker.py` uses this for calls, `operations/servers/probe_credential.py` for probes. The tokens come from
`linked_accounts.py` or, for the gateway's own account, from `client_credentials.py`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from deputize.core.contract.tools import Secret
from deputize.core.errors import CredentialExpired, CredentialMissing
from deputize.core.mcp.servers import parse_mcp_target
from deputize.core.settings import LinkedServer, McpServerSettings, ServiceSettings
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.lifecycle.credentials.client_credentials import ClientCredentialTokens
from deputize.lifecycle.credentials.linked_accounts import LinkedAccounts
from deputize.lifecycle.phases import Authorized


class UpstreamTokens:
    def __init__(
        self, upstreams: UpstreamPool, linked_accounts: LinkedAccounts, client_credentials: ClientCredentialTokens
    ) -> None:
        self._upstreams = upstreams
        self._linked_accounts = linked_accounts
        self._client_credentials = client_credentials

    async def get_token(self, authorized: Authorized, seconds: float) -> Secret:
        """Get the token by the server's current settings: an old contract must not send a token elsewhere."""
        tenant, user, server = self._resolve_server(authorized)
        if isinstance(server, ServiceSettings) or server.credential == "link":
            return await self._linked_accounts.get_token(tenant, server, user, seconds)
        return await self._client_credentials.get_token(tenant, server, seconds)

    async def handle_rejection(self, authorized: Authorized, token: str, error: CredentialExpired) -> None:
        tenant, user, server = self._resolve_server(authorized)
        await self._dispatch_rejection(tenant, server, user, token, error)

    @asynccontextmanager
    async def open_probe_token(
        self, tenant: str, server: McpServerSettings, can_act: Callable[[str], bool]
    ) -> AsyncIterator[Secret]:
        """Open the token for a probe: that of the newest working link, or the gateway's own."""
        user, seconds = "", server.start_seconds
        if server.credential == "link":
            user, secret = await self._linked_accounts.get_probe_token(tenant, server, seconds, can_act)
        else:
            secret = await self._client_credentials.get_token(tenant, server, seconds)
        try:
            yield secret
        except CredentialExpired as error:
            await self._dispatch_rejection(tenant, server, user, secret.reveal(), error)
            raise
        finally:
            secret.close()

    async def _dispatch_rejection(
        self, tenant: str, server: LinkedServer, user: str, token: str, error: CredentialExpired
    ) -> None:  # fmt: skip
        if isinstance(server, ServiceSettings) or server.credential == "link":
            await self._linked_accounts.handle_rejection(tenant, server, user, token, error)
        else:
            self._client_credentials.handle_rejection(tenant, server, token, error)

    def _resolve_server(self, authorized: Authorized) -> tuple[str, str, LinkedServer]:
        """Return the user the call is for, never the acting agent, and the server or service of the tool."""
        caller, contract = authorized.call.caller, authorized.contract
        if contract.handler.driver == "http":
            name = contract.handler.target.partition("/")[0]
            return caller.tenant, caller.user, self._linked_accounts.get_server(caller.tenant, name)
        server = self._upstreams.get_settings(caller.tenant, parse_mcp_target(contract.handler.target).server)
        if server.credential != contract.auth.credential:
            raise CredentialMissing(
                f"the credential of {server.name} in the settings changed after its tools were registered",
                advice="Ask an administrator to probe the server again: deputize servers test.",
            )
        return caller.tenant, caller.user, server
