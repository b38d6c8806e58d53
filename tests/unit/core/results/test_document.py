"""Any document can be put together again from its chunks, and no part of it is encoded again at each level."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deputize.core.results.document import CHUNK_BYTES, TEXT_LENGTH, Index, split_value

pytestmark = pytest.mark.requirement("INV-10")


def split(value: Any) -> tuple[list[bytes], Index]:
    chunks, source = list[bytes](), split_value(value)
    while True:
        try:
            chunks.append(next(source))
        except StopIteration as end:
            return chunks, end.value


def join(chunks: list[bytes], index: Index) -> Any:
    """Put a value together from its chunks."""
    if index["type"] == "value":
        return orjson.loads(chunks[index["chunk"]])
    if index["type"] in ("text", "json"):
        count = -(-index["length"] // TEXT_LENGTH)
        text = b"".join(chunks[index["chunk"] : index["chunk"] + count]).decode()
        assert len(text) == index["length"]
        return text if index["type"] == "text" else orjson.loads(text)
    members: dict[str, Any] = {}
    items: list[Any] = []
    for position, *name, part in index["parts"]:
        is_run = isinstance(part, int)
        content = orjson.loads(chunks[part]) if is_run else join(chunks, part)
        if index["type"] == "object":
            assert len(members) == position
            members |= content if is_run else {name[0]: content}
        else:
            assert len(items) == position
            items += content if is_run else [content]
    value = members if index["type"] == "object" else items
    assert len(value) == index["length"]
    return value


# Lengths around those at which a value is split, of characters that take one to six bytes.
_LENGTHS = st.sampled_from((0, 1, 20, TEXT_LENGTH, TEXT_LENGTH + 1, CHUNK_BYTES - 3, CHUNK_BYTES, CHUNK_BYTES + 1))
_TEXTS = st.builds(lambda character, length: character * length, st.sampled_from('aä→😀"\x00'), _LENGTHS)
_NUMBERS = st.builds(
    lambda number, count: [number] * count, st.sampled_from((0, 1.5, 2**50)), st.sampled_from((0, 3, 9_000, 33_000))
)
_NAMES = st.sampled_from(("", "a", "ä", "b/c", "name", "n" * 1_000, "m" * 1_001))
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | _TEXTS | _NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None)
@given(_DOCUMENTS, st.integers(0, 10))
def test_any_document_is_the_same_once_it_was_split(document: Any, depth: int) -> None:
    for level in range(depth):
        document = {"inner": document} if level % 2 else [document]
    chunks, index = split(document)
    assert join(chunks, index) == document
    assert max(map(len, chunks)) <= 4 * TEXT_LENGTH


@pytest.mark.parametrize("is_object", [True, False])
def test_a_large_value_is_encoded_once_however_deep_it_is(monkeypatch: pytest.MonkeyPatch, is_object: bool) -> None:
    document: Any = [{"id": number, "text": "x" * 60} for number in range(20_000)]
    for _ in range(7):
        document = {"inner": document} if is_object else [document]
    encode, sizes = orjson.dumps, list[int]()

    def encode_and_count(value: Any) -> bytes:
        json_bytes = encode(value)
        sizes.append(len(json_bytes))
        return json_bytes

    size = len(encode(document))
    monkeypatch.setattr(orjson, "dumps", encode_and_count)
    split(document)
    assert max(sizes) <= CHUNK_BYTES
    assert sum(sizes) <= size
