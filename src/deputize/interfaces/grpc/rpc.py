"""Carry one RPC through its method: the metadata, the one message that it sends, and what it is answered with.

The methods are registered as streams of bytes, although most take and return one message: on the wire there is no
difference, and this way a caller is known before its message is read, and a message has a time in which it must arrive.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from deputize.core.contract.tools import ToolProgress
from deputize.core.errors import MalformedRequest, ParseFailed
from deputize.interfaces.grpc.request_fields import parse_message
from deputize.interfaces.grpc.status import Metadata

_MAX_REPORTS: Final = 64

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rpc:
    """One RPC. `context` is gRPC's own object for it."""

    context: Any
    metadata: dict[str, bytes]
    trace_id: str
    body_timeout_seconds: float

    @property
    def authorization(self) -> bytes | None:
        return self.metadata.get("authorization")

    @property
    def remaining_seconds(self) -> float | None:
        """What is left of the client's deadline; None if it set none."""
        seconds: float | None = self.context.time_remaining()
        return seconds

    async def read_message(self, kind: type[M]) -> M:
        """Read the request's message, within its time."""
        try:
            async with asyncio.timeout(self.body_timeout_seconds):
                data = await self.context.read()
        except TimeoutError:
            raise MalformedRequest(f"the message took longer than {self.body_timeout_seconds:g} s") from None
        if not isinstance(data, bytes):
            raise ParseFailed("the RPC carries no message, or one that is too large")
        return parse_message(kind, data)

    async def send_message(self, message: Message) -> None:
        """Send a message of the response, and wait until the client reads.

        gRPC can end no RPC whose answer is unread. So there is no time limit, and the caller's slot is kept meanwhile:
        a client that does not read takes from the requests of its own caller.
        """
        await self.context.write(message.SerializeToString())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self.context.set_trailing_metadata(metadata)


class ProgressReports:
    """What a tool reports while its call runs; the last reports, if the client reads too slowly for all of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reports: deque[ToolProgress] = deque(maxlen=_MAX_REPORTS)
        self._has_news = asyncio.Event()

    def add_report(self, progress: ToolProgress) -> None:
        """Add a report, from any thread."""
        self._reports.append(progress)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._has_news.set)

    async def follow(self, call: "asyncio.Future[Any]") -> AsyncIterator[ToolProgress]:
        """Yield the reports until the call has ended."""
        call.add_done_callback(lambda _: self._has_news.set())
        while not call.done() or self._reports:
            while self._reports:
                yield self._reports.popleft()
            self._has_news.clear()
            if not call.done() and not self._reports:
                await self._has_news.wait()
