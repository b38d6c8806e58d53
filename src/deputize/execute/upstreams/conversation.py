"""What is said with one running program: many requests at once over one pair of pipes, told apart by their numbers.

Above: `stdio.py`, which starts programs and starts them again. Below: `program.py`.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from deputize.core.errors import Problem, UpstreamUnavailable
from deputize.core.mcp import PROGRESS_TOKEN, VERSION_UNSUPPORTED
from deputize.execute.upstreams.messages import (
    CHANGED,
    NEWS,
    Ask,
    Introduction,
    Refused,
    answer_to,
    canceled,
    discovered,
    initialize,
    notification,
    only_speaks_others,
    parsed,
    result_of,
    shaken,
)
from deputize.execute.upstreams.program import Program

# A program that knows nothing of today's protocol may leave the first question unanswered for so long.
_PROBE_SECONDS: Final = 5.0
# A program that left so many bytes unread is sent nothing more until it reads.
_MOST_UNREAD: Final = 16_777_216


class Conversation:
    """`ended` is called once, when the program has ended and nobody asked it to."""

    def __init__(self, program: Program, name: str, *, changed: Callable[[], None], ended: Callable[[], None]) -> None:
        self._program = program
        self._name = name
        self._changed = changed
        self._ended = ended
        self._numbers = count(1)
        self._waiting: dict[int, tuple[asyncio.Future[dict[str, Any]], Ask]] = {}
        self._modern = True
        self._introduction: Introduction | None = None
        self._listening: asyncio.Task[None] | None = None
        self._leaving = False
        self.open = True
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def pid(self) -> int:
        return self._program.pid

    @property
    def busy(self) -> bool:
        """Whether anybody waits for anything but news."""
        return any(ask.method != "subscriptions/listen" for _, ask in self._waiting.values())

    # Who the server is.

    async def introduce(self, *, probe: bool) -> Introduction:
        """The era and the server's own words, at the beginning of the conversation."""
        found = await self._probed() if probe else None
        if found is None:
            self._modern = False
            try:
                found = shaken(await self.ask(Ask(method="initialize", params=initialize())))
            except Refused as refused:
                if refused.code != VERSION_UNSUPPORTED:
                    raise
                # It had only been slow to say that it is of today.
                self._modern = True
                found = discovered(await self.ask(Ask(method="server/discover")))
                if found is None:
                    raise
            if not found.modern:
                self._say(notification("notifications/initialized"))
        self._introduction = found
        return found

    async def introduction(self) -> Introduction:
        """The server's own words as they are now; before today's protocol they cannot change while it runs."""
        known = self._introduction
        if known is not None and known.modern:
            known = self._introduction = discovered(await self.ask(Ask(method="server/discover")))
        if known is None:
            raise UpstreamUnavailable(f"the server {self._name} no longer says what it is", nothing_happened=True)
        return known

    async def _probed(self) -> Introduction | None:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return discovered(await self.ask(Ask(method="server/discover")))
        except TimeoutError:
            return None
        except Refused as refused:
            if only_speaks_others(refused):
                raise
            return None

    # Asking.

    async def ask(self, ask: Ask) -> dict[str, Any]:
        if not self.open:
            raise UpstreamUnavailable(f"the program of {self._name} has ended", nothing_happened=True)
        if self._program.unread > _MOST_UNREAD:
            raise UpstreamUnavailable(
                f"the program of {self._name} does not read what it is asked", nothing_happened=True
            )
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (future, ask)
        try:
            ask.sent = True
            self._program.write(ask.body(number, self._modern))
            await self._program.drained()
            return result_of(await future)
        except asyncio.CancelledError:
            if ask.method != "initialize":
                self._say(canceled(number))
            raise
        finally:
            del self._waiting[number]

    def _say(self, message: bytes) -> None:
        """What has no answer, to whoever still hears it; one that asks and does not read is not answered for ever."""
        if self.open and self._program.unread <= _MOST_UNREAD:
            self._program.write(message)

    def listen(self) -> None:
        """Hears of changes; before today's protocol they are told without being asked for."""
        if self._modern and (self._listening is None or self._listening.done()):
            self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        try:
            await self.ask(Ask(method="subscriptions/listen", params={"notifications": NEWS}))
        except (Problem, Refused):
            return

    # Hearing.

    async def _read(self) -> None:
        lost = f"the program of {self._name} ended before it answered"
        try:
            while line := await self._program.read():
                if line.strip():
                    self._hear(parsed(line))
        except UpstreamUnavailable as broken:
            # What is no message may be half of an answer: nothing after it can be relied on.
            lost = f"{broken.message}: {self._name}"
        finally:
            self._close(lost)

    def _close(self, why: str) -> None:
        """Nothing more is heard: whoever waits is told, and the program is ended, whatever it was that ended this."""
        if not self.open:
            return
        self.open = False
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(UpstreamUnavailable(why))
        if not self._leaving:
            self._ended()

    def _hear(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            number = message.get("id")
            future, _ = self._waiting.get(number, (None, None)) if isinstance(number, int) else (None, None)
            if future is not None and not future.done():
                future.set_result(message)
            return
        reply = answer_to(message)
        if reply is not None:
            self._say(reply)
        elif method in CHANGED:
            self._changed()
        elif method == "notifications/progress":
            params = message.get("params")
            token = params.get(PROGRESS_TOKEN) if isinstance(params, dict) else None
            if isinstance(token, int) and token in self._waiting:
                self._waiting[token][1].heard(method, params)

    async def end(self) -> None:
        """Ends the program, and with it every request that waits."""
        self._leaving = True
        if self._listening is not None:
            self._listening.cancel()
        await self._program.end()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def tell_of_end(self) -> None:
        self._program.tell_of_end()
