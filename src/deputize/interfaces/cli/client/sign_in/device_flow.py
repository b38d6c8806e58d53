"""Sign in with a code that a person types on any device: the device authorization grant (RFC 8628)."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.sign_in.issuer_client import (
    IssuerEndpoints,
    IssuerRefusal,
    build_audience_fields,
    post_form,
)

_GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
_MAX_SECONDS = 900.0
_SLOWER_SECONDS = 5.0


def sign_in_with_code(
    endpoints: IssuerEndpoints,
    client_id: str,
    audience: str,
    scopes: Sequence[str],
    *,
    show_code: Callable[[str, str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Show where to type which code, and ask the issuer until the person did; return its token response."""
    if not endpoints.device:
        raise ConfigError(
            f"{endpoints.issuer} does not support sign-in with a code: use deputize login without --device."
        )
    audience_fields = build_audience_fields(audience)
    device = post_form(endpoints.device, {"client_id": client_id, "scope": " ".join(scopes), **audience_fields})
    show_code(str(device.get("verification_uri_complete") or device["verification_uri"]), str(device["user_code"]))
    pause, wait_seconds = float(device.get("interval") or 5), 0.0
    longest = min(float(device.get("expires_in") or _MAX_SECONDS), _MAX_SECONDS)
    while wait_seconds < longest:
        sleep(pause)
        wait_seconds += pause
        try:
            return post_form(
                endpoints.token,
                {
                    "grant_type": _GRANT_TYPE,
                    "device_code": str(device["device_code"]),
                    "client_id": client_id,
                    **audience_fields,
                },
            )
        except IssuerRefusal as refusal:
            if refusal.error == "slow_down":
                pause += _SLOWER_SECONDS
            elif refusal.error != "authorization_pending":
                raise ConfigError(
                    f"{endpoints.issuer} did not sign you in ({refusal}): run deputize login again."
                ) from None
    raise ConfigError("The code was not typed in time: run deputize login --device again.")
