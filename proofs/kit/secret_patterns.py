"""Search files for secrets in every encoding, many thousands of them in one pass of `grep`."""

import asyncio
import base64
import html
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import asyncpg

from proofs.kit.jws import decode_base64url

# Long enough that none is met by chance, short enough that a truncated copy is found too.
_WINDOW = 24
_TABLES = """
    select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'm', 'p') and not c.relispartition
      and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
    order by 1, 2
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SecretMatch:
    """One secret in one place."""

    place: str
    what: str
    count: int

    def __str__(self) -> str:
        return f"{self.what} in {self.place}, {self.count} times"


class SecretPatterns:
    """What is looked for, each spelling with the name of what it is a spelling of."""

    def __init__(self) -> None:
        self._labels: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def add_token(self, name: str, token: str) -> None:
        """The id in its claims, and the signature in any spelling; much else is the same in many tokens."""
        parts = token.split(".")
        signature = decode_base64url(parts[2])
        self._add_pattern(name, _extract_token_id(parts[1]))
        self._add_pattern(name, parts[2][-_WINDOW:].encode())
        self.add_damaged(name, token)
        self._add_pattern(name, signature[:_WINDOW].hex().encode())
        self._add_pattern(name, signature[:_WINDOW].hex().upper().encode())
        self._add_pattern(name, base64.b64encode(signature)[:_WINDOW])
        self._add_pattern(name, _find_searchable_run(signature))

    def add_damaged(self, name: str, token: str) -> None:
        """What cannot be decoded is looked for as it is written."""
        self._add_pattern(name, token.split(".")[2][:_WINDOW].encode("latin-1"))

    def add_header(self, name: str, token: str) -> None:
        """However much of a token was cut off, it begins like this."""
        self._add_pattern(name, token.partition(".")[0].encode())

    def add_secret(self, name: str, secret: str) -> None:
        raw = secret.encode()
        spellings = (secret, quote(secret, safe=""), quote_plus(secret), raw.hex(), raw.hex().upper(), secret[::-1])
        escaped = (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret))
        for text in (*spellings, *(each[1:-1] for each in escaped), html.escape(secret)):
            self._add_pattern(name, text.encode())
        for before in range(3):
            first, last = (0, 2, 3)[before], (before + len(raw)) * 8 // 6
            plain = base64.b64encode(bytes(before) + raw)[first:last]
            self._add_pattern(name, plain)
            self._add_pattern(name, plain.replace(b"+", b"-").replace(b"/", b"_"))

    def _add_pattern(self, name: str, pattern: bytes) -> None:
        if pattern:
            self._labels.setdefault(pattern, name)

    async def search(self, place: str, *paths: Path) -> list[SecretMatch]:
        """What of it is in these files and folders, each secret once."""
        if not self._labels:
            return []
        pattern_file = Path(f"{paths[0]}.needles") if paths[0].is_file() else paths[0].with_suffix(".needles")
        pattern_file.write_bytes(b"\n".join(self._labels) + b"\n")
        try:
            argv = ["grep", "-r", "-a", "-o", "-h", "-F", "-f", str(pattern_file), "--", *(str(path) for path in paths)]
            process = await asyncio.create_subprocess_exec(
                *argv, env={**os.environ, "LC_ALL": "C"}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            output, errors = await process.communicate()
        finally:
            pattern_file.unlink()
        # A file of a running server may vanish while it is read; anything else must not go unnoticed.
        if process.returncode not in (0, 1) and b"No such file" not in errors:
            raise RuntimeError(f"grep could not search {place}: {errors[:500]!r}")
        counts: dict[str, int] = {}
        for line in output.split(b"\n"):
            if line:
                name = self._labels.get(line, "an unnamed one")
                counts[name] = counts.get(name, 0) + 1
        return [SecretMatch(place=place, what=name, count=count) for name, count in sorted(counts.items())]


def _extract_token_id(claims: str) -> bytes:
    """The characters of encoded claims that stand for the token's id, as far as they stand for nothing else."""
    raw = decode_base64url(claims)
    token_id = str(json.loads(raw)["jti"]).encode()
    first = raw.index(token_id)
    last = first + len(token_id)
    return claims[-(-first * 4 // 3) : last * 4 // 3].encode()


def _find_searchable_run(data: bytes) -> bytes:
    """Bytes of it that hold neither a line's end nor a zero, which end a needle."""
    runs = (run for part in data.split(b"\n") for run in part.split(b"\0"))
    longest = max(runs, key=len)
    return longest[:_WINDOW] if len(longest) >= _WINDOW // 2 else b""


async def copy_tables(dsn: str, folder: Path) -> dict[str, Path]:
    """Every table outside PostgreSQL's own schemas, as a file each, by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(dsn)
    copies: dict[str, Path] = {}
    try:
        for schema, table in await connection.fetch(_TABLES):
            file = folder / f"{schema}.{table}.copy"
            query = f"select * from {_quote_identifier(schema)}.{_quote_identifier(table)}"
            await connection.copy_from_query(query, output=file, format="binary")
            copies[f"{schema}.{table}"] = file
    finally:
        await connection.close()
    return copies


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def count_by_place(matches: Iterable[SecretMatch]) -> Mapping[str, int]:
    """How many of the secrets were found, by place."""
    counts: dict[str, int] = {}
    for each in matches:
        counts[each.place] = counts.get(each.place, 0) + 1
    return counts
