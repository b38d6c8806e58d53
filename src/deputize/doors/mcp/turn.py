"""One request on its way through the door: who asks, what, with which abilities, and how it is answered."""

import asyncio
from dataclasses import dataclass

from deputize.core.caller import Caller
from deputize.core.definition import Told
from deputize.doors.mcp.asked import Asked
from deputize.doors.mcp.listing import Lists
from deputize.doors.mcp.remembered import Remembered
from deputize.doors.mcp.reply import Reply
from deputize.doors.wire import Header, Headers
from deputize.lifecycle.gateway import Gateway


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    gateway: Gateway
    caller: Caller
    asked: Asked
    headers: Headers
    raw: list[Header]
    reply: Reply
    lists: Lists
    remembered: Remembered
    # Set when the server wants to stop: nobody is held any longer.
    closing: asyncio.Event

    @property
    def base(self) -> str:
        """The gateway's own address, as far as it knows it."""
        return self.gateway.settings.identity.public_url or ""

    def progress(self, told: Told) -> None:
        """How far a call is, to a client that wants to know. A part of a result is no such news."""
        if told.done is not None or told.message:
            self.tell_progress(told.done, told.total, told.message)

    def tell_progress(self, done: float | None, total: float | None, message: str) -> None:
        token = self.asked.progress_token
        if token is None:
            return
        params = {"progressToken": token, "progress": done or 0.0}
        if total is not None:
            params["total"] = total
        if message:
            params["message"] = message
        self.reply.notify("notifications/progress", params)
