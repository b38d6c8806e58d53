"""Declare the tools `files.*` of one folder. No tool takes a folder to begin at: that is the operator's choice."""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field

from deputize import Fact, Preview, SemanticViolation, ToolContext, tool
from deputize.catalog.importers.python import ToolOptions
from deputize.tools.files import reading
from deputize.tools.files.changes import (
    CHANGE_PATTERN,
    ChangeRecord,
    Changes,
    derive_change_id,
    read_kept_file,
    require_record,
)
from deputize.tools.files.folder import ABSENT, FILE_PATTERN, FOLDER_PATTERN, MAX_PATH, ROOT, Folder

Function = TypeVar("Function", bound=Callable[..., Any])

# Fits into a request of the default size, also as text of which each character takes two bytes.
MAX_CONTENT: Final = 500_000

FilePath = Annotated[
    str,
    Field(description="Path of a file, as in src/main.py.", pattern=FILE_PATTERN, max_length=MAX_PATH),
    Fact("path"),
]
AnyPath = Annotated[
    str,
    Field(description="Path of a file or folder, or . for everything.", pattern=FOLDER_PATTERN, max_length=MAX_PATH),
    Fact("path"),
]
OtherPath = Annotated[
    str,
    Field(description="Path of the other file.", pattern=FILE_PATTERN, max_length=MAX_PATH),
    Fact("to_path"),
]
RestoredPath = Annotated[
    str,
    Field(
        description="Path that a move to take back gave the file; for any other change, the same as path.",
        pattern=FILE_PATTERN,
        max_length=MAX_PATH,
    ),
    Fact("to_path"),
]
Offset = Annotated[int, Field(description="Where to begin: next_offset of the answer before.", ge=0, le=2**50)]
Limit = Annotated[int, Field(description="The most that is returned.", ge=1, le=1_000)]
PageLimit = Annotated[int, Field(description="The most bytes that are returned.", ge=4, le=reading.MAX_PAGE_BYTES)]
Glob = Annotated[str, Field(description="Glob of names, or of paths if it has a /, as in *.py.", max_length=200)]
Expression = Annotated[
    str, Field(description="Regular expression that a line matches.", min_length=1, max_length=1_000)
]
IgnoresCase = Annotated[bool, Field(description="Whether case does not count.")]
Content = Annotated[str, Field(description="The whole new content.", max_length=MAX_CONTENT)]
Encoding = Annotated[Literal["utf-8", "base64"], Field(description="How content is written; base64 for binary.")]
Digest = Annotated[
    str,
    Field(description="SHA-256 of the file as you read it.", pattern=r"^[0-9a-f]{64}$"),
]
DigestOrAbsent = Annotated[
    str,
    Field(
        description="SHA-256 of the file as you read it; absent if there must be none yet.",
        pattern=rf"^(?:[0-9a-f]{{64}}|{ABSENT})$",
    ),
]
ChangeId = Annotated[str, Field(description="The change to take back, from its result.", pattern=CHANGE_PATTERN)]
EXAMPLE_DIGEST: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
EXAMPLE_CHANGE: Final = "0" * 32

_READS: Final[ToolOptions] = {
    "namespace": "files", "version": "1.0.0", "kind": "file_operation", "provider": "deputize", "open_world": False,
    "scopes": ["files:read"],
}  # fmt: skip


