"""People link their accounts at servers: sent to the server's authorization server, and back, once.

What was begun is bound to the person who began it and ended at most once: it is taken away before the code is shown to
anybody, so whoever is stopped in the middle leaves nothing behind but the need to begin again.

Above: `doors/console/`. Below: `links.py` keeps what comes of it, `execute/upstreams/signing_in/` asks.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from deputize.core.caller import Caller
from deputize.core.errors import Malformed, PermissionDenied, ServerNotFound, UpstreamSignInFailed
from deputize.core.settings import McpServer
from deputize.execute.upstreams.signing_in.challenge import challenge_of, together
from deputize.execute.upstreams.signing_in.clients import Client
from deputize.execute.upstreams.signing_in.flow import Begun, scopes_to_ask
from deputize.execute.upstreams.signing_in.places import Place
from deputize.lifecycle.barrier import add
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.servers.boxes import (
    Kept,
    open_begun,
    open_client,
    seal_begun,
    seal_client,
    seal_link,
    with_secret,
    without_secret,
)
from deputize.lifecycle.servers.connected import Connected
from deputize.lifecycle.servers.links import SQL, moment
from deputize.store.pool import Connection

# Long enough to find a phone and a key; what was begun earlier is begun again.
BEGUN_SECONDS: Final = 600
_KNOCK_SECONDS: Final = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """Where somebody who wants to link is sent."""

    server: str
    url: str
    host: str
    scopes: tuple[str, ...]


class Linking:
    def __init__(self, rooms: Rooms, connected: Connected) -> None:
        self._rooms = rooms
        self._connected = connected

    async def listed(self, caller: Caller) -> list[dict[str, Any]]:
        """The servers where this person's own account is needed, and how each stands."""
        _require_person(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = {row["server"]: row for row in await connection.fetch(SQL["links_of"], caller.tenant, caller.user)}
        named = sorted(self._rooms.upstreams.named(caller.tenant), key=lambda each: each.name)
        return [_shown(each, rows.get(each.name)) for each in named if each.credential == "link"]

    async def begin(self, caller: Caller, name: str) -> Way:
        """Nothing is linked yet: the person goes there, or does not."""
        _require_person(caller)
        server, links = self._server(caller.tenant, name), self._rooms.links
        assert server.url is not None
        challenge = challenge_of(await self._rooms.upstreams.knock(caller.tenant, name, _KNOCK_SECONDS))
        place = await links.signing_in.find(server.url, challenge, issuer=server.issuer)
        client = await self._client(caller.tenant, server, place)
        async with self._rooms.store.reading(caller.tenant) as connection:
            row = await connection.fetchrow(SQL["link"], caller.tenant, name, caller.user)
        before = () if row is None else together(tuple(row["asked"]), tuple(row["wanted"]))
        scopes = scopes_to_ask(place, challenge, before, offline=True)
        url, begun = links.signing_in.begin(place, client, scopes)
        await self._remember(caller, server, begun)
        return Way(server=name, url=url, host=urlsplit(url).netloc, scopes=scopes)

    async def finish(self, caller: Caller, answer: Mapping[str, str]) -> str:
        """The server that is linked now."""
        _require_person(caller)
        name, begun = await self._taken(caller, answer.get("state", ""))
        server, links = self._server(caller.tenant, name), self._rooms.links
        keys = await links.keys(caller.tenant)
        try:
            tokens = await links.signing_in.finish(await self._with_secret(caller.tenant, server, begun), answer)
        except UpstreamSignInFailed as refused:
            if refused.final and server.client_id is None:
                # Perhaps it does not know us any more: the next sign-in registers anew.
                await self._forget_client(caller.tenant, name, begun.issuer)
            raise
        kept = Kept(access=tokens.access, refresh=tokens.refresh, endpoint=begun.endpoint)
        sealed, ends = seal_link(keys, name, caller.user, kept), moment(tokens.expires_at)

        async def act(connection: Connection) -> None:
            await connection.execute(
                SQL["put_link"], caller.tenant, name, caller.user, sealed, list(begun.scopes), ends
            )  # fmt: skip

        await add(self._rooms, caller, "link_server", name, act, ())
        self._connected.look_soon(caller.tenant, name)
        return name

    async def unlink(self, caller: Caller, name: str) -> None:
        """From here on no call of this person reaches the server. What it gave out, it has to take back itself."""
        _require_person(caller)

        async def act(connection: Connection) -> None:
            await connection.execute(SQL["delete_sign_in"], caller.tenant, name, caller.user)
            if await connection.fetchval(SQL["delete_link"], caller.tenant, name, caller.user) is None:
                raise ServerNotFound(f"your account at {name[:64]} is not linked", details={"server": name[:64]})

        await add(self._rooms, caller, "unlink_server", name, act, ())

    def _server(self, tenant: str, name: str) -> McpServer:
        server = self._rooms.upstreams.settings_of(tenant, name)
        if server.credential != "link":
            raise ServerNotFound(f"no account of anybody's is needed at {name}", details={"server": name})
        return server

    async def _client(self, tenant: str, server: McpServer, place: Place) -> Client:
        """Who we are there. A registration is written down before anybody is sent there with it."""
        links, store = self._rooms.links, self._rooms.store
        keys, flow = await links.keys(tenant), links.signing_in
        async with store.reading(tenant) as connection:
            box = await connection.fetchval(SQL["client"], tenant, server.name, place.issuer)
        kept = None if box is None else open_client(keys, server.name, flow.back_to, box)
        secret = await links.secret_of(tenant, server)
        client = await flow.client(place, client_id=server.client_id, secret=secret, kept=kept)
        if client is not kept and client.id not in (server.client_id, flow.document):
            sealed = seal_client(keys, server.name, flow.back_to, client)
            async with store.writing() as connection:
                await connection.execute(SQL["put_client"], tenant, server.name, place.issuer, sealed)
        return client

    async def _remember(self, caller: Caller, server: McpServer, begun: Begun) -> None:
        if server.client_id is not None:
            begun = _with_endpoint(begun, secret=None)
        keys = await self._rooms.links.keys(caller.tenant)
        sealed = seal_begun(keys, server.name, caller.user, begun)
        async with self._rooms.store.writing() as connection:
            await connection.execute(
                SQL["begin_sign_in"], caller.tenant, server.name, caller.user, _digest(begun.state), sealed
            )

    async def _taken(self, caller: Caller, state: str) -> tuple[str, Begun]:
        async with self._rooms.store.writing() as connection:
            row = await connection.fetchrow(
                SQL["take_sign_in"], caller.tenant, caller.user, _digest(state), float(BEGUN_SECONDS)
            )
        if row is None or not row["in_time"]:
            raise Malformed(
                "this is not a sign-in that you began here, or it took too long, or it was ended already",
                advice="Begin again on the page of your accounts.",
            )
        keys = await self._rooms.links.keys(caller.tenant)
        return row["server"], open_begun(keys, row["server"], caller.user, row["sealed"])

    async def _with_secret(self, tenant: str, server: McpServer, begun: Begun) -> Begun:
        secret = await self._rooms.links.secret_of(tenant, server)
        return begun if secret is None else _with_endpoint(begun, secret=secret)

    async def _forget_client(self, tenant: str, server: str, issuer: str) -> None:
        async with self._rooms.store.writing() as connection:
            await connection.execute(SQL["delete_client"], tenant, server, issuer)


def _with_endpoint(begun: Begun, *, secret: str | None) -> Begun:
    endpoint = without_secret(begun.endpoint) if secret is None else with_secret(begun.endpoint, secret)
    return replace(begun, endpoint=endpoint)


def _require_person(caller: Caller) -> None:
    """Nobody links for anybody else, and no agent for its user."""
    if not caller.console or caller.agents:
        raise PermissionDenied(
            "only a person who signed in at the console links their own account", details={"rule": "own-account"}
        )


def _shown(server: McpServer, row: asyncpg.Record | None) -> dict[str, Any]:
    state = "not linked" if row is None else "broken" if row["broken"] is not None else "linked"
    return {
        "name": server.name,
        "address": server.url,
        "state": "wants more" if state == "linked" and row is not None and row["wanted"] else state,
        "linked_at": None if row is None else row["linked_at"],
        "wanted": [] if row is None else list(row["wanted"]),
    }


def _digest(state: str) -> bytes:
    return hashlib.sha256(state.encode()).digest()
