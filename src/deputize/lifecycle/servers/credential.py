"""What a server is asked with what it offers: the tenant's secret, or a token of the gateway itself; closed after it.

Calls carry their own (`lifecycle/credentials.py`). A look is nobody's call: where calls carry tokens minted for their
callers, a look carries one minted for the operator, with no scope at all; where they carry people's own, that of
whoever linked last.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deputize.core.caller import Caller
from deputize.core.definition import Secret
from deputize.core.errors import CredentialMissing, Revoked
from deputize.core.settings import McpServer
from deputize.govern.identity.credentials import mint_to_look
from deputize.lifecycle.operator import operator
from deputize.lifecycle.rooms import Rooms


@asynccontextmanager
async def credential_for(rooms: Rooms, tenant: str, server: McpServer) -> AsyncIterator[Secret | None]:
    if server.credential in ("link", "client"):
        revocations = (await rooms.authority.of(tenant)).revocations

        def may(user: str) -> bool:
            """Whose authority was taken back here acts nowhere in our name either."""
            try:
                revocations.check(Caller(tenant=tenant, user=user))
            except Revoked:
                return False
            return True

        async with rooms.signed_in.looking(tenant, server, may) as token:
            yield token
        return
    secret = await _fetched(rooms, tenant, server)
    try:
        yield secret
    finally:
        if secret is not None:
            secret.close()


async def _fetched(rooms: Rooms, tenant: str, server: McpServer) -> Secret | None:
    if server.credential == "none":
        return None
    if server.credential == "vault":
        assert server.secret is not None
        return await rooms.credentials.vault.fetch(tenant, server.secret, seconds=server.start_seconds)
    if rooms.signing is None:
        raise CredentialMissing(
            "this gateway mints no tokens, and the server is asked with nothing else",
            advice="Whoever runs this gateway must set identity.public_url.",
        )
    key = rooms.signing.ready(tenant) or await rooms.signing.current(tenant)
    now = rooms.clock.epoch_ms() / 1000
    token = mint_to_look(
        key, operator(tenant), server.audience, id=rooms.clock.new_id(), seconds=server.start_seconds, now=now
    )
    return Secret(token, name="delegated")
