"""What JSON gets in, and what is refused whole."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.errors import ParseFailed
from deputize.interfaces.json_body import read_json, read_json_off_loop

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=30,
)  # fmt: skip


@given(JSON, st.booleans(), st.sampled_from([None, 2]))
def test_every_clean_value_gets_in_however_it_is_written(value: object, ascii_only: bool, indent: int | None) -> None:
    assert read_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(), 200) == value


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"{} {}", b"nan", b"NaN", b"-Infinity", b"1e400", b"'a'", b"\xef\xbb\xbf{}", b'"\xff"', b"\x00{}",
        b'{"a": "\\u0000"}', b'{"\\u0000": 1}', b'["\x00"]', b'"\\ud800"', b'{"\\udfff": 1}', b'"\xed\xa0\x80"',
        b"9007199254740993", b"[-9007199254740992]", b"18446744073709551616", b"1" * 400,
        b'{"a": 1, "a": 2}', b'[{"b": {"a": 1, "a": 1}}]', b'{"a":1,"\\u0061":2}', b'{"a":"\\u0022\\u0022","a":1}',
        b"[" * 65 + b"]" * 65, b"[" * 1000 + b"]" * 1000, b'{"a":' * 100_000,
    ],
)  # fmt: skip
def test_poison_is_refused(body: bytes) -> None:
    with pytest.raises(ParseFailed):
        read_json(body, 64)


@pytest.mark.parametrize(
    "body",
    [
        b'"\\\\u0000"', b'"\\u0022"', b"[" * 64 + b"]" * 64, b"[[],[],[]]", b"9007199254740991",
        b"0.12345678901234567890", b'"1234567890123456789012"', b'{"a":{"x":1},"b":{"x":1}}', b"1e308", b'"{[{[{["',
    ],
)  # fmt: skip
def test_what_only_looks_like_poison_gets_in(body: bytes) -> None:
    assert read_json(body, 64) == json.loads(body)


async def test_a_body_of_many_small_values_is_refused_and_one_of_long_text_is_not() -> None:
    with pytest.raises(ParseFailed, match="more than 20,000 values"):
        await read_json_off_loop(b"[" + b",".join([b"{}"] * 20_001) + b"]", 64)
    text = b'"' + b"a,b,c\\n" * 60_000 + b'"'
    assert len(await read_json_off_loop(text, 64)) == 360_000


def test_many_names_of_which_the_last_repeats_take_no_longer_than_others() -> None:
    names = [f'"n{number}":1' for number in range(19_000)]
    body = ("{" + ",".join([*names, '"n18999":2']) + "}").encode()
    began_at = time.thread_time()
    with pytest.raises(ParseFailed, match="twice in one object"):
        read_json(body, 32)
    assert time.thread_time() - began_at < 2
