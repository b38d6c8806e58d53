"""Fetch secrets from OpenBao or Vault: key-value version 2, at `{tenant}/{name}` under one mount, in the field `value`.

Tenants and names contain no dots and tenants no slashes, so paths never collide. The client is synchronous and runs in
threads of its own: a vault that hangs delays only calls that wait for a secret, up to the configured timeout. The
gateway's token is read from its file for each request, so that another process can renew it.
"""

import asyncio
import importlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.contract.tools import Secret
from deputize.core.errors import CredentialExpired, CredentialMissing, Problem, VaultUnavailable
from deputize.core.settings import VaultSettings as VaultSettings
from deputize.govern.vault.port import make_secret
from deputize.store.private_file import read_private_file

THREADS = 8


class OpenBaoVault:
    """A client of an OpenBao or Vault server."""

    def __init__(self, settings: VaultSettings, clock: Clock) -> None:
        if settings.address is None or settings.token_file is None:
            raise ConfigError("vault.kind is openbao: set vault.address and vault.token_file in deputize.toml too.")
        try:
            # An optional dependency: most gateways need no vault, and this client brings its own HTTP stack.
            self._hvac: Any = importlib.import_module("hvac")
            self._requests: Any = importlib.import_module("requests")
        except ImportError:
            raise ConfigError(
                "vault.kind is openbao, but its client is not installed: run pip install 'deputize[vault]'."
            ) from None
        self._address, self._token_file = settings.address, settings.token_file
        self._mount, self._seconds = settings.mount, settings.seconds
        self._clock = clock
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="vault")
        self._thread_local = threading.local()

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        timeout_seconds = max(min(seconds, self._seconds), 0.0)
        future = self._threads.submit(self._read_secret, tenant, name)
        try:
            async with asyncio.timeout(timeout_seconds):
                # After a timeout a queued request is cancelled; a running one ends by the client's own timeout.
                response = await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise _build_unavailable_error(name, f"the vault did not answer within {timeout_seconds:.3g} s") from error
        return self._parse_secret(response, name)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read_secret(self, tenant: str, name: str) -> Any:
        """Read a secret, in a thread. All errors of the client libraries are mapped here."""
        errors = self._hvac.exceptions
        try:
            client = self._get_client()
            client.token = self._read_token()
            return client.secrets.kv.v2.read_secret_version(
                path=f"{tenant}/{name}", mount_point=self._mount, raise_on_deleted_version=True
            )
        except errors.InvalidPath as error:
            raise CredentialMissing(
                f"the vault has no secret {name} for this tenant",
                details={"secret": name, "mount": self._mount},
            ) from error
        except (errors.Forbidden, errors.Unauthorized) as error:
            raise _build_unavailable_error(
                name, "the vault does not let this gateway's token read the secret"
            ) from error
        except errors.VaultDown as error:
            raise _build_unavailable_error(name, "the vault is sealed or in maintenance") from error
        except (
            errors.VaultError, self._requests.RequestException, OSError, ConfigError, ValueError, RecursionError,
        ) as error:  # fmt: skip
            raise _build_unavailable_error(name, "the vault cannot be reached or gave an invalid response") from error

    def _get_client(self) -> Any:
        """Return this thread's client: its HTTP session is not thread-safe."""
        client = getattr(self._thread_local, "client", None)
        if client is None:
            client = self._thread_local.client = self._hvac.Client(
                url=self._address,
                token="",
                timeout=self._seconds,
                # A redirect would send the token to another host.
                allow_redirects=False,
            )
            # Proxies and .netrc files from the environment must not apply to the vault.
            client.session.trust_env = False
        return client

    def _read_token(self) -> str:
        content = read_private_file(
            self._token_file, description="The token for the vault", remedy="write the token to this file"
        )
        return content.decode("ascii").strip()

    def _parse_secret(self, response: Any, name: str) -> Secret:
        """Parse the vault's response into a secret that has not expired."""
        try:
            fields, metadata = response["data"]["data"], response["data"]["metadata"]
            expires_at = (metadata.get("custom_metadata") or {}).get("expires_at")
        except (TypeError, KeyError, AttributeError) as error:
            raise _build_unavailable_error(name, "the vault's response is not a secret") from error
        if expires_at is not None and not self._is_unexpired(expires_at):
            raise CredentialExpired(f"the secret {name} has expired", details={"secret": name, "at": str(expires_at)})
        if not isinstance(fields, Mapping) or "value" not in fields:
            raise CredentialMissing(f"the secret {name} has no field value", details={"secret": name, "field": "value"})
        return make_secret(fields["value"], name)

    def _is_unexpired(self, text: object) -> bool:
        """Tell whether a time is in the future; one that cannot be parsed counts as past."""
        try:
            at = datetime.fromisoformat(str(text))
        except ValueError:
            return False
        return (at if at.tzinfo else at.replace(tzinfo=UTC)) > self._clock.now()


def _build_unavailable_error(name: str, message: str) -> Problem:
    return VaultUnavailable(message, details={"secret": name})
