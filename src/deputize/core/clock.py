"""Provide time and randomness, injected wherever logic depends on them, and the ids made from both."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from deputize.core.errors import DeadlineExceeded
from deputize.core.value_types import frozen

# The first digit of a UUID's fourth group carries its variant in the upper two bits.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_PAGE_BYTES = 4096
# Ids, salts and nonces, of which every call needs several. What is longer may be a key, and is never kept in a page.
_MAX_PAGED_BYTES = 16


class _RandomPage(threading.local):
    """Random bytes of the system, a page for each thread: reading them for each id takes longer than the id itself."""

    def __init__(self) -> None:
        self.page = b""
        self.at = _PAGE_BYTES


_random_page = _RandomPage()


def _draw_random(count: int) -> bytes:
    if count > _MAX_PAGED_BYTES:
        return os.urandom(count)
    page = _random_page
    start = page.at
    if start + count > _PAGE_BYTES:
        page.page, start = os.urandom(_PAGE_BYTES), 0
    page.at = start + count
    return page.page[start : start + count]


def _drop_page() -> None:
    _random_page.at = _PAGE_BYTES


# A child process must not repeat what its parent goes on to use.
os.register_at_fork(after_in_child=_drop_page)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """One source of time and randomness. `monotonic` measures, `epoch_ms` labels; neither decides durable facts."""

    monotonic: Callable[[], float] = time.monotonic
    epoch_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    random_bytes: Callable[[int], bytes] = _draw_random

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.epoch_ms() / 1000, UTC)

    def new_id(self) -> str:
        """Make a UUIDv7 as text. It starts with the time, so tables partitioned by id are partitioned by day."""
        text = f"{self.epoch_ms():012x}{self.random_bytes(10).hex()}"
        return f"{text[:8]}-{text[8:12]}-7{text[12:15]}-{_VARIANT[text[15]]}{text[16:19]}-{text[19:31]}"


@frozen
class Deadline:
    """A moment on the monotonic clock after which the caller no longer waits."""

    at: float

    @classmethod
    def after(cls, seconds: float, now: float) -> "Deadline":
        return cls(at=now + seconds)

    def remaining_seconds(self, now: float) -> float:
        return self.at - now

    def require_time_left(self, now: float) -> None:
        if self.at <= now:
            raise DeadlineExceeded("the deadline passed before the tool started; nothing was changed")


def parse_id_time_ms(uuid7: str) -> int:
    """Read the millisecond in which a UUIDv7 was made."""
    return int(uuid7[:8] + uuid7[9:13], 16)


def make_first_id(ms: int) -> str:
    """Return the smallest UUIDv7 of a millisecond; no id is older than 1970."""
    time = f"{max(ms, 0):012x}"
    return f"{time[:8]}-{time[8:]}-0000-0000-000000000000"
