"""Callbacks: where the end of a run may be told, how it is signed, and what administrators see of those that failed.

Signed as Standard Webhooks are: `webhook-id`, `webhook-timestamp`, `webhook-signature`, with a key of the tenant's own.
Beside it: `deliveries.py` does the telling. A caller chooses the address, so it is trusted with nothing: no result goes
to a host that the operator did not name.
"""

import base64
import contextlib
import hmac
import ipaddress
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import orjson

from deputize.core.call import Callback
from deputize.core.caller import Caller
from deputize.core.errors import CallbackRefused, DeliveryNotFound, SealBroken
from deputize.core.settings import Webhooks as Settings
from deputize.execute.addresses import is_public
from deputize.execute.egress import normal_host
from deputize.govern.decide import require_admin, require_administering
from deputize.lifecycle.barrier import add
from deputize.lifecycle.rooms import Rooms
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load

_SQL = load("webhooks")
_PREFIX: Final = "whsec_"


def require_allowed(settings: Settings, callback: Callback) -> None:
    """What can be seen from the address alone. Where its name leads is checked when it is used."""
    try:
        url = urlsplit(callback.url)
        host, _ = normal_host(url.hostname or ""), url.port
    except ValueError:
        raise CallbackRefused("the callback's address is no URL", nothing_happened=True) from None
    if url.scheme not in ("http", "https") or not host or url.username is not None or url.password is not None:
        raise CallbackRefused("a callback goes to a plain https address", nothing_happened=True)
    if is_named(settings, callback):
        return
    details = {"host": host, "setting": "webhooks.hosts"}
    if url.scheme == "http":
        raise CallbackRefused(f"{host} may be told over https only", details=details, nothing_happened=True)
    if callback.include_result:
        raise CallbackRefused(f"results are not sent to {host}", details=details, nothing_happened=True)
    if _is_private(host):
        raise CallbackRefused(f"{host} is not a public address", details=details, nothing_happened=True)


def is_named(settings: Settings, callback: Callback) -> bool:
    """Whether the operator wrote this host down."""
    return host_of(callback) in {normal_host(host) for host in settings.hosts}


def host_of(callback: Callback) -> str:
    """All that is shown of an address: the rest may hold a secret."""
    return normal_host(urlsplit(callback.url).hostname or "")


def _host_in(keys: KeySet, call_id: str, box: bytes) -> str:
    """Nothing where it cannot be read: one such letter must not hide the others."""
    with contextlib.suppress(SealBroken, KeyError, ValueError):
        return host_of(read(keys.open(call_id, "callback", box)))
    return ""


def _is_private(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return not is_public(str(ipaddress.ip_address(host)))
    return host == "localhost" or host.endswith(".localhost")


def written(callback: Callback) -> bytes:
    return orjson.dumps(
        {"v": 1, "url": callback.url, "secret": callback.secret, "include_result": callback.include_result}
    )


def read(box: bytes) -> Callback:
    told = orjson.loads(box)
    return Callback(url=told["url"], secret=told["secret"], include_result=told["include_result"])


def signed(keys: KeySet, name: str, delivery_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt. One signature per version of the tenant's key, so that a rotation breaks nobody."""
    told = f"{delivery_id}.{seconds}.".encode() + body
    marks = (base64.b64encode(hmac.digest(key, told, "sha256")).decode() for key in keys.webhook_keys(name))
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{mark}" for mark in marks),
    }


class Webhooks:
    """For administrators: the key receivers check with, and the deliveries that were given up."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def key(self, caller: Caller, name: str) -> dict[str, str]:
        """What a receiver needs. Shown on record: whoever has it can speak in the gateway's name."""
        require_admin(caller)
        keys = await self._rooms.keys.load(self._rooms.store, caller.tenant)

        async def act(_: Connection) -> str:
            return _PREFIX + base64.b64encode(keys.webhook_keys(name)[0]).decode()

        return {"name": name, "secret": await add(self._rooms, caller, "show_webhook_key", name, act, ())}

    async def dead_letters(self, caller: Caller, limit: int) -> list[dict[str, Any]]:
        require_admin(caller)
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)
        keys = await self._rooms.keys.load(self._rooms.store, caller.tenant)
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["dead_letters"], caller.tenant, limit)
        return [
            {
                "id": str(row["id"]),
                "call_id": str(row["call_id"]),
                "state": row["state"],
                "host": _host_in(keys, str(row["call_id"]), row["asked"]),
                "attempts": row["attempts"],
                "problem": row["problem"],
                "created_at": row["created_at"].isoformat(),
                "dead_at": row["dead_at"].isoformat(),
            }
            for row in rows
        ]

    async def retry(self, caller: Caller, delivery_id: str) -> dict[str, Any]:
        """The delivery is due again, with as many attempts as a new one."""
        require_administering(caller)
        unknown = DeliveryNotFound("no delivery of this id was given up", details={"id": delivery_id[:64]})
        try:
            wanted = str(UUID(delivery_id))
        except ValueError:
            raise unknown from None

        async def act(connection: Connection) -> str:
            found = await connection.fetchval(_SQL["retry_dead"], caller.tenant, wanted)
            if found is None:
                raise unknown
            return str(found)

        call_id = await add(self._rooms, caller, "retry_delivery", wanted, act, ())
        return {"id": wanted, "call_id": call_id, "retry": "due"}
