"""Looks for secrets where none may be, in every spelling, with `grep`: many thousands of them in one pass over a file.

Above: `proofs.confused_deputy`. Below: GNU grep and, for tables, PostgreSQL's own binary copies, in which text, bytes,
JSON and arrays all stand as they are.
"""

import asyncio
import base64
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg

from proofs.kit.jws import decoded

# Long enough that none is met by chance, short enough that a truncated copy is found too.
_WINDOW = 24
_TABLES = """
    select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'm', 'p') and not c.relispartition
      and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
    order by 1, 2
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One secret in one place."""

    place: str
    what: str
    count: int

    def __str__(self) -> str:
        return f"{self.what} in {self.place}, {self.count} times"


class Needles:
    """What is looked for, each spelling with the name of what it is a spelling of."""

    def __init__(self) -> None:
        self._named: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._named)

    def add_token(self, name: str, token: str) -> None:
        """The id in its claims, and the signature in any spelling; much else is the same in many tokens."""
        parts = token.split(".")
        signature = decoded(parts[2])
        self._put(name, _id_part(parts[1]))
        self._put(name, parts[2][-_WINDOW:].encode())
        self.add_damaged(name, token)
        self._put(name, signature[:_WINDOW].hex().encode())
        self._put(name, signature[:_WINDOW].hex().upper().encode())
        self._put(name, base64.b64encode(signature)[:_WINDOW])
        self._put(name, _searchable(signature))

    def add_damaged(self, name: str, token: str) -> None:
        """What cannot be decoded is looked for as it is written."""
        self._put(name, token.split(".")[2][:_WINDOW].encode("latin-1"))

    def add_header(self, name: str, token: str) -> None:
        """However much of a token was cut off, it begins like this."""
        self._put(name, token.partition(".")[0].encode())

    def add_secret(self, name: str, secret: str) -> None:
        raw = secret.encode()
        for text in (secret, quote(secret, safe=""), raw.hex(), raw.hex().upper(), secret[::-1]):
            self._put(name, text.encode())
        for before in range(3):
            first, last = (0, 2, 3)[before], (before + len(raw)) * 8 // 6
            plain = base64.b64encode(bytes(before) + raw)[first:last]
            self._put(name, plain)
            self._put(name, plain.replace(b"+", b"-").replace(b"/", b"_"))

    def _put(self, name: str, needle: bytes) -> None:
        if needle:
            self._named.setdefault(needle, name)

    async def look(self, place: str, *paths: Path) -> list[Found]:
        """What of it is in these files and folders, each secret once."""
        if not self._named:
            return []
        list_of = Path(f"{paths[0]}.needles") if paths[0].is_file() else paths[0].with_suffix(".needles")
        list_of.write_bytes(b"\n".join(self._named) + b"\n")
        try:
            argv = ["grep", "-r", "-a", "-o", "-h", "-F", "-f", str(list_of), "--", *(str(path) for path in paths)]
            process = await asyncio.create_subprocess_exec(
                *argv, env={**os.environ, "LC_ALL": "C"}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            said, complaint = await process.communicate()
        finally:
            list_of.unlink()
        # A file of a running server may vanish while it is read; anything else must not go unnoticed.
        if process.returncode not in (0, 1) and b"No such file" not in complaint:
            raise RuntimeError(f"grep could not search {place}: {complaint[:500]!r}")
        counts: dict[str, int] = {}
        for line in said.split(b"\n"):
            if line:
                name = self._named.get(line, "an unnamed one")
                counts[name] = counts.get(name, 0) + 1
        return [Found(place=place, what=name, count=count) for name, count in sorted(counts.items())]


def _id_part(claims: str) -> bytes:
    """The characters of encoded claims that stand for the token's id, as far as they stand for nothing else."""
    raw = decoded(claims)
    token_id = str(json.loads(raw)["jti"]).encode()
    first = raw.index(token_id)
    last = first + len(token_id)
    return claims[-(-first * 4 // 3) : last * 4 // 3].encode()


def _searchable(data: bytes) -> bytes:
    """Bytes of it that hold neither a line's end nor a zero, which end a needle."""
    runs = (run for part in data.split(b"\n") for run in part.split(b"\0"))
    longest = max(runs, key=len)
    return longest[:_WINDOW] if len(longest) >= _WINDOW // 2 else b""


async def copy_tables(dsn: str, folder: Path) -> dict[str, Path]:
    """Every table outside PostgreSQL's own schemas, as a file each, by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn)
    copied: dict[str, Path] = {}
    try:
        for schema, table in await connection.fetch(_TABLES):
            file = folder / f"{schema}.{table}.copy"
            query = f"select * from {_quoted(schema)}.{_quoted(table)}"
            await connection.copy_from_query(query, output=file, format="binary")
            copied[f"{schema}.{table}"] = file
    finally:
        await connection.close()
    return copied


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def by_name(found: Iterable[Found]) -> Mapping[str, int]:
    """How many of the secrets were found, by place."""
    counts: dict[str, int] = {}
    for each in found:
        counts[each.place] = counts.get(each.place, 0) + 1
    return counts
