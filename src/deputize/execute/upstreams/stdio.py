"""Servers that are programs, started here and spoken to over their own input and output: one program per credential.

A program that ends by itself is started again when it is next needed, at once the first time and then after pauses that
grow. Whoever waits for a program to start may give up; the program starts all the same, for the next one.

Above: `servers.py`. Below: `conversation.py` and `program.py`.
"""

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from deputize.core.clock import Clock
from deputize.core.errors import Problem, UpstreamTimeout, UpstreamUnavailable
from deputize.core.settings import McpServer
from deputize.execute.upstreams.conversation import Conversation
from deputize.execute.upstreams.messages import Ask, Introduction, Refused
from deputize.execute.upstreams.program import Program, start

# Programs of one server at once, each for another credential.
MOST_PROGRAMS: Final = 32
# A program for a credential that nobody used for so long is ended when another one is started.
_IDLE_SECONDS: Final = 300.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
# A program that ran for so long did not fail to start.
_STEADY_SECONDS: Final = 60.0


@dataclass(kw_only=True, slots=True)
class _Place:
    """Where the program for one credential runs, or will."""

    talk: Conversation | None = None
    starting: "asyncio.Task[Conversation] | None" = None
    began: float = 0.0
    used: float = 0.0
    failures: int = 0
    not_before: float = 0.0


class Programs:
    def __init__(self, server: McpServer, clock: Clock, *, key: bytes, changed: Callable[[], None]) -> None:
        self._server = server
        self._clock = clock
        self._key = key
        self._changed = changed
        self._places: OrderedDict[bytes, _Place] = OrderedDict()
        self._endings: set[asyncio.Task[None]] = set()
        # A program that ends when it is asked in today's protocol is not asked in it again.
        self._probe = True
        self._closed = False

    async def introduce(self, secret: str | None) -> Introduction:
        return await (await self._running(secret)).introduction()

    async def ask(self, ask: Ask) -> dict[str, Any]:
        talk = await self._running(ask.secret)
        return await talk.ask(ask)

    def listen(self, secret: str | None) -> None:
        place = self._places.get(self._name(secret))
        if place is not None and place.talk is not None:
            place.talk.listen()

    @property
    def pids(self) -> list[int]:
        """The wardens of the programs that run now."""
        return [place.talk.pid for place in self._places.values() if place.talk is not None and place.talk.open]

    async def aclose(self) -> None:
        self._closed = True
        starting = [place.starting for place in self._places.values() if place.starting is not None]
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        for place in self._places.values():
            self._end(place)
        self._places.clear()
        await asyncio.gather(*self._endings, return_exceptions=True)

    async def _running(self, secret: str | None) -> Conversation:
        """The program for a credential, started if it does not run."""
        name, now = self._name(secret), self._clock.monotonic()
        place = self._places.get(name)
        if place is None:
            self._make_room(now)
            place = self._places[name] = _Place()
        self._places.move_to_end(name)
        place.used = now
        if place.talk is not None and place.talk.open:
            return place.talk
        if place.starting is None:
            self._require_time(place, now)
            place.starting = asyncio.get_running_loop().create_task(self._start(place, secret))
            place.starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(place.starting)

    def _require_time(self, place: _Place, now: float) -> None:
        if self._closed:
            raise UpstreamUnavailable("this gateway is stopping", nothing_happened=True)
        if now < place.not_before:
            raise UpstreamUnavailable(
                f"the program of {self._server.name} ended {place.failures} times in a row; it is started again later",
                retry_after_ms=int((place.not_before - now) * 1000) + 1,
                nothing_happened=True,
            )

    async def _start(self, place: _Place, secret: str | None) -> Conversation:
        seconds = self._server.start_seconds
        try:
            async with asyncio.timeout(seconds):
                place.talk = await self._talk(place, secret)
            return place.talk
        except TimeoutError as error:
            self._failed(place)
            raise UpstreamTimeout(
                f"the program of {self._server.name} did not introduce itself within {seconds:.3g} s",
                nothing_happened=True,
            ) from error
        except Refused as refused:
            self._failed(place)
            raise UpstreamUnavailable(refused.problem(self._server.name).message, nothing_happened=True) from refused
        except Problem as problem:
            self._failed(place)
            problem.nothing_happened = True
            raise
        finally:
            place.starting = None

    async def _talk(self, place: _Place, secret: str | None) -> Conversation:
        """A program that has introduced itself."""
        try:
            return await self._introduced(place, await start(self._server, secret), probe=self._probe)
        except UpstreamUnavailable as ended:
            if not self._probe or ended.nothing_happened:
                raise
        self._probe = False
        return await self._introduced(place, await start(self._server, secret), probe=False)

    async def _introduced(self, place: _Place, program: Program, *, probe: bool) -> Conversation:
        place.began = self._clock.monotonic()

        def ended() -> None:
            talk.tell_of_end()
            self._tidy(talk)
            if place.talk is talk:
                place.talk = None
                self._failed(place)
                self._changed()

        talk = Conversation(program, self._server.name, changed=self._changed, ended=ended)
        try:
            await talk.introduce(probe=probe)
        except BaseException:
            self._tidy(talk)
            raise
        return talk

    def _failed(self, place: _Place) -> None:
        """Counts an end that nobody asked for, and says when to try again."""
        now = self._clock.monotonic()
        place.failures = 1 if now - place.began >= _STEADY_SECONDS else place.failures + 1
        if place.failures > 1:
            most = min(_FIRST_PAUSE * 2 ** min(place.failures - 2, 16), _LONGEST_PAUSE)
            jitter = int.from_bytes(self._clock.random_bytes(4)) / 2**32
            place.not_before = now + most * (1 + jitter) / 2

    def _make_room(self, now: float) -> None:
        """Ends what nobody used for long, and, where there is no place left, what was used least recently."""
        for name, place in list(self._places.items()):
            if name and place.starting is None and now - place.used > _IDLE_SECONDS and not _is_busy(place):
                self._end(self._places.pop(name))
        if len(self._places) < MOST_PROGRAMS:
            return
        free = (name for name, place in self._places.items() if place.starting is None and not _is_busy(place))
        oldest = next(free, None)
        if oldest is None:
            raise UpstreamUnavailable(
                f"{MOST_PROGRAMS} programs of {self._server.name} are at work already", nothing_happened=True
            )
        self._end(self._places.pop(oldest))

    def _end(self, place: _Place) -> None:
        talk, place.talk = place.talk, None
        if talk is not None:
            self._tidy(talk)

    def _tidy(self, talk: Conversation) -> None:
        task = asyncio.get_running_loop().create_task(talk.end())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _name(self, secret: str | None) -> bytes:
        """Names a credential without keeping it."""
        return b"" if secret is None else hmac.digest(self._key, secret.encode(), "sha256")


def _is_busy(place: _Place) -> bool:
    return place.talk is not None and place.talk.open and place.talk.busy
