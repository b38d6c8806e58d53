"""Server-sent events, out of bytes that come in pieces.

Above: `http.py`. Only what MCP uses is kept: the data of an event, its id, and how long to wait before asking again.
"""

from collections.abc import Iterator

from deputize.core.errors import ResourceLimit
from deputize.core.frozen import frozen

# A longer pause than this is nobody's to ask for.
LONGEST_PAUSE_MS = 30_000


@frozen
class Event:
    data: bytes
    id: str | None


class Events:
    def __init__(self, most: int) -> None:
        self._most = most
        # The beginning of a line whose end has not come: added to, and looked through once, when it is whole.
        self._begun = bytearray()
        self._ends_half = False
        self._data: list[bytes] = []
        self._size = 0
        self._id: str | None = None
        # The newest id, and the pause the server asks for, for whoever has to come back.
        self.last_id: str | None = None
        self.pause_ms: int | None = None

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that are whole now. One without data is none, but its id counts."""
        for line in self._lines(data):
            if line:
                self._field(line)
            elif (event := self._whole()) is not None:
                yield event

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines that are whole now."""
        if self._ends_half:
            data = b"\r" + data
        # A carriage return at the end may be half of a line's end.
        self._ends_half = data.endswith(b"\r")
        if self._ends_half:
            data = data[:-1]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = data.split(b"\n")
        self._begun += first
        if self._size + len(self._begun) > self._most:
            raise ResourceLimit(f"one event of the answer is larger than {self._most} bytes")
        if not others:
            return []
        *whole, rest = bytes(self._begun), *others
        self._begun = bytearray(rest)
        return whole

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            # The line's own bytes count as well: there may be any number of lines that hold nothing.
            self._size += len(line)
            if self._size > self._most:
                raise ResourceLimit(f"one event of the answer is larger than {self._most} bytes")
        elif name == b"id" and b"\0" not in value and len(value) <= 1024:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            self.pause_ms = min(int(value[:9]), LONGEST_PAUSE_MS)

    def _whole(self) -> Event | None:
        if self._id is not None:
            self.last_id = self._id
        data, self._data, self._size = self._data, [], 0
        return Event(data=b"\n".join(data), id=self.last_id) if any(data) else None
