"""One armed fault: what it waits for, which occurrence of it fires, and what is done then."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Action = Callable[[], Awaitable[None]]
Subject = TypeVar("Subject")
Point = TypeVar("Point", bound=str)


class FaultTrigger(Generic[Subject, Point]):
    """Fires once, at the nth subject that matches, counted from the moment of arming."""

    def __init__(self, match: Callable[[Subject], bool], nth: int, point: Point, action: Action) -> None:
        if nth < 1:
            raise ValueError(f"nth counts from 1, not {nth}")
        self.point = point
        self.match_count = 0
        self._match = match
        self._nth = nth
        self._action = action
        self._is_claimed = False
        self._completion = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def has_fired(self) -> bool:
        return self._completion.is_set()

    def try_claim(self, subject: Subject) -> bool:
        """Count the subject if it matches; true for exactly the nth."""
        if self._is_claimed or not self._match(subject):
            return False
        self.match_count += 1
        self._is_claimed = self.match_count == self._nth
        return self._is_claimed

    def discount(self, subject: Subject) -> None:
        """Take a subject back that was counted and turned out not to be one (its commit failed)."""
        if not self._is_claimed and self.match_count and self._match(subject):
            self.match_count -= 1

    def release(self) -> None:
        """The subject taken turned out not to be one (its commit failed): wait for the next."""
        self._is_claimed = False
        self.match_count -= 1

    async def fire(self) -> None:
        """Run the action; what it raises is kept for anyone who waits: a proxy's own task has no one to tell."""
        try:
            await self._action()
        except BaseException as failure:
            self._failure = failure
            if not isinstance(failure, Exception):
                raise
        finally:
            self._completion.set()

    async def wait(self, timeout: float = 120.0) -> None:
        """Return once the action has run; raise what it raised, or TimeoutError if it never came to that."""
        try:
            async with asyncio.timeout(timeout):
                await self._completion.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the armed point {self.point!r} was not reached within {timeout:g} s: "
                f"{self.match_count} of {self._nth} matching passed"
            ) from None
        if self._failure is not None:
            raise self._failure
