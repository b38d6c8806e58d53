"""Who is told: the addresses the settings name for each group, and how each is spoken to.

An https address is a webhook of ours: signed, and sent through the one way out. Any other is an apprise URL: the
operator wrote it, so where it leads is theirs to say, but only kinds of services that go to people are let through:
none that runs programs or shows things on this machine. Addresses hold secrets: nothing here logs, shows or keeps one.
"""

import asyncio
import contextlib
import hmac
import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import SecretStr

from deputize.core.call import Callback
from deputize.core.errors import CallbackRefused
from deputize.core.frozen import frozen
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.lifecycle.webhooks import require_allowed
from deputize.store.keys import KeySet

SCHEMES: Final = frozenset({
    "betterstack", "brevo", "dingtalk", "discord", "feishu", "gchat", "goalert", "goalerts", "gotify", "gotifys",
    "ilert", "incidentio", "json", "jsons", "lark", "line", "mailgun", "mailto", "mailtos", "matrix", "matrixs",
    "mmost", "mmosts", "ntfy", "ntfys", "o365", "opsgenie", "pagerduty", "pbul", "postmark", "pover", "rocket",
    "rockets", "sendgrid", "ses", "signal", "signals", "signl4", "slack", "sns", "sparkpost", "spike", "squadcast",
    "tgram", "twilio", "victorops", "vonage", "webex", "wecombot", "workflow", "workflows", "wxteams", "xmatters",
    "zulip",
})  # fmt: skip
_THREADS: Final = 4


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

    def mark(self, keys: KeySet) -> bytes:
        """What letters call it by: the same in every process, and of no use to whoever reads it."""
        return hmac.digest(keys.records, b"receiver\0" + self.url.get_secret_value().encode(), "sha256")


class Receivers:
    """Those of the settings; a mistake in one is told before anything is sent."""

    def __init__(self, settings: Settings) -> None:
        named = settings.approvals.notify
        self._all = [Receiver(group=each.group, tenants=each.tenants, url=each.url) for each in named]
        for receiver in self._all:
            _require_usable(settings, receiver)
        services = [each for each in self._all if not each.is_webhook]
        self.shouting = Shouting(services, settings.webhooks.seconds) if services else None

    def of(self, tenant: str, group: str) -> list[Receiver]:
        return [each for each in self._all if each.group == group and fnmatchcase(tenant, each.tenants)]


def _require_usable(settings: Settings, receiver: Receiver) -> None:
    told = f"approvals.notify names an address for {receiver.group}"
    if receiver.is_webhook:
        try:
            require_allowed(settings.webhooks, Callback(url=receiver.url.get_secret_value()))
        except CallbackRefused as refused:
            raise Misconfigured(f"{told} that may not be used: {refused.message} (see webhooks.hosts).") from None
    elif receiver._scheme not in SCHEMES:
        raise Misconfigured(f"{told} of a kind that is not used: take https, or one of {', '.join(sorted(SCHEMES))}.")


class Shouting:
    """Messages through apprise, which waits while it sends: each in a thread, so many at most, and not for ever.

    A thread that hangs is not waited for when its time is over, nor when the process ends, but it keeps its place:
    whoever answers to nobody cannot fill the process with threads.
    """

    def __init__(self, services: Sequence[Receiver], seconds: float) -> None:
        try:
            self._apprise: Any = importlib.import_module("apprise")
        except ImportError:
            raise Misconfigured(
                "approvals.notify names apprise URLs, but apprise is not installed: pip install 'deputize[notify]'."
            ) from None
        # What it and its client log holds addresses, and with them secrets.
        logging.getLogger("apprise").disabled = True
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
        self._places = asyncio.Semaphore(_THREADS)
        for receiver in services:
            if self._service(receiver) is None:
                raise Misconfigured(f"approvals.notify has an address for {receiver.group} that apprise cannot read.")

    def _service(self, receiver: Receiver) -> Any:
        return self._apprise.Apprise.instantiate(receiver.url.get_secret_value(), asset=self._asset)

    async def send(self, receiver: Receiver, title: str, text: str) -> str | None:
        """What kept it from being heard, if anything did."""

        def shout() -> bool:
            speaking = self._apprise.Apprise(asset=self._asset)
            speaking.add(self._service(receiver))
            return bool(speaking.notify(title=title, body=text, body_format=self._apprise.NotifyFormat.TEXT))

        try:
            async with asyncio.timeout(self._seconds):
                await self._places.acquire()
                heard = await self._in_thread(shout)
        except TimeoutError:
            return "the service did not answer in time"
        return None if heard else "the service did not take it"

    async def _in_thread(self, work: Callable[[], bool]) -> bool:
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def over(heard: bool) -> None:
            self._places.release()
            if not done.done():
                done.set_result(heard)

        def run() -> None:
            heard = False
            try:
                heard = work()
            except Exception:  # noqa: BLE001 -- the edge of somebody else's code: whatever it was, it was not heard
                heard = False
            # The loop may have ended meanwhile; then nobody asks any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(over, heard)

        threading.Thread(target=run, name="notify", daemon=True).start()
        return bool(await done)
