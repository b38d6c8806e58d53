"""Build functions for `read_state=` that read common kinds of state: files, rows of a database, an ETag.

    @tool(effects="write", read_state=digest_files("{name}.csv", root="reports"))
    @tool(effects="write", read_state=digest_rows(connect, "select * from stock where fruit = ?", "fruit"))
    @tool(effects="read", read_state=read_etag("https://shop.example/items/{item}"))

`{name}` stands for an argument of the tool. What an agent passes there can neither leave the folder nor change the
host, and sizes are limited: a state that is too large to read makes the call fail before it begins.
"""

import glob
import hashlib
import http.client
import inspect
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from deputize.catalog.importers.declaration import WrongDeclaration

StateFunction = Callable[..., Any]

MAX_FILES: Final = 1_000
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ROWS: Final = 100_000
_CHUNK_BYTES: Final = 1024 * 1024
_ETAG_SECONDS: Final = 5.0
_MAX_ETAG_LENGTH: Final = 1_024
_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def digest_files(*patterns: str, root: str | Path = ".") -> StateFunction:
    """Build a reader of the files in `root` that match a pattern, as `{"count": …, "files": {path: SHA-256}}`."""
    if not patterns:
        raise WrongDeclaration('digest_files needs a pattern of files, as in digest_files("{name}.csv")')
    for pattern in patterns:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts or "**" in pattern:
            raise WrongDeclaration(f"digest_files: {pattern} leaves the folder or has **; write a path below root")

    def read_files(**arguments: Any) -> dict[str, Any]:
        folder = Path(root).resolve()
        digests: dict[str, str] = {}
        left_bytes = MAX_BYTES
        for pattern in patterns:
            for path in _find_files(folder, _fill(pattern, arguments, glob.escape)):
                if len(digests) >= MAX_FILES:
                    raise ValueError(f"more than {MAX_FILES} files match")
                digest, size = _digest_file(path, left_bytes)
                left_bytes -= size
                digests[path.relative_to(folder).as_posix()] = digest
        return {"count": len(digests), "files": digests}

    return _name_parameters(read_files, patterns)


def digest_rows(connect: Callable[[], Any], query: str, *argument_names: str) -> StateFunction:
    """Build a reader of what a query returns, as `{"rows": …, "sha256": …}`, in whichever order the rows come.

    `connect` returns a connection of a DB-API driver (sqlite3, psycopg); the arguments named are bound in their order.
    A driver that loads a whole result at once needs a `limit` in the query.
    """

    def read_rows(**arguments: Any) -> dict[str, Any]:
        with closing(connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(query, tuple(arguments[name] for name in argument_names))
            row_digests = [hashlib.sha256(row).digest() for row in _encode_rows(cursor)]
        return {"rows": len(row_digests), "sha256": hashlib.sha256(b"".join(sorted(row_digests))).hexdigest()}

    return _name_parameters(read_rows, [f"{{{name}}}" for name in argument_names])


def read_etag(url: str, headers: Callable[[], Mapping[str, str]] | None = None) -> StateFunction:
    """Build a reader of the ETag that a HEAD request returns, as `{"etag": …}`; null if there is nothing (404 or 410).

    `headers` returns the request's headers, for example a token. Redirects are not followed.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[@{]", parts.netloc):
        raise WrongDeclaration(f"read_etag: {url} needs http or https, and a host without placeholders and credentials")
    connection_class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def read_tag(**arguments: Any) -> dict[str, Any]:
        with closing(connection_class(parts.netloc, timeout=_ETAG_SECONDS)) as connection:
            connection.request(
                "HEAD", _fill(target, arguments, _quote_segment), headers=dict(headers() if headers else {})
            )
            response = connection.getresponse()
            etag = response.getheader("ETag")
        if response.status in (404, 410):
            return {"etag": None}
        if response.status != 200 or not etag or len(etag) > _MAX_ETAG_LENGTH:
            raise ValueError(f"the server answered {response.status} with {'an' if etag else 'no'} ETag")
        return {"etag": etag}

    return _name_parameters(read_tag, [target])


def _fill(template: str, arguments: Mapping[str, Any], escape: Callable[[str], str]) -> str:
    return _PLACEHOLDER.sub(lambda match: escape(str(arguments[match[1]])), template)


def _quote_segment(text: str) -> str:
    if text in ("", ".", ".."):
        raise ValueError("an argument that is empty or a dot names no resource")
    return quote(text, safe="")


def _find_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Find the files that match; symbolic links count as what they lead to, and must not lead out of the folder."""
    if "\0" in pattern or ".." in Path(pattern).parts or Path(pattern).is_absolute():
        raise ValueError("the path leaves the folder")
    for entry in sorted(glob.iglob(pattern, root_dir=folder, include_hidden=True)):
        path = (folder / entry).resolve()
        if not path.is_relative_to(folder):
            raise ValueError("the path leaves the folder")
        yield path


def _digest_file(path: Path, left_bytes: int) -> tuple[str, int]:
    """Digest a file. What is no regular file, such as a folder or a pipe, has the digest of its kind."""
    # Opening a pipe or a device would otherwise wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            return f"not a file ({stat.filemode(mode)[0]})", 0
        hasher, size = hashlib.sha256(), 0
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            size += len(chunk)
            if size > left_bytes:
                raise ValueError(f"the files have more than {MAX_BYTES} bytes")
            hasher.update(chunk)
    finally:
        os.close(descriptor)
    return hasher.hexdigest(), size


def _encode_rows(cursor: Iterable[Any]) -> Iterator[bytes]:
    left_bytes = MAX_BYTES
    for number, row in enumerate(cursor):
        # Some drivers return dictionaries.
        members = [part for item in row.items() for part in item] if isinstance(row, Mapping) else list(row)
        encoded_row = repr([_encode_value(each) for each in members]).encode(errors="surrogatepass")
        left_bytes -= len(encoded_row)
        if number >= MAX_ROWS or left_bytes < 0:
            raise ValueError(f"the query returns more than {MAX_ROWS} rows or {MAX_BYTES} bytes")
        yield encoded_row


def _encode_value(value: Any) -> Any:
    """Return a value whose text is the same for equal values, and refuse one whose text is its address."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not any("__repr__" in vars(kind) for kind in type(value).__mro__[:-1]):
        raise ValueError(f"a column has values of the type {type(value).__name__}, which have no text of their own")
    return value


def _name_parameters(function: StateFunction, templates: Iterable[str]) -> StateFunction:
    """Give a function the placeholders as its parameters, so that a misspelled one is refused when it is declared."""
    names = dict.fromkeys(name for template in templates for name in _PLACEHOLDER.findall(template))
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect.signature
    return function
