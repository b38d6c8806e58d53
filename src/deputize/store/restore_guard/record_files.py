"""Keep records of what was committed in small files outside the database, one for each process of a machine.

A record is written for every batch of commits, without waiting for the disk: it outlives the process, also if that is
killed. A file holds the last two records, written in turns, so that a machine that loses power leaves one of them
whole.
"""

import contextlib
import fcntl
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import orjson

from deputize.core.config_error import ConfigError

_RECORD_BYTES = 1024
_MAX_FILES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageRecord:
    """What a process knows of the database: its lineage, an entry that it committed, and the sum of all epochs."""

    lineage: str
    server: str | None = None
    timeline: str | None = None
    epoch_sum: int = 0
    tenant: str | None = None
    entry_id: str | None = None


class RecordFile:
    """The file of this process, locked while it runs. `previous` is the record of the process that had it before."""

    def __init__(self, path: Path, descriptor: int, sequence: int, previous: LineageRecord | None) -> None:
        self.path = path
        self.previous = previous
        self._descriptor = descriptor
        self._sequence = sequence
        self._is_dirty = False

    def write(self, record: LineageRecord) -> None:
        """Write a record over the older of the two."""
        self._sequence += 1
        os.pwrite(self._descriptor, _encode(record, self._sequence), self._sequence % 2 * _RECORD_BYTES)
        self._is_dirty = True

    def flush(self) -> None:
        """Wait until the newest record is on the disk."""
        if self._is_dirty:
            self._is_dirty = False
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Write to the disk and release the file."""
        with contextlib.suppress(OSError):
            self.flush()
        os.close(self._descriptor)


def open_record_file(folder: Path) -> tuple[RecordFile, list[LineageRecord]]:
    """Take a file that no other process has, and read the records in all other files."""
    record_file: RecordFile | None = None
    records = []
    try:
        # By default it is in the state folder, which holds the master key, too.
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in _list_paths(folder):
            if record_file is not None and not path.exists():
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            is_own = record_file is None and _try_lock(descriptor)
            newest = _decode_newest(path, os.pread(descriptor, 2 * _RECORD_BYTES, 0))
            sequence, record = (0, None) if newest is None else newest
            if is_own:
                record_file = RecordFile(path, descriptor, sequence, record)
                continue
            os.close(descriptor)
            if record is not None:
                records.append(record)
    except OSError as error:
        raise ConfigError(
            f"The records of the database's lineage in {folder} cannot be written ({error.strerror}): set "
            "lineage_folder under [database] in deputize.toml to a folder that stays and that this user may write."
        ) from error
    if record_file is None:
        raise ConfigError(f"All {_MAX_FILES} files in {folder} are in use: set lineage_folder for each project.")
    return record_file, records


def read_records(folder: Path) -> list[LineageRecord]:
    """Read the records of all processes of this machine."""
    newest_records = [_decode_newest(path, path.read_bytes()) for path in _list_paths(folder) if path.exists()]
    return [each[1] for each in newest_records if each is not None]


def _list_paths(folder: Path) -> list[Path]:
    return [folder / str(number) for number in range(_MAX_FILES)]


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _encode(record: LineageRecord, sequence: int) -> bytes:
    # Not asdict, which takes longer than the rest: a record is written for each batch of commits.
    body = orjson.dumps(
        {
            "sequence": sequence, "lineage": record.lineage, "server": record.server, "timeline": record.timeline,
            "epoch_sum": record.epoch_sum, "tenant": record.tenant, "entry_id": record.entry_id,
        }
    )  # fmt: skip
    return (b"%08x " % zlib.crc32(body) + body).ljust(_RECORD_BYTES - 1) + b"\n"


def _decode_newest(path: Path, content: bytes) -> tuple[int, LineageRecord] | None:
    halves = (content[:_RECORD_BYTES], content[_RECORD_BYTES : 2 * _RECORD_BYTES])
    whole_records = [each for each in map(_decode, halves) if each is not None]
    if not whole_records and content.strip(b"\0 \n"):
        raise ConfigError(
            f"The record of the database's lineage in {path} is damaged, so it is not known what the database must "
            "contain. Check that it was not restored to an earlier time, then delete the file."
        )
    return max(whole_records, key=lambda each: each[0], default=None)


def _decode(half: bytes) -> tuple[int, LineageRecord] | None:
    checksum, _, body = half.rstrip(b" \n").partition(b" ")
    if not body or checksum != b"%08x" % zlib.crc32(body):
        return None
    fields = orjson.loads(body)
    return fields.pop("sequence"), LineageRecord(**fields)
