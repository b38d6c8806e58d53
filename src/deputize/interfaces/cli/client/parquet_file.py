"""Write exported audit entries as Parquet: a row group at a time, so that memory stays flat however much there is.

The gateway sends JSON lines, as for `--format jsonl`; the file is made here, so that gateways need no `pyarrow`.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from typing import Any, BinaryIO, Final

from deputize.core.config_error import ConfigError

_TEXT_COLUMNS: Final = (
    "id", "kind", "user", "tool", "version", "decision", "outcome", "error", "session", "trace", "call", "approval",
    "command", "subject",
)  # fmt: skip
_NUMBER_COLUMNS: Final = ("latency_us", "cost_micros")
_LIST_COLUMNS: Final = ("agents", "rules", "caller")
# What the gateway says about an entry, in place of what the entry has under this name.
_FACTS: Final = ("id", "user", "agents", "decision")
_MAX_GROUP_ROWS: Final = 20_000
_MAX_GROUP_BYTES: Final = 16 * 2**20
_MAX_LINE_BYTES: Final = 16 * 2**20
# The bytes of the entry follow it; inside a text, its quotes would be escaped.
_ENTRY_MARK: Final = b',"entry":'


class ParquetFile:
    """A Parquet file with a row for each audit entry; takes the bytes of JSON lines, wherever they are cut."""

    def __init__(self, file: BinaryIO) -> None:
        self._arrow, parquet = _load_library()
        self._schema = self._build_schema()
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rest = b""
        self._rows: list[dict[str, Any]] = []
        self._row_bytes = 0

    def write(self, chunk: bytes) -> None:
        """Add the lines that are complete, and write a row group when there are enough."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ConfigError("The gateway sent a line that is no audit entry: check the URL, and export again.")
        for line in lines:
            self._rows.append(_build_row(line))
            self._row_bytes += len(line)
            if len(self._rows) >= _MAX_GROUP_ROWS or self._row_bytes >= _MAX_GROUP_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write the rows that were added since the last row group."""
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows, self._row_bytes = [], 0

    def close(self) -> None:
        """Write the rest and the footer, without which the file cannot be read."""
        self.flush()
        self._writer.close()

    def _build_schema(self) -> Any:
        arrow = self._arrow
        fields: Iterator[tuple[str, Any]] = iter(
            [
                ("time", arrow.timestamp("ms", tz="UTC")),
                *((name, arrow.string()) for name in _TEXT_COLUMNS),
                *((name, arrow.int64()) for name in _NUMBER_COLUMNS),
                *((name, arrow.list_(arrow.string())) for name in _LIST_COLUMNS),
                ("entry", arrow.binary()),
            ]
        )
        return arrow.schema(list(fields))


def require_parquet() -> None:
    """Raise `ConfigError` with what to install, before anything is exported."""
    _load_library()


def _load_library() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(
            "Parquet needs pyarrow, which is not installed: run pip install 'deputize[parquet]', or use --format jsonl."
        ) from None


def _build_row(line: bytes) -> dict[str, Any]:
    """Build a row of a line. `entry` has the bytes that are stored, which the log's hashes are of."""
    try:
        document: dict[str, Any] = json.loads(line)
        entry: dict[str, Any] = document["entry"]
        facts = {**entry, **{name: document.get(name) for name in _FACTS}}
        row: dict[str, Any] = {name: facts.get(name) for name in (*_TEXT_COLUMNS, *_NUMBER_COLUMNS)}
        row |= {name: [each or "" for each in facts.get(name) or ()] for name in _LIST_COLUMNS}
        row["time"] = datetime.fromisoformat(entry["time"])
        row["entry"] = line.partition(_ENTRY_MARK)[2].removesuffix(b"}")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError("The gateway sent a line that is no audit entry: check the URL, and export again.") from None
    return row
