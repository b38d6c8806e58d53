"""Audit entries become rows of a Parquet file, in row groups, wherever the bytes of their lines are cut."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client import parquet_file
from deputize.interfaces.cli.client.parquet_file import ParquetFile, require_parquet

parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'deputize[parquet]'")


def make_entry(number: int) -> bytes:
    # Written as no encoder would, so that bytes which were parsed and encoded again would differ.
    return (
        b'{"call": "c-%d",  "caller":["p1","p2"],"id":"i-%d","kind":"read","latency_us":%d,"outcome":"succeeded",'
        b'"rules":["a","b"],"time":"2026-11-17T08:00:00.250Z","tool":"crm.get"}' % (number, number, number)
    )


def make_line(number: int, user: str | None = 'An,"entry":a') -> bytes:
    facts = {"id": f"i-{number}", "user": user, "agents": ["bot", None], "decision": "allow"}
    return json.dumps(facts).encode()[:-1] + b',"entry":' + make_entry(number) + b"}\n"


def cut(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def write_file(data: bytes, size: int) -> Any:
    file = io.BytesIO()
    writer = ParquetFile(file)
    for chunk in cut(data, size):
        writer.write(chunk)
    writer.close()
    return parquet.ParquetFile(io.BytesIO(file.getvalue()))


def test_each_line_is_a_row_and_the_bytes_of_the_entry_stay() -> None:
    found = write_file(b"".join(map(make_line, range(3))), 7).read().to_pylist()
    assert [row["entry"] for row in found] == [make_entry(number) for number in range(3)]
    first = found[0]
    assert (first["user"], first["agents"], first["rules"]) == ('An,"entry":a', ["bot", ""], ["a", "b"])
    assert (first["latency_us"], first["call"], first["approval"]) == (0, "c-0", None)
    assert first["time"] == datetime(2026, 11, 17, 8, 0, 0, 250_000, tzinfo=UTC)


def test_row_groups_bound_what_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_file, "_MAX_GROUP_ROWS", 100)
    found = write_file(b"".join(map(make_line, range(250))), 4096)
    assert [found.metadata.row_group(number).num_rows for number in range(found.num_row_groups)] == [100, 100, 50]
    monkeypatch.setattr(parquet_file, "_MAX_GROUP_BYTES", len(make_line(0)) * 10)
    assert write_file(b"".join(map(make_line, range(95))), 4096).num_row_groups >= 9


def test_an_export_of_nothing_is_a_file_without_rows() -> None:
    found = write_file(b"", 1)
    assert (found.metadata.num_rows, found.schema_arrow.names[0]) == (0, "time")


@pytest.mark.parametrize("line", [b"<html>\n", b"[]\n", b'{"id":"x"}\n', b'{"entry":{"time":"noon"}}\n'])
def test_what_is_no_entry_is_refused(line: bytes) -> None:
    with pytest.raises(ConfigError, match="no audit entry"):
        ParquetFile(io.BytesIO()).write(line)


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_file, "_MAX_LINE_BYTES", 1000)
    with pytest.raises(ConfigError, match="no audit entry"):
        ParquetFile(io.BytesIO()).write(b"x" * 1001)


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse_import(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(parquet_file, "import_module", refuse_import)
    with pytest.raises(ConfigError, match=r"pip install 'deputize\[parquet\]'"):
        require_parquet()
