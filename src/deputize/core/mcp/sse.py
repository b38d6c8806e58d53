"""Parse server-sent events from bytes that arrive in pieces.

Keep only what MCP uses: the data of an event, its id, and how long to wait before reconnecting.
"""

from collections.abc import Iterator

from deputize.core.errors import ResourceLimitExceeded
from deputize.core.value_types import frozen

# A server may not ask for a longer pause than this.
LONGEST_PAUSE_MS = 30_000


@frozen
class ServerSentEvent:
    """One event with data."""

    data: bytes
    id: str | None


class SseParser:
    """Parser of one stream; raises `ResourceLimitExceeded` where an event is larger than `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # The start of an incomplete line: appended to, and parsed once when it is complete.
        self._partial_line = bytearray()
        self._has_trailing_cr = False
        self._data: list[bytes] = []
        self._size = 0
        self._id: str | None = None
        # The newest id and the pause the server requests, both for reconnecting.
        self.last_id: str | None = None
        self.pause_ms: int | None = None

    def parse_chunk(self, data: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events completed by this chunk. An event without data is skipped, but its id counts."""
        for line in self._split_lines(data):
            if line:
                self._parse_field(line)
            elif (event := self._take_event()) is not None:
                yield event

    def _split_lines(self, data: bytes) -> list[bytes]:
        """Return the lines completed by this chunk."""
        if self._has_trailing_cr:
            data = b"\r" + data
        # A carriage return at the end may be half of a line break.
        self._has_trailing_cr = data.endswith(b"\r")
        if self._has_trailing_cr:
            data = data[:-1]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = data.split(b"\n")
        self._partial_line += first
        if self._size + len(self._partial_line) > self._max_bytes:
            raise ResourceLimitExceeded(f"a server-sent event is larger than {self._max_bytes} bytes")
        if not others:
            return []
        *whole, rest = bytes(self._partial_line), *others
        self._partial_line = bytearray(rest)
        return whole

    def _parse_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            # Count the line's own bytes: an event may have any number of empty data lines.
            self._size += len(line)
            if self._size > self._max_bytes:
                raise ResourceLimitExceeded(f"a server-sent event is larger than {self._max_bytes} bytes")
        elif name == b"id" and b"\0" not in value and len(value) <= 1024:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            self.pause_ms = min(int(value[:9]), LONGEST_PAUSE_MS)

    def _take_event(self) -> ServerSentEvent | None:
        if self._id is not None:
            self.last_id = self._id
        data, self._data, self._size = self._data, [], 0
        return ServerSentEvent(data=b"\n".join(data), id=self.last_id) if any(data) else None
