"""Read a part of a stored result: find it by its path, and load only the chunks that hold it."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import orjson

from deputize.core.json_pointer import MISSING, find_value, is_place
from deputize.core.results.document import TEXT_LENGTH, Index
from deputize.core.results.outline import cut_value, describe_size, get_type_name, measure_length
from deputize.core.results.result_path import ResultPath
from deputize.core.value_types import frozen

LoadChunk = Callable[[int], Awaitable[bytes]]
# One read loads at most so many chunks; what is left is read with the next offset.
MAX_CHUNKS: Final = 64
_MAX_ITEMS: Final = 1_000


class PartNotFound(Exception):
    """The path leads to nothing."""


@frozen
class ResultPart:
    """A part of a result: `total` counts the items, members or characters at the path, `next_offset` is where the next
    read begins, None if this was the last. `is_cut` is True if a single item was too long and only begins here.
    """

    type: str
    value: Any
    offset: int
    total: int | None
    next_offset: int | None
    is_cut: bool = False


class _StoredPart:
    """A part that is not loaded yet, by its place in the index."""

    __slots__ = ("index",)

    def __init__(self, index: Index) -> None:
        self.index = index

    def describe(self) -> str:
        match self.index["type"]:
            case "list":
                return f"list of {self.index['length']} items"
            case "object":
                return f"object with {self.index['length']} members"
            case "value":
                return "value"
            case _:
                return f"text of {self.index['length']} characters"


class ResultReader:
    """Reads parts of one stored document."""

    def __init__(self, index: Index, load_chunk: LoadChunk) -> None:
        self._root = _StoredPart(index)
        self._load_chunk = load_chunk
        self._last_chunk: dict[int, bytes] = {}
        self._load_count = 0

    async def read(self, path: ResultPath, *, offset: int, limit: int | None, max_length: int) -> ResultPart:
        """Read what is at a path, from an offset on, in at most so many characters. Raises `PartNotFound`."""
        target = await self._find(self._root, path.steps)
        if path.each_steps is not None:
            return await self._read_members(target, offset, limit, max_length, path.each_steps)
        if isinstance(target, _StoredPart) and target.index["type"] in ("text", "json"):
            return await self._read_stored_text(target.index, offset, limit, max_length)
        if isinstance(target, str):
            return _slice_text(target, offset, limit, max_length)
        if isinstance(target, _StoredPart | list | dict):
            return await self._read_members(target, offset, limit, max_length, None)
        return ResultPart(type=get_type_name(target), value=target, offset=0, total=None, next_offset=None)

    async def _find(self, start: Any, steps: tuple[str, ...]) -> Any:
        """Find the end of the steps: a value, or a stored part that has to be read in parts."""
        part = start
        for number, step in enumerate(steps):
            if not isinstance(part, _StoredPart):
                return _require_found(find_value(part, steps[number:]))
            part = await self._take_step(part.index, step)
        if isinstance(part, _StoredPart) and part.index["type"] == "value":
            return orjson.loads(await self._load(part.index["chunk"]))
        return part

    async def _take_step(self, index: Index, step: str) -> Any:
        parts = index.get("parts")
        if parts is None:
            value = orjson.loads(await self._load(index["chunk"])) if index["type"] == "value" else None
            return _require_found(find_value(value, (step,)))
        if index["type"] == "list":
            if not is_place(step) or int(step) >= index["length"]:
                raise PartNotFound
            place = bisect_right(parts, int(step), key=lambda each: each[0]) - 1
            first, content = parts[place]
            return (
                _StoredPart(content)
                if isinstance(content, dict)
                else orjson.loads(await self._load(content))[int(step) - first]
            )
        place = bisect_right(parts, step, key=lambda each: each[1]) - 1
        if place < 0:
            raise PartNotFound
        _, name, content = parts[place]
        if isinstance(content, dict):
            if name != step:
                raise PartNotFound
            return _StoredPart(content)
        return _require_found(find_value(orjson.loads(await self._load(content)), (step,)))

    async def _read_stored_text(self, index: Index, offset: int, limit: int | None, max_length: int) -> ResultPart:
        total = index["length"]
        end = min(total, offset + min(limit or max_length, max_length))
        pieces = [
            (await self._load(index["chunk"] + number)).decode()
            for number in range(offset // TEXT_LENGTH, -(-end // TEXT_LENGTH))
        ]
        start = offset - offset // TEXT_LENGTH * TEXT_LENGTH
        kind = "text" if index["type"] == "text" else "JSON text"
        return _fit_text(kind, "".join(pieces)[start : start + max(end - offset, 0)], offset, total, max_length)

    async def _read_members(
        self, target: Any, offset: int, limit: int | None, max_length: int, each_steps: tuple[str, ...] | None
    ) -> ResultPart:
        """Read items of a list or members of an object until the limit or the length is reached."""
        is_object = isinstance(target, dict) or (isinstance(target, _StoredPart) and target.index["type"] == "object")
        total = _count_members(target)
        values: dict[str, Any] = {}
        member_count, length, is_cut = 0, 2, False
        most = min(limit or _MAX_ITEMS, _MAX_ITEMS)
        async for name, member in self._iterate_members(target, offset):
            if member_count >= most or (member_count and self._load_count >= MAX_CHUNKS):
                break
            value = member if each_steps is None else await self._find_member(member, each_steps)
            if isinstance(value, _StoredPart):
                value = f"… {value.describe()}: read it with its own path"
            if value is not MISSING:
                size = measure_length(value) + (measure_length(name) + 1 if is_object and each_steps is None else 0) + 1
                if length + size > max_length:
                    if values:
                        break
                    value, is_cut = _cut_or_describe(value, max_length - (size - measure_length(value)) - 2), True
                values[name] = value
                length += size
            member_count += 1
            if is_cut:
                break
        next_offset = offset + member_count if offset + member_count < total else None
        is_list_of_values = not is_object or each_steps is not None
        return ResultPart(
            type="list" if is_list_of_values else "object",
            value=list(values.values()) if is_list_of_values else values,
            offset=offset,
            total=total,
            next_offset=next_offset,
            is_cut=is_cut,
        )

    async def _find_member(self, member: Any, steps: tuple[str, ...]) -> Any:
        try:
            return await self._find(member, steps)
        except PartNotFound:
            return MISSING

    async def _iterate_members(self, target: Any, offset: int) -> AsyncIterator[tuple[str, Any]]:
        """Iterate over members from a position on, by their names; items of a list are named by their places."""
        if not isinstance(target, _StoredPart):
            for each in _list_members(target, 0)[offset:]:
                yield each
            return
        parts = target.index["parts"]
        first_part = max(bisect_right(parts, offset, key=lambda each: each[0]) - 1, 0)
        for position, *names, content in parts[first_part:]:
            if isinstance(content, dict):
                if position >= offset:
                    yield (names[0] if names else str(position)), _StoredPart(content)
                continue
            members = _list_members(orjson.loads(await self._load(content)), position)
            for each in members[max(offset - position, 0) :]:
                yield each

    async def _load(self, number: int) -> bytes:
        """Load a chunk; the last one is kept, because neighbours are often in it."""
        chunk = self._last_chunk.get(number)
        if chunk is None:
            self._load_count += 1
            chunk = await self._load_chunk(number)
            self._last_chunk = {number: chunk}
        return chunk


def _list_members(value: Any, first: int) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return [(str(place), each) for place, each in enumerate(value, first)]


def _count_members(target: Any) -> int:
    if isinstance(target, _StoredPart):
        if target.index["type"] not in ("list", "object"):
            raise PartNotFound
        return int(target.index["length"])
    if not isinstance(target, list | dict):
        raise PartNotFound
    return len(target)


def _require_found(value: Any) -> Any:
    if value is MISSING:
        raise PartNotFound
    return value


def _slice_text(text: str, offset: int, limit: int | None, max_length: int) -> ResultPart:
    end = offset + min(limit or max_length, max_length)
    return _fit_text("text", text[offset:end], offset, len(text), max_length)


def _fit_text(kind: str, piece: str, offset: int, total: int, max_length: int) -> ResultPart:
    """Shorten a piece whose escapes make it longer than allowed."""
    while piece and measure_length(piece) > max_length + 2:
        piece = piece[: max(1, len(piece) // 2)] if len(piece) > 1 else ""
    end = offset + len(piece)
    return ResultPart(type=kind, value=piece, offset=offset, total=total, next_offset=end if end < total else None)


def _cut_or_describe(value: Any, max_length: int) -> Any:
    part = cut_value(value, max(max_length, 40))
    return describe_size(value) if part is None else part
