"""Check and sign callbacks that report the end of a run.

Signed as Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`, with a key of the tenant for the
host.
`operations/background/deliveries.py` sends them. The caller chooses the address, so it is not trusted: results are sent
only to hosts that the operator named.
"""

import base64
import contextlib
import hmac
import ipaddress
import random
from collections.abc import Awaitable, Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit

import orjson

from deputize.core.call import Callback
from deputize.core.errors import CallbackRefused
from deputize.core.settings import WebhookSettings as Settings
from deputize.execute.egress import normalize_host
from deputize.execute.ip_filter import is_public_address
from deputize.store.keys import KeySet

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


def derive_callback_keys(keys: KeySet, callback: Callback) -> Sequence[bytes]:
    """Derive the keys that sign a callback: of the name that it chose, for its host alone."""
    return keys.derive_webhook_keys(callback.secret, callback_host=get_callback_host(callback))


def sign_delivery(signing_keys: Sequence[bytes], delivery_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Build the signed headers of one attempt, with one signature per key version, so that rotation breaks nothing."""
    message = f"{delivery_id}.{seconds}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(key, message, "sha256")).decode() for key in signing_keys)
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
