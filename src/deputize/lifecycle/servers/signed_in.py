"""Which token a call or a look carries at a server that wants a sign-in, and what is done where it is not taken.

Above: `lifecycle/credentials.py` for calls, `credential.py` for looks. Below: `links.py`, people's own, and
`own_tokens.py`, this gateway's.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from deputize.core.definition import Secret
from deputize.core.errors import CredentialExpired, CredentialMissing
from deputize.core.servers import address
from deputize.core.settings import McpServer
from deputize.execute.upstreams.servers import Upstreams
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.servers.links import Links
from deputize.lifecycle.servers.own_tokens import OwnTokens


class SignedIn:
    def __init__(self, upstreams: Upstreams, links: Links, own: OwnTokens) -> None:
        self._upstreams = upstreams
        self._links = links
        self._own = own

    async def token(self, authorized: Authorized, seconds: float) -> Secret:
        """By what the settings say of the server now: a contract of before must not carry a token elsewhere."""
        tenant, user, server = self._of(authorized)
        if server.credential == "link":
            return await self._links.token(tenant, server, user, seconds)
        return await self._own.token(tenant, server, seconds)

    async def turned_away(self, authorized: Authorized, token: str, refused: CredentialExpired) -> None:
        tenant, user, server = self._of(authorized)
        await self._refused(tenant, server, user, token, refused)

    @asynccontextmanager
    async def looking(self, tenant: str, server: McpServer, may: Callable[[str], bool]) -> AsyncIterator[Secret]:
        """For a look, which is nobody's call: the newest link that works, or the gateway's own token."""
        user, seconds = "", server.start_seconds
        if server.credential == "link":
            user, secret = await self._links.anybodys(tenant, server, seconds, may)
        else:
            secret = await self._own.token(tenant, server, seconds)
        try:
            yield secret
        except CredentialExpired as refused:
            await self._refused(tenant, server, user, secret.reveal(), refused)
            raise
        finally:
            secret.close()

    async def _refused(
        self, tenant: str, server: McpServer, user: str, token: str, refused: CredentialExpired
    ) -> None:  # fmt: skip
        if server.credential == "link":
            await self._links.turned_away(tenant, server, user, token, refused)
        else:
            self._own.turned_away(tenant, server, token, refused)

    def _of(self, authorized: Authorized) -> tuple[str, str, McpServer]:
        """The person behind the call, never who acts for them, and the server that the tool is of."""
        caller, contract = authorized.validated.received.caller, authorized.validated.tool.contract
        server = self._upstreams.settings_of(caller.tenant, address(contract.handler.target).server)
        if server.credential != contract.auth.credential:
            raise CredentialMissing(
                f"the settings say otherwise of {server.name} than when its tools were registered",
                advice="Have an administrator look at the server again: deputize servers test.",
            )
        return caller.tenant, caller.user, server
