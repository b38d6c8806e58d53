"""Split a JSON value into chunks of bounded size, with an index by which any part is found without the rest.

Texts are cut into pieces of equal length. Lists and objects become runs of small members in one chunk each; a large
member is split likewise. What is too deep or has odd names is stored as JSON text, and can be read as text.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

import orjson

CHUNK_BYTES: Final = 65_536
# Characters of one chunk of text; in UTF-8 at most four times as many bytes.
TEXT_LENGTH: Final = 32_768
_MAX_DEPTH: Final = 8
_MAX_NAME_LENGTH: Final = 1_000
_CONTAINERS: Final = (dict, list, tuple)

Index = dict[str, Any]


def split_value(value: Any) -> Generator[bytes, None, Index]:
    """Yield the chunks of a value in their order, and return the index."""
    return (yield from _Splitter().split(value, 0))


class _Splitter:
    """Numbers the chunks of one document."""

    def __init__(self) -> None:
        self._chunk_count = 0

    def split(self, value: Any, depth: int) -> Generator[bytes, None, Index]:
        if isinstance(value, str):
            if len(value) > TEXT_LENGTH:
                return (yield from self._split_text(value, "text"))
        elif isinstance(value, dict):
            if value and depth < _MAX_DEPTH and max(map(len, value)) <= _MAX_NAME_LENGTH:
                return (yield from self._split_object(value, depth))
        elif isinstance(value, list | tuple) and value and depth < _MAX_DEPTH:
            return (yield from self._split_list(value, depth))
        json_bytes = orjson.dumps(value)
        if len(json_bytes) > CHUNK_BYTES:
            return (yield from self._split_text(json_bytes.decode(), "json"))
        return {"type": "value", "chunk": (yield from self._add_chunk(json_bytes))}

    def _add_chunk(self, chunk: bytes) -> Generator[bytes, None, int]:
        yield chunk
        self._chunk_count += 1
        return self._chunk_count - 1

    def _split_text(self, text: str, kind: str) -> Generator[bytes, None, Index]:
        first = self._chunk_count
        for start in range(0, len(text), TEXT_LENGTH):
            yield from self._add_chunk(text[start : start + TEXT_LENGTH].encode())
        return {"type": kind, "length": len(text), "chunk": first}

    def _split_list(self, items: list[Any] | tuple[Any, ...], depth: int) -> Generator[bytes, None, Index]:
        parts = yield from self._split_members(enumerate(items), depth, is_object=False)
        return {"type": "list", "length": len(items), "parts": [[position, part] for position, _, part in parts]}

    def _split_object(self, members: dict[str, Any], depth: int) -> Generator[bytes, None, Index]:
        # Sorted, so that a name is found without looking at all of them.
        names = sorted(members)
        parts = yield from self._split_members(((each, members[each]) for each in names), depth, is_object=True)
        return {"type": "object", "length": len(members), "parts": [list(each) for each in parts]}

    def _split_members(
        self, members: Iterable[tuple[Any, Any]], depth: int, *, is_object: bool
    ) -> Generator[bytes, None, list[tuple[int, Any, Any]]]:
        """Return the parts: the position and name of their first member, and the chunk or index of what they hold."""
        parts: list[tuple[int, Any, Any]] = []
        run: list[bytes] = []
        run_size, run_start = 0, (0, "")
        for position, (name, value) in enumerate(members):
            json_bytes = _encode_member(name, value, is_object=is_object)
            if run and (json_bytes is None or run_size + len(json_bytes) > CHUNK_BYTES):
                parts.append((*run_start, (yield from self._add_chunk(_join_run(run, is_object=is_object)))))
                run, run_size = [], 0
            if json_bytes is None:
                parts.append((position, name, (yield from self.split(value, depth + 1))))
                continue
            if not run:
                run_start = (position, name)
            run.append(json_bytes)
            run_size += len(json_bytes) + 1
        if run:
            parts.append((*run_start, (yield from self._add_chunk(_join_run(run, is_object=is_object)))))
        return parts


def _encode_member(name: Any, value: Any, *, is_object: bool) -> bytes | None:
    """Encode a member; None if it is larger than a chunk and has to be split."""
    if isinstance(value, str):
        if len(value) > CHUNK_BYTES:
            return None
    elif isinstance(value, _CONTAINERS) and _is_surely_large(value):
        return None
    json_bytes = orjson.dumps({name: value})[1:-1] if is_object else orjson.dumps(value)
    return json_bytes if len(json_bytes) <= CHUNK_BYTES else None


def _is_surely_large(value: dict[str, Any] | list[Any] | tuple[Any, ...]) -> bool:
    """Tell whether a value is larger than a chunk even if each of its characters and numbers takes one byte.

    Encoding holds the interpreter's lock, so a large value must not be encoded once more at each of its levels.
    """
    size, containers = 0, [value]
    while containers:
        container = containers.pop()
        # A member is at least a character and a comma.
        size += 2 * len(container)
        if size > CHUNK_BYTES:
            return True
        if isinstance(container, dict):
            size += sum(map(len, container))
            members: Iterable[Any] = container.values()
        else:
            members = container
        for each in members:
            if isinstance(each, str):
                size += len(each)
            elif isinstance(each, _CONTAINERS):
                containers.append(each)
        if size > CHUNK_BYTES:
            return True
    return False


def _join_run(run: list[bytes], *, is_object: bool) -> bytes:
    return (b"{%b}" if is_object else b"[%b]") % b",".join(run)


class ChunkSource:
    """The chunks of a value, batch by batch, and its index once all were taken."""

    def __init__(self, value: Any) -> None:
        self._chunks = self._run(split_value(value))
        self.index: Index = {}

    def take_batch(self, size: int) -> list[bytes]:
        """Take chunks of about this many bytes together; an empty list says that there are no more."""
        batch: list[bytes] = []
        batch_size = 0
        for chunk in self._chunks:
            batch.append(chunk)
            batch_size += len(chunk)
            if batch_size >= size:
                break
        return batch

    def _run(self, chunks: Generator[bytes, None, Index]) -> Iterator[bytes]:
        self.index = yield from chunks
