"""Publish events to NATS JetStream; an event counts as sent when the stream has acknowledged it.

The client never reconnects by itself: what it kept in memory would arrive behind later events. An event of a call is
sent only after the one before it was acknowledged, so neither a lost message nor a new leader of the stream can change
their order. `Nats-Msg-Id` lets the stream drop repetitions.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import Header, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from deputize.core.errors import Problem
from deputize.core.settings import EventSinkSettings
from deputize.evidence.cloud_events import OutgoingEvent
from deputize.execute.egress import normalize_host, resolve_allowed_addresses, resolve_host
from deputize.operations.background.events.sink import SEND_SECONDS, SinkFailure

_DEFAULT_PORT: Final = 4222
_CONNECT_SECONDS: Final = 5
_ACK_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 2.0
# Events that wait for an acknowledgement at one time; more would make calls wait for the event loop.
_MAX_UNACKNOWLEDGED: Final = 32
_CONTENT_TYPE: Final = "application/cloudevents+json"
# What the client raises, in its own hierarchy and beyond it.
_CLIENT_ERRORS: Final = (NatsError, OSError, TimeoutError, ssl.SSLError, ValueError)


class NatsSink:
    """A JetStream stream. It connects when there is something to send, and again after any failure."""

    def __init__(self, settings: EventSinkSettings) -> None:
        self._settings = settings
        self._url = urlsplit(settings.url.get_secret_value())
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._is_disconnected = asyncio.Event()

    async def send(self, events: Sequence[OutgoingEvent]) -> int:
        """Publish all events and wait for the acknowledgement of each."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                if self._client is None or not self._client.is_connected:
                    await self.aclose()
                    await self._connect()
                for group in divide_by_call(events, _MAX_UNACKNOWLEDGED):
                    await self._publish_group(group)
        except Problem as problem:
            raise SinkFailure(problem.message) from problem
        except _CLIENT_ERRORS as error:
            await self.aclose()
            raise SinkFailure(self._explain_error(error)) from error
        except BaseException:
            await self.aclose()
            raise
        return len(events)

    async def aclose(self) -> None:
        """End the connection, also one that no longer answers."""
        client, self._client, self._stream = self._client, None, None
        if client is not None:
            with contextlib.suppress(*_CLIENT_ERRORS):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await client.close()

    async def _connect(self) -> None:
        host, port = self._settings.host, self._url.port or _DEFAULT_PORT
        addresses = await resolve_allowed_addresses(host, port, frozenset({normalize_host(host)}), resolve_host)
        is_secure = self._url.scheme == "tls"
        client, self._is_disconnected = Client(), asyncio.Event()
        end_of_connection = self._is_disconnected

        async def note_disconnection() -> None:
            end_of_connection.set()

        options: dict[str, Any] = {"tls": self._load_trust(), "tls_hostname": host} if is_secure else {}
        if self._settings.credentials_file is not None:
            options["user_credentials"] = str(self._settings.credentials_file)
        user, password = unquote(self._url.username or ""), unquote(self._url.password or "")
        if user:
            # Asked for when the connection is encrypted; the client would send them in the clear to a server that asks.
            options |= (
                {"user": self._guard(client, user), "password": self._guard(client, password)}
                if self._url.password is not None
                else {"token": self._guard(client, user)}
            )
        self._client = client
        await client.connect(
            servers=[f"{self._url.scheme}://{_bracket(address)}:{port}" for address in addresses],
            name="deputize",
            allow_reconnect=False,
            connect_timeout=_CONNECT_SECONDS,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=_ignore_error,
            disconnected_cb=note_disconnection,
            closed_cb=note_disconnection,
            **options,
        )
        self._require_encryption(client)
        self._stream = client.jetstream(timeout=_ACK_SECONDS)
        await self._ensure_stream(self._stream)

    async def _ensure_stream(self, context: JetStreamContext) -> None:
        try:
            await context.stream_info(self._settings.stream)
        except NotFoundError:
            subjects = [f"{self._settings.subject_prefix}.>"]
            await context.add_stream(
                StreamConfig(name=self._settings.stream, subjects=subjects, storage=StorageType.FILE)
            )

    async def _publish_group(self, group: Sequence[OutgoingEvent]) -> None:
        """Publish events of different calls at once. A connection that ends is noticed at once, not by a timeout."""
        publications = [asyncio.create_task(self._publish(event)) for event in group]
        acknowledgement = asyncio.gather(*publications)
        disconnection = asyncio.create_task(self._is_disconnected.wait())
        disconnection.add_done_callback(lambda _: acknowledgement.cancel())
        try:
            await acknowledgement
        except asyncio.CancelledError:
            if not self._is_disconnected.is_set():
                raise
            raise ConnectionResetError("the connection ended before every event was acknowledged") from None
        finally:
            for task in (*publications, disconnection):
                task.cancel()
            await asyncio.gather(*publications, disconnection, return_exceptions=True)

    async def _publish(self, event: OutgoingEvent) -> None:
        assert self._stream is not None
        await self._stream.publish(
            f"{self._settings.subject_prefix}.{event.tenant}.{event.type}",
            event.body,
            stream=self._settings.stream,
            headers={Header.MSG_ID: event.id, "Content-Type": _CONTENT_TYPE},
        )

    def _load_trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._settings.ca_file)

    def _guard(self, client: Client, secret: str) -> Callable[[], str]:
        def reveal() -> str:
            self._require_encryption(client)
            return secret

        return reveal

    def _require_encryption(self, client: Client) -> None:
        """Refuse a server that does not encrypt where the settings say it does; the client itself would go on."""
        if self._url.scheme == "tls" and not client._server_info.get("tls_required"):
            raise SinkFailure(f"the server at {self._settings.host} does not offer TLS, which the settings ask for")

    def _explain_error(self, error: Exception) -> str:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        secret = self._url.password or self._url.username
        if secret:
            reason = reason.replace(secret, "[redacted]").replace(unquote(secret), "[redacted]")
        return f"NATS at {self._settings.host}: {reason[:300]}"


def divide_by_call(events: Sequence[OutgoingEvent], size: int) -> Iterator[Sequence[OutgoingEvent]]:
    """Divide events into groups with at most one event of each call, and keep the order of a call's events.

    Entries without a call, such as the acts of administrators, are in one order for each tenant.
    """
    groups: list[list[OutgoingEvent]] = []
    next_group: dict[str, int] = {}
    for event in events:
        key = event.call_id or f"tenant {event.tenant}"
        number = next_group.get(key, 0)
        while number < len(groups) and len(groups[number]) >= size:
            number += 1
        if number == len(groups):
            groups.append([])
        groups[number].append(event)
        next_group[key] = number + 1
    yield from groups


async def _ignore_error(_: Exception) -> None:
    """Say nothing: every error also reaches the one who sends."""


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address
