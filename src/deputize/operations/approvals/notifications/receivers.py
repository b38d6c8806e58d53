"""Resolve the notification addresses that the settings name for each group, and send to them.

An https address is a webhook: signed, and sent through the gateway's outbound client. Any other is an apprise URL. The
operator wrote it and chooses its target, but only services that reach people are allowed: none that runs programs or
shows things on this machine. Addresses contain secrets: nothing here logs, shows or stores one.
"""

import asyncio
import contextlib
import hmac
import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import SecretStr

from deputize.core.call import Callback
from deputize.core.config_error import ConfigError
from deputize.core.errors import CallbackRefused
from deputize.core.patterns import matches_glob
from deputize.core.settings import Settings
from deputize.core.value_types import frozen
from deputize.execute.address_guard import refuse_forbidden_addresses
from deputize.lifecycle.callbacks import require_callback_allowed
from deputize.store.keys import KeySet

APPRISE_SCHEMES: Final = frozenset({
    "betterstack", "brevo", "dingtalk", "discord", "feishu", "gchat", "goalert", "goalerts", "gotify", "gotifys",
    "ilert", "incidentio", "json", "jsons", "lark", "line", "mailgun", "mailto", "mailtos", "matrix", "matrixs",
    "mmost", "mmosts", "ntfy", "ntfys", "o365", "opsgenie", "pagerduty", "pbul", "postmark", "pover", "rocket",
    "rockets", "sendgrid", "ses", "signal", "signals", "signl4", "slack", "sns", "sparkpost", "spike", "squadcast",
    "tgram", "twilio", "victorops", "vonage", "webex", "wecombot", "workflow", "workflows", "wxteams", "xmatters",
    "zulip",
})  # fmt: skip
_MAX_THREADS: Final = 4


@frozen
class Receiver:
    group: str
    tenants: str
    url: SecretStr

    @property
    def is_webhook(self) -> bool:
        return self._scheme in ("http", "https")

    @property
    def _scheme(self) -> str:
        return self.url.get_secret_value().partition("://")[0].lower()

    def compute_fingerprint(self, keys: KeySet) -> bytes:
        """Compute the receiver's stored name: the same in every process, without revealing the address."""
        return hmac.digest(keys.records_key, b"receiver\0" + self.url.get_secret_value().encode(), "sha256")


class Receivers:
    """The receivers in the settings; an invalid one is reported at startup, before anything is sent."""

    def __init__(self, settings: Settings) -> None:
        entries = settings.approvals.notify
        self._receivers = [Receiver(group=each.group, tenants=each.tenants, url=each.url) for each in entries]
        for receiver in self._receivers:
            _require_valid_receiver(settings, receiver)
        services = [each for each in self._receivers if not each.is_webhook]
        self.apprise_sender = AppriseSender(services, settings.webhooks.seconds) if services else None

    def find_receivers(self, tenant: str, group: str) -> list[Receiver]:
        return [each for each in self._receivers if each.group == group and matches_glob(tenant, each.tenants)]


def _require_valid_receiver(settings: Settings, receiver: Receiver) -> None:
    prefix = f"approvals.notify has an invalid address for group {receiver.group}"
    if receiver.is_webhook:
        try:
            require_callback_allowed(settings.webhooks, Callback(url=receiver.url.get_secret_value()))
        except CallbackRefused as error:
            raise ConfigError(f"{prefix}: {error.message}. Allow its host in webhooks.hosts.") from None
    elif receiver._scheme not in APPRISE_SCHEMES:
        raise ConfigError(f"{prefix}: unsupported scheme. Use https, or one of {', '.join(sorted(APPRISE_SCHEMES))}.")


class AppriseSender:
    """Send messages through apprise, which blocks: each in its own thread, with a limit on threads and time.

    A thread that hangs is abandoned at its timeout and at the process's end, but it keeps its slot, so unresponsive
    services cannot fill the process with threads.
    """

    def __init__(self, services: Sequence[Receiver], seconds: float) -> None:
        try:
            self._apprise: Any = importlib.import_module("apprise")
        except ImportError:
            raise ConfigError(
                "approvals.notify has apprise URLs, but apprise is not installed. Run: pip install 'deputize[notify]'"
            ) from None
        # The logs of apprise and its HTTP client contain addresses, and with them secrets.
        logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        self._asset = self._apprise.AppriseAsset(
            app_id="Deputize",
            app_desc="Deputize",
            async_mode=False,
            storage_mode=self._apprise.PersistentStoreMode.MEMORY,
            http_redirects=False,
            service_timeout=0,
            allow_templates=False,
        )
        self._seconds = seconds
        self._slots = asyncio.Semaphore(_MAX_THREADS)
        for receiver in services:
            if self._build_service(receiver) is None:
                raise ConfigError(
                    f"approvals.notify has an address for group {receiver.group} that apprise cannot parse: fix it."
                )

    def _build_service(self, receiver: Receiver) -> Any:
        return self._apprise.Apprise.instantiate(receiver.url.get_secret_value(), asset=self._asset)

    async def send(self, receiver: Receiver, title: str, text: str) -> str | None:
        """Send one message; return why delivery failed, or None."""

        def notify() -> bool:
            client = self._apprise.Apprise(asset=self._asset)
            client.add(self._build_service(receiver))
            return bool(client.notify(title=title, body=text, body_format=self._apprise.NotifyFormat.TEXT))

        try:
            async with asyncio.timeout(self._seconds):
                await self._slots.acquire()
                is_delivered = await self._run_in_thread(notify)
        except TimeoutError:
            return "the service did not answer in time"
        return None if is_delivered else "the service rejected the message"

    async def _run_in_thread(self, work: Callable[[], bool]) -> bool:
        loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def finish(is_delivered: bool) -> None:
            self._slots.release()
            if not future.done():
                future.set_result(is_delivered)

        def run() -> None:
            is_delivered = False
            try:
                with refuse_forbidden_addresses():
                    is_delivered = work()
            except Exception:  # noqa: BLE001 -- apprise and its services may raise anything; it was not delivered
                is_delivered = False
            # The event loop may have ended meanwhile; then nothing waits for the result.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(finish, is_delivered)

        threading.Thread(target=run, name="notify", daemon=True).start()
        return bool(await future)
