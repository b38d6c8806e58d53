"""One armed fault: what it waits for, which occurrence of it fires, and what is done then.

Above: the PostgreSQL proxy and the client proxy, which ask it at each commit or request that passes.
Below: nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Action = Callable[[], Awaitable[None]]
Subject = TypeVar("Subject")
Point = TypeVar("Point", bound=str)


class Armed(Generic[Subject, Point]):
    """Fires once, at the nth subject that matches, counted from the moment of arming."""

    def __init__(self, match: Callable[[Subject], bool], nth: int, point: Point, action: Action) -> None:
        if nth < 1:
            raise ValueError(f"nth counts from 1, not {nth}")
        self.point = point
        self.seen = 0
        self._match = match
        self._nth = nth
        self._action = action
        self._taken = False
        self._done = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def fired(self) -> bool:
        return self._done.is_set()

    def takes(self, subject: Subject) -> bool:
        """Count the subject if it matches; true for exactly the nth."""
        if self._taken or not self._match(subject):
            return False
        self.seen += 1
        self._taken = self.seen == self._nth
        return self._taken

    def give_back(self) -> None:
        """The subject taken turned out not to be one (its commit failed): wait for the next."""
        self._taken = False
        self.seen -= 1

    async def fire(self) -> None:
        """Run the action; what it raises is kept for whoever waits: a proxy's own task has nobody to tell."""
        try:
            await self._action()
        except BaseException as failure:
            self._failure = failure
            if not isinstance(failure, Exception):
                raise
        finally:
            self._done.set()

    async def wait(self, timeout: float = 120.0) -> None:
        """Return once the action has run; raise what it raised, or TimeoutError if it never came to that."""
        try:
            async with asyncio.timeout(timeout):
                await self._done.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the armed point {self.point!r} was not reached within {timeout:g} s: "
                f"{self.seen} of {self._nth} matching passed"
            ) from None
        if self._failure is not None:
            raise self._failure
