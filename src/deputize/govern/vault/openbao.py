"""Secrets in OpenBao or Vault: key-value version 2, at `{tenant}/{name}` under one mount, in the field `value`.

Tenants and names hold no dots and tenants no slashes, so no two pairs spell one path. The client is synchronous, so it
runs in a few threads of its own: a vault that hangs holds up whoever waits for a secret, for as long as the settings
say, and nobody else. The gateway's token is read from its file for each use, so that it can be renewed beside us.
"""

import asyncio
import importlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from deputize.core.clock import Clock
from deputize.core.definition import Secret
from deputize.core.errors import CredentialExpired, CredentialMissing, Problem, VaultUnavailable
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Vault as VaultSettings
from deputize.govern.vault.port import secret_of
from deputize.store.private_file import read_private

THREADS = 8


class OpenBao:
    def __init__(self, settings: VaultSettings, clock: Clock) -> None:
        if settings.address is None or settings.token_file is None:
            raise Misconfigured("vault.kind is openbao, so vault.address and vault.token_file must be set too.")
        try:
            # An extra: most gateways need no vault, and this one brings an HTTP stack of its own.
            self._hvac: Any = importlib.import_module("hvac")
            self._requests: Any = importlib.import_module("requests")
        except ImportError:
            raise Misconfigured(
                "vault.kind is openbao, but its client is not installed: pip install 'deputize[vault]'."
            ) from None
        self._address, self._token_file = settings.address, settings.token_file
        self._mount, self._seconds = settings.mount, settings.seconds
        self._clock = clock
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="vault")
        self._of_thread = threading.local()

    async def fetch(self, tenant: str, name: str, *, seconds: float) -> Secret:
        patience = max(min(seconds, self._seconds), 0.0)
        asked = self._threads.submit(self._read, tenant, name)
        try:
            async with asyncio.timeout(patience):
                # Given up, it is not begun any more; begun, its thread ends by the client's own timeout.
                held = await asyncio.wrap_future(asked)
        except TimeoutError as error:
            raise _unavailable(name, f"the vault did not answer within {patience:.3g} s") from error
        return self._secret(held, name)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, tenant: str, name: str) -> Any:
        """In a thread. Foreign errors are mapped here and nowhere else."""
        errors = self._hvac.exceptions
        try:
            client = self._client()
            client.token = self._token()
            return client.secrets.kv.v2.read_secret_version(
                path=f"{tenant}/{name}", mount_point=self._mount, raise_on_deleted_version=True
            )
        except errors.InvalidPath as error:
            raise CredentialMissing(
                f"the vault holds no secret {name} for this tenant",
                details={"secret": name, "mount": self._mount},
            ) from error
        except (errors.Forbidden, errors.Unauthorized) as error:
            raise _unavailable(name, "the vault refuses this gateway's token for this secret") from error
        except errors.VaultDown as error:
            raise _unavailable(name, "the vault is sealed or in maintenance") from error
        except (errors.VaultError, self._requests.RequestException, OSError, Misconfigured, ValueError) as error:
            raise _unavailable(name, "the vault cannot be reached or does not answer as one") from error

    def _client(self) -> Any:
        """One connection per thread; what a session keeps is not made for two at once."""
        client = getattr(self._of_thread, "client", None)
        if client is None:
            client = self._of_thread.client = self._hvac.Client(
                url=self._address,
                token="",
                timeout=self._seconds,
                # The token would follow a redirect to wherever it leads.
                allow_redirects=False,
            )
            # A proxy or a password file named in the environment is nobody's decision about the vault.
            client.session.trust_env = False
        return client

    def _token(self) -> str:
        content = read_private(self._token_file, what="The token for the vault", remedy="put the token there")
        return content.decode("ascii").strip()

    def _secret(self, held: Any, name: str) -> Secret:
        """What the vault answered, if it is a secret that still holds; anything unexpected is no answer."""
        try:
            fields, metadata = held["data"]["data"], held["data"]["metadata"]
            expires_at = (metadata.get("custom_metadata") or {}).get("expires_at")
        except (TypeError, KeyError, AttributeError) as error:
            raise _unavailable(name, "the vault answered something else than a secret") from error
        if expires_at is not None and not self._holds_until(expires_at):
            raise CredentialExpired(f"the secret {name} has expired", details={"secret": name, "at": str(expires_at)})
        if not isinstance(fields, Mapping) or "value" not in fields:
            raise CredentialMissing(f"the secret {name} has no field value", details={"secret": name, "field": "value"})
        return secret_of(fields["value"], name)

    def _holds_until(self, text: object) -> bool:
        """A moment that cannot be read counts as past."""
        try:
            at = datetime.fromisoformat(str(text))
        except ValueError:
            return False
        return (at if at.tzinfo else at.replace(tzinfo=UTC)) > self._clock.now()


def _unavailable(name: str, why: str) -> Problem:
    return VaultUnavailable(why, details={"secret": name})
