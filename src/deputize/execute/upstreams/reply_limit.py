"""Limit how often a server that asks without end is replied to."""

from collections.abc import Callable
from typing import Final

MAX_REPLIES_PER_SECOND: Final = 16


class ReplyLimit:
    """Counts the replies during one request, second by second."""

    def __init__(self, get_time: Callable[[], float]) -> None:
        self._get_time = get_time
        self._second_began_at = get_time()
        self._reply_count = 0

    def count_reply(self) -> bool:
        """Count a reply; tell whether it may be sent."""
        now = self._get_time()
        if now - self._second_began_at >= 1:
            self._second_began_at, self._reply_count = now, 0
        self._reply_count += 1
        return self._reply_count <= MAX_REPLIES_PER_SECOND
