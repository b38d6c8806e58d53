"""Any part of a stored result is found again, and no more of it is loaded than the part needs."""

import random
from typing import Any

import pytest

from deputize.core.json_pointer import find_value
from deputize.core.results.document import CHUNK_BYTES, ChunkSource, Index
from deputize.core.results.outline import measure_length
from deputize.core.results.reader import MAX_CHUNKS, PartNotFound, ResultReader
from deputize.core.results.result_path import parse_path

pytestmark = pytest.mark.requirement("INV-10")


class Stored:
    """The chunks of a value, and which of them were loaded."""

    def __init__(self, value: Any) -> None:
        source, self.chunks = ChunkSource(value), list[bytes]()
        while batch := source.take_batch(100_000):
            self.chunks += batch
        self.index: Index = source.index
        self.loaded: list[int] = []

    async def load(self, number: int) -> bytes:
        self.loaded.append(number)
        return self.chunks[number]

    async def read(self, path: str = "", offset: int = 0, limit: int | None = None, max_length: int = 8_000) -> Any:
        self.loaded.clear()
        reader = ResultReader(self.index, self.load)
        return await reader.read(parse_path(path), offset=offset, limit=limit, max_length=max_length)


def make_rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"row {number}", "tags": ["a", "b"]} for number in range(count)]


async def test_all_items_of_a_long_list_are_read_page_by_page() -> None:
    rows = make_rows(20_000)
    stored = Stored({"rows": rows, "total": 20_000})
    assert len(stored.chunks) > 10
    assert max(map(len, stored.chunks)) <= CHUNK_BYTES + 1_000
    found: list[Any] = []
    offset: int | None = 0
    while offset is not None:
        part = await stored.read("/rows", offset, max_length=100_000)
        assert measure_length(part.value) <= 100_000
        assert part.total == 20_000
        found += part.value
        offset = part.next_offset
    assert found == rows


async def test_one_item_takes_one_chunk() -> None:
    stored = Stored(make_rows(20_000))
    part = await stored.read("/15000/name")
    assert part.value == "row 15000"
    assert len(stored.loaded) == 1


async def test_a_wildcard_reads_a_field_of_each_item() -> None:
    stored = Stored({"rows": [*make_rows(20_000), {"other": 1}]})
    part = await stored.read("$.rows[*].name", 10_000, 3)
    assert part.value == ["row 10000", "row 10001", "row 10002"]
    assert (part.next_offset, part.total) == (10_003, 20_001)
    last = await stored.read("$.rows[*].name", 19_999)
    assert (last.value, last.next_offset) == (["row 19999"], None)


async def test_a_long_text_is_read_by_characters() -> None:
    text = "".join(random.Random(1).choices('abcäöü→😀\n"', k=200_000))
    stored = Stored({"log": text})
    part = await stored.read("/log", 123_456, 2_000)
    assert part.value == text[123_456:125_456]
    assert part.next_offset == 125_456
    assert len(stored.loaded) <= 2
    whole, offset = "", 0
    while offset is not None:
        part = await stored.read("/log", offset, max_length=50_000)
        assert measure_length(part.value) <= 50_002
        whole, offset = whole + part.value, part.next_offset
    assert whole == text


@pytest.mark.parametrize("seed", range(20))
async def test_every_path_of_any_document_leads_to_its_value(seed: int) -> None:
    draw = random.Random(seed)
    document = make_document(draw, 4)
    stored = Stored(document)
    for steps in list_paths(document, ())[:200]:
        pointer = "".join("/" + each.replace("~", "~0").replace("/", "~1") for each in steps)
        expected = find_value(document, steps)
        if isinstance(expected, dict | list) or len(pointer) > 250:
            continue
        part = await stored.read(pointer, max_length=100_000)
        assert part.value == (expected[: len(part.value)] if isinstance(expected, str) else expected)


def make_document(draw: random.Random, depth: int) -> Any:
    match draw.randrange(5) if depth < 4 else draw.randrange(2):
        case 0 if depth:
            return [make_document(draw, depth - 1) for _ in range(draw.randrange(1, 12))]
        case 1 if depth:
            names = ("a", "b/c", "d~e", "ä", "key", "x" * 40, "0", "1", "")
            return {each: make_document(draw, depth - 1) for each in draw.sample(names, draw.randrange(1, 9))}
        case 2:
            return "ä" * draw.choice((3, 500, 40_000, 70_000))
        case 3:
            return draw.choice((None, True, 1.5, -3))
        case _:
            return draw.randrange(1_000)


def list_paths(document: Any, steps: tuple[str, ...]) -> list[tuple[str, ...]]:
    if isinstance(document, dict):
        children = [(str(name), each) for name, each in document.items()]
    elif isinstance(document, list):
        children = [(str(place), each) for place, each in enumerate(document)]
    else:
        return [steps]
    return [path for name, each in children for path in list_paths(each, (*steps, name))]


async def test_a_member_that_is_too_long_is_cut_and_says_where_to_read_on() -> None:
    stored = Stored([{"text": "x" * 20_000}, {"rows": make_rows(5_000)}])
    first = await stored.read("", 0, 1, 1_000)
    assert first.is_cut
    assert first.next_offset == 1
    assert measure_length(first.value) <= 1_000
    second = await stored.read("", 1, 1)
    assert second.value == ["… object with 1 members: read it with its own path"]


async def test_one_read_loads_a_bounded_number_of_chunks() -> None:
    stored = Stored([{"text": "x" * 60_000, "id": number} for number in range(300)])
    part = await stored.read("$[*].id", 0)
    assert len(stored.loaded) <= MAX_CHUNKS + 1
    assert part.value == list(range(len(part.value)))
    assert part.next_offset == len(part.value)


async def test_what_is_too_deep_to_be_split_is_read_as_text() -> None:
    document: Any = "x" * 100_000
    for _ in range(12):
        document = {"inner": document}
    stored = Stored(document)
    part = await stored.read("/inner" * 8, max_length=500)
    assert part.type == "JSON text"
    assert part.value.startswith('{"inner":{"inner"')
    with pytest.raises(PartNotFound):
        await stored.read("/inner" * 9)


@pytest.mark.parametrize(
    "path", ["/rows/99999", "/rows/01", "/rows/-1", "/missing", "/a", "/rows/0/name/x", "/zz", "$.total[*]"]
)
async def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(PartNotFound):
        await Stored({"rows": make_rows(20_000), "total": 1}).read(path)


@pytest.mark.parametrize("value", [{}, [], "", 0, None, "short", [1], {"a": 1}])
async def test_small_values_are_read_whole(value: Any) -> None:
    assert (await Stored(value).read()).value == value
