"""`deputize audit export` counts the entries that it wrote."""

import csv
import io

import pytest

from deputize.interfaces.cli.commands.audit.entries import _copy_chunks

pytestmark = pytest.mark.requirement("GOV-5")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_a_line_break_in_a_value_of_csv_is_no_entry(size: int) -> None:
    text = io.StringIO()
    rows = [["at", "reason"], ["1", 'one\ntwo "quoted"\n'], ["2", ""], ["3", '"'], ["4", "\n"]]
    csv.writer(text, lineterminator="\n").writerows(rows)
    content, copy = text.getvalue().encode(), io.BytesIO()
    chunks = (content[start : start + size] for start in range(0, len(content), size))
    assert _copy_chunks(chunks, copy, is_csv=True) == len(rows)
    assert copy.getvalue() == content


def test_each_line_of_json_is_an_entry() -> None:
    assert _copy_chunks(iter([b'{"a": "x', b'"}\n{"a": 1}\n']), io.BytesIO(), is_csv=False) == 2