def _build_change_options(*resources: str, path: str = "path", to: str = "path") -> ToolOptions:
    """Build what all changes declare: each finds what it did by the key of its call, and can be taken back.

    `path` and `to` are the arguments with the paths of the change, which restoring it names.
    """
    return {
        **_READS,
        "scopes": ["files:write"],
        "resources": resources,
        "idempotency": "deduplicates",
        "undo": "files.restore",
        "compensation": {
            "compensation_class": "full",
            "tool": "files.restore",
            "bind": {"path": f"/arguments/{path}", "to": f"/arguments/{to}", "change": "/result/change"},
        },
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedFile:
    """A change of one file, by its digests before and after or `absent`; `change` is what files.restore takes."""

    change: str
    path: str
    to: str | None
    before_sha256: str
    after_sha256: str


def name_plainly(function: Function) -> Function:
    """Name a function as if it were one of the module, so that its address in contracts stays when it is moved."""
    function.__qualname__ = function.__name__
    return function


@lru_cache(maxsize=16)
def declare_tools(path: Path, *, has_openat2: bool | None = None) -> tuple[Callable[..., Any], ...]:
    """Declare the tools of a folder, once. Raise OSError or ValueError if it cannot be used."""
    folder = Folder(path, has_openat2=has_openat2)
    changes = Changes(folder)
    previews = Previews(folder, changes)
    reads = (*_declare_reads(folder), *_declare_searches(folder))
    return (*reads, *_declare_writes(changes, previews), *_declare_removals(changes, previews))


def _declare_reads(folder: Folder) -> tuple[Callable[..., Any], ...]:
    @tool(effects="read", examples=[{"path": "src/main.py"}], **_READS)
    @name_plainly
    def read(path: FilePath, offset: Offset = 0, limit: PageLimit = 65_536) -> reading.FilePage:
        """Read a file, or a part of a long one; the digest is what a later change expects."""
        return reading.read_page(folder, path, offset, limit)

    @tool(effects="read", examples=[{"path": "src"}], **_READS)
    @name_plainly
    def list(path: AnyPath = ROOT, offset: Offset = 0, limit: Limit = 200) -> reading.Listing:
        """List what is in a folder, without what is below its folders."""
        return reading.list_entries(folder, path, offset, limit)

    @tool(effects="read", examples=[{"path": "src/main.py"}], **_READS)
    @name_plainly
    def metadata(path: AnyPath) -> reading.Metadata:
        """Read what a path is: its kind, size, time, mode and digest."""
        return reading.read_metadata(folder, path)

    @tool(effects="read", examples=[{"path": "src/main.py", "to": "src/main_old.py"}], **_READS)
    @name_plainly
    def diff(path: FilePath, to: OtherPath) -> reading.Difference:
        """Compare two files, as a unified diff."""
        return reading.compare_files(folder, path, to)

    return read, list, metadata, diff


def _declare_searches(folder: Folder) -> tuple[Callable[..., Any], ...]:
    @tool(effects="read", examples=[{"glob": "*.py"}], **_READS)
    @name_plainly
    def search(glob: Glob, path: AnyPath = ROOT, limit: Limit = 200) -> reading.FoundPaths:
        """Find files and folders by their names."""
        return reading.search_names(folder, path, glob, limit)

    @tool(effects="read", examples=[{"pattern": "TODO", "glob": "*.py"}], **_READS)
    @name_plainly
    def search_content(
        pattern: Expression, path: AnyPath = ROOT, glob: Glob = "*", ignore_case: IgnoresCase = False,
        limit: Limit = 100,
    ) -> reading.FoundLines:  # fmt: skip
        """Find lines of files that match a regular expression."""
        return reading.search_lines(folder, path, pattern, glob, limit, ignores_case=ignore_case)

    return search, search_content


def _declare_writes(changes: Changes, previews: "Previews") -> tuple[Callable[..., Any], ...]:
    @tool(
        effects="write",
        preview=previews.write,
        examples=[{"path": "notes.txt", "content": "Bring milk.\n", "expected_sha256": ABSENT}],
        **_build_change_options("update files/{path}"),
    )
    @name_plainly
    def write(
        path: FilePath,
        content: Content,
        expected_sha256: DigestOrAbsent,
        context: ToolContext,
        encoding: Encoding = "utf-8",
    ) -> ChangedFile:
        """Write a whole file, if it still is as you read it; folders that it needs are created."""
        change = identify_change(context)
        return describe_change(
            change,
            changes.put(
                change, path, decode_content(content, encoding), expected_sha256, seconds_left=context.seconds_left
            ),
        )

    @tool(
        effects="write",
        preview=previews.restore,
        examples=[{"path": "a.txt", "to": "a.txt", "change": EXAMPLE_CHANGE}],
        # The other way round: a move that was taken back is a move from `to`.
        **_build_change_options("update files/{path}", "update files/{to}", path="to", to="path"),
    )
    @name_plainly
    def restore(path: FilePath, to: RestoredPath, change: ChangeId, context: ToolContext) -> ChangedFile:
        """Take back a change of a file, if nobody changed the file since."""
        own_change = identify_change(context)
        return describe_change(
            own_change, changes.restore(own_change, path, to, change, seconds_left=context.seconds_left)
        )

    return write, restore


def _declare_removals(changes: Changes, previews: "Previews") -> tuple[Callable[..., Any], ...]:
    @tool(
        effects="write",
        preview=previews.move,
        examples=[{"path": "a.txt", "to": "old/a.txt", "expected_sha256": EXAMPLE_DIGEST}],
        **_build_change_options("delete files/{path}", "create files/{to}", to="to"),
    )
    @name_plainly
    def move(path: FilePath, to: OtherPath, expected_sha256: Digest, context: ToolContext) -> ChangedFile:
        """Give a file another path, at which there is nothing, if the file still is as you read it."""
        change = identify_change(context)
        return describe_change(
            change, changes.move(change, path, to, expected_sha256, seconds_left=context.seconds_left)
        )

    @tool(
        effects="destructive",
        preview=previews.delete,
        examples=[{"path": "a.txt", "expected_sha256": EXAMPLE_DIGEST}],
        **_build_change_options("delete files/{path}"),
    )
    @name_plainly
    def delete(path: FilePath, expected_sha256: Digest, context: ToolContext) -> ChangedFile:
        """Delete a file, if it still is as you read it; it is kept until many later changes were made."""
        change = identify_change(context)
        return describe_change(change, changes.remove(change, path, expected_sha256, seconds_left=context.seconds_left))

    return move, delete


class Previews:
    """What changes would do, as approvers see it. `prefix` stands before each path in the names of resources."""

    def __init__(self, folder: Folder, changes: Changes, resource: str = "files", prefix: str = "") -> None:
        self._folder = folder
        self._changes = changes
        self._resource = resource
        self._prefix = prefix

    def write(self, path: str, content: str, expected_sha256: str, encoding: str = "utf-8") -> Preview:
        return self._preview(path, decode_content(content, encoding), expected_sha256)

    def delete(self, path: str, expected_sha256: str) -> Preview:
        return self._preview(path, None, expected_sha256)

    def move(self, path: str, to: str, expected_sha256: str) -> Preview:
        digest, target_digest = self._read(path)[0], self._read(to)[0]
        return Preview(
            changes=[
                {"resource": self._resource, "op": "delete", "scope": self._locate(path), "before": digest},
                {"resource": self._resource, "op": "create", "scope": self._locate(to), "after": expected_sha256},
            ],
            preconditions=[
                _expect(path, digest, expected_sha256),
                {"name": f"nothing is at {to}"[:120], "holds": target_digest == ABSENT},
            ],
        )

    def restore(self, path: str, to: str, change: str) -> Preview:
        with self._changes.open_kept() as kept:
            record = require_record(kept, change, path, to)
            if record.kind == "move":
                return self.move(record.to, record.path, record.after)
            content = None
            if record.before == record.after:
                content = self._read(path)[1]
            elif record.before != ABSENT:
                content = read_kept_file(kept, change, record)[0]
        return self._preview(path, content, record.after)

    def _preview(self, path: str, after: bytes | None, expected: str) -> Preview:
        digest, before = self._read(path)
        op = "create" if digest == ABSENT else "delete" if after is None else "update"
        return Preview(
            changes=[
                {
                    "resource": self._resource, "op": op, "scope": self._locate(path),
                    "before": None if before is None else {"sha256": digest, "bytes": len(before)},
                    "after": None if after is None else {"bytes": len(after)},
                }
            ],
            preconditions=[_expect(path, digest, expected)],
            # As lines, which people read below each other.
            impact={"diff": reading.build_diff(path, path, before, after).split("\n")},
        )  # fmt: skip

    def _locate(self, path: str) -> str:
        return f"{self._prefix}{path}"[:240]

    def _read(self, path: str) -> tuple[str, bytes | None]:
        """Read a file and its digest; a file in a folder that does not exist yet is absent, too."""
        return reading.read_if_present(self._folder, path)


def _expect(path: str, digest: str, expected: str) -> dict[str, Any]:
    detail = "" if digest == expected else f"its digest is {digest} now, not {expected}: read it again"
    return {"name": f"{path} is as expected"[:120], "holds": digest == expected, "detail": detail}


def decode_content(content: str, encoding: str) -> bytes:
    if encoding == "utf-8":
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise SemanticViolation("content is not base64: send encoding utf-8 for text") from error


def identify_change(context: ToolContext) -> str:
    return derive_change_id(context.tenant, context.key or context.call_id)


def describe_change(change: str, record: ChangeRecord) -> ChangedFile:
    return ChangedFile(
        change=change, path=record.path, to=record.to or None, before_sha256=record.before, after_sha256=record.after
    )
