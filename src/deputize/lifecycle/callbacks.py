"""Check and sign callbacks that report the end of a run, and show administrators those that failed.

Signed as Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`, with a key of the tenant.
`operations/background/deliveries.py` sends them. The caller chooses the address, so it is not trusted: results are sent
only to hosts that the operator named.
"""

import base64
import contextlib
import hmac
import ipaddress
import random
from collections.abc import Awaitable
from typing import Any, Final, Protocol
from urllib.parse import urlsplit
from uuid import UUID

import orjson

from deputize.core.call import Callback
from deputize.core.caller import Caller
from deputize.core.errors import CallbackRefused, DeliveryNotFound, UnsealFailed
from deputize.core.settings import WebhookSettings as Settings
from deputize.execute.egress import normalize_host
from deputize.execute.ip_filter import is_public_address
from deputize.govern.token_authorization import require_admin, require_full_admin
from deputize.lifecycle.barrier import commit_act, commit_operator_act
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("webhooks")
_SECRET_PREFIX: Final = "whsec_"
CLOUDEVENTS_MEDIA_TYPE: Final = "application/cloudevents+json"
_MAX_BACKOFF_SECONDS: Final = 6 * 3600.0


class SendWebhook(Protocol):
    """Sends one request and returns the receiver's HTTP status; `Egress.send` is one."""

    def __call__(self, url: str, body: bytes, *, headers: dict[str, str], seconds: float) -> Awaitable[int]: ...


def compute_delivery_backoff(first: float, attempts: int) -> float:
    """Compute the seconds before the next attempt: four times the last, with 20% jitter to spread retries."""
    return float(min(first * 4 ** (attempts - 1), _MAX_BACKOFF_SECONDS) * random.uniform(0.8, 1.2))


def require_callback_allowed(settings: Settings, callback: Callback) -> None:
    """Check what the address alone shows; where its host name resolves to is checked when it is used."""
    try:
        url = urlsplit(callback.url)
        host, _ = normalize_host(url.hostname or ""), url.port
    except ValueError:
        raise CallbackRefused("the callback's address is not a valid URL", nothing_happened=True) from None
    if url.scheme not in ("http", "https") or not host or url.username is not None or url.password is not None:
        raise CallbackRefused("a callback needs an https address without user or password", nothing_happened=True)
    if is_trusted_host(settings, callback):
        return
    details = {"host": host, "setting": "webhooks.hosts"}
    if url.scheme == "http":
        raise CallbackRefused(f"callbacks to {host} must use https", details=details, nothing_happened=True)
    if callback.include_result:
        raise CallbackRefused(
            f"results may not be sent to {host}: the operator has not named it", details=details, nothing_happened=True
        )
    if _is_private(host):
        raise CallbackRefused(f"{host} is not a public address", details=details, nothing_happened=True)


def is_trusted_host(settings: Settings, callback: Callback) -> bool:
    """Tell whether the operator named this host in the settings."""
    return get_callback_host(callback) in {normalize_host(host) for host in settings.hosts}


def get_callback_host(callback: Callback) -> str:
    """Return the address's host, the only part that is shown: the rest may contain a secret."""
    return normalize_host(urlsplit(callback.url).hostname or "")


def _decrypt_callback_host(keys: KeySet, call_id: str, ciphertext: bytes) -> str:
    """Decrypt the callback's host; empty if that fails, so that one bad row does not hide the others."""
    with contextlib.suppress(UnsealFailed, KeyError, ValueError):
        return get_callback_host(parse_callback(keys.unseal(call_id, "callback", ciphertext)))
    return ""


def _is_private(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return not is_public_address(str(ipaddress.ip_address(host)))
    return host == "localhost" or host.endswith(".localhost")


def serialize_callback(callback: Callback) -> bytes:
    return orjson.dumps(
        {"v": 1, "url": callback.url, "secret": callback.secret, "include_result": callback.include_result}
    )


def parse_callback(data: bytes) -> Callback:
    fields = orjson.loads(data)
    return Callback(url=fields["url"], secret=fields["secret"], include_result=fields["include_result"])


def sign_delivery(keys: KeySet, name: str, delivery_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Build the signed headers of one attempt, with one signature per key version, so that rotation breaks nothing."""
    message = f"{delivery_id}.{seconds}.".encode() + body
    signatures = (
        base64.b64encode(hmac.digest(key, message, "sha256")).decode() for key in keys.derive_webhook_keys(name)
    )
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


class WebhookAdmin:
    """Webhook administration: the key that receivers verify with, and the deliveries that were given up."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def show_key(self, caller: Caller, name: str) -> dict[str, str]:
        """Show the key to an operator and record that: whoever has it can sign in the gateway's name."""
        require_full_admin(caller)
        keys = await self._runtime.keys.load(self._runtime.store, caller.tenant)

        async def act(_: Connection, __: str | None) -> str:
            return _SECRET_PREFIX + base64.b64encode(keys.derive_webhook_keys(name)[0]).decode()

        secret = await commit_operator_act(self._runtime, caller, "show_webhook_key", name, act)
        return {"name": name, "secret": secret}

    async def list_dead_letters(self, caller: Caller, limit: int) -> list[dict[str, Any]]:
        require_admin(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        keys = await self._runtime.keys.load(self._runtime.store, caller.tenant)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_dead_letters"], caller.tenant, limit)
        return [
            {
                "id": str(row["id"]),
                "call_id": str(row["call_id"]),
                "state": row["state"],
                "host": _decrypt_callback_host(keys, str(row["call_id"]), row["request"]),
                "attempts": row["attempts"],
                "problem": row["problem"],
                "created_at": row["created_at"].isoformat(),
                "dead_at": row["dead_at"].isoformat(),
            }
            for row in rows
        ]

    async def retry_delivery(self, caller: Caller, delivery_id: str) -> dict[str, Any]:
        """Make a dead delivery due again, with as many attempts as a new one."""
        require_full_admin(caller)
        not_found = DeliveryNotFound("no failed delivery has this id", details={"id": delivery_id[:64]})
        try:
            delivery_uuid = str(UUID(delivery_id))
        except ValueError:
            raise not_found from None

        async def act(connection: Connection) -> str:
            call_id = await connection.fetchval(_SQL["retry_dead_letter"], caller.tenant, delivery_uuid)
            if call_id is None:
                raise not_found
            return str(call_id)

        call_id = await commit_act(self._runtime, caller, "retry_delivery", delivery_uuid, act, ())
        return {"id": delivery_uuid, "call_id": call_id, "retry": "due"}
