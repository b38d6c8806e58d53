"""`deputize import`: servers that another MCP client has, written into deputize.toml. What was there before is kept
beside it, nothing is started, and nothing secret is written down.
"""

import os
import shutil
import tomllib
from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.core.mistakes import Misconfigured
from deputize.core.plain import plain
from deputize.doors.cli.output import Json, counted, give_up, printer
from deputize.doors.cli.project import FILE, enter_project

if TYPE_CHECKING:
    from deputize.doors.cli.client_files import LeftOut, Taken

# Folders in which clients keep their files, inside the project they are about.
_OF_CLIENTS = frozenset({".vscode", ".cursor", ".claude", ".gemini", ".windsurf"})


def import_servers(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What the client keeps: .mcp.json, .vscode/mcp.json, .cursor/mcp.json."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
    json: Json = False,
) -> None:
    """Take over the MCP servers of another client: each becomes a [[servers]] table of deputize.toml.

    ${VAR} and ${VAR:-default} are replaced by what is set here. Keys and tokens are not taken over: what to put into
    the vault is told. What a tool does you say yourself; until then every one of them is destructive.
    """
    text, asked = _read(file), file.absolute()
    enter_project(required=True)
    target = Path(FILE)
    before = target.read_text(encoding="utf-8")
    taken, left = _found(text, asked, before)
    lines = "".join(_table(each.table) for each in taken)
    backup = None
    if taken:
        _check(before + lines)
        backup = None if dry_run else _write(target, before, lines)
    if json:
        printer.json(
            {
                "taken": [{"name": each.name, "called": each.called, **_told(each)} for each in taken],
                "left_out": [{"called": each.called, "why": each.why} for each in left],
                "written": FILE if backup else None,
                "backup": backup,
            }
        )
        return
    _tell(taken, left, lines, backup, dry_run=dry_run)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        give_up(f"{file} cannot be read ({why}): name the file in which the client keeps its servers.")


def _found(text: str, file: Path, before: str) -> "tuple[list[Taken], list[LeftOut]]":
    from deputize.doors.cli.client_files import Taken, read_servers

    beside = file.parent.parent if file.parent.name in _OF_CLIENTS else file.parent
    shown = "." if beside == Path.cwd() else str(beside)
    found = list(
        read_servers(
            text,
            folder=shown,
            variables=os.environ,
            taken=_named(before),
            exists=lambda each: (beside / each).is_file(),
        )
    )
    taken = [each for each in found if isinstance(each, Taken)]
    return taken, [each for each in found if not isinstance(each, Taken)]


def _named(text: str) -> frozenset[str]:
    try:
        servers = tomllib.loads(text).get("servers", [])
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{FILE} is not TOML: {str(error).lower()}; mend it first.") from None
    return frozenset(str(each.get("name")) for each in servers if isinstance(each, dict))


def _table(table: Mapping[str, Any]) -> str:
    rows = "".join(f"{key} = {_value(value)}\n" for key, value in table.items())
    return f"\n[[servers]]\n{rows}"


def _value(value: Any) -> str:
    """A text, or a list or table of texts, as TOML; its strings are JSON's, but for one character."""
    if isinstance(value, str):
        return dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return "{ " + ", ".join(f"{_value(key)} = {_value(each)}" for key, each in value.items()) + " }"


def _check(text: str) -> None:
    """What would be written is read as settings first: a file that cannot be read is worth less than none."""
    from pydantic import ValidationError

    from deputize.core.settings import McpServer

    try:
        for each in tomllib.loads(text)["servers"]:
            McpServer.model_validate(each)
    except tomllib.TOMLDecodeError:
        raise Misconfigured(f"{FILE} names its servers in one line: make [[servers]] tables of them first.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Misconfigured(f"A server cannot be described like this ({place}: {first['msg']}).") from None


def _write(target: Path, before: str, lines: str) -> str:
    """The name of the file that keeps what was there."""
    try:
        backup = next(
            name for number in range(1, 1000) if not (name := target.with_name(f"{FILE}.{number}.bak")).exists()
        )
        shutil.copy2(target, backup)
        draft = target.with_name(f".{FILE}.{os.getpid()}")
        shutil.copy2(target, draft)
        draft.write_text(before.rstrip("\n") + "\n" + lines, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        give_up(f"{FILE} cannot be written ({error.strerror}): make it and its folder writable.")
    return backup.name


def _told(each: "Taken") -> dict[str, Any]:
    return {"secret": each.secret, "notes": list(each.notes)}


def _tell(taken: "list[Taken]", left: "list[LeftOut]", lines: str, backup: str | None, *, dry_run: bool) -> None:
    for each in taken:
        how = each.table.get("url") or " ".join(each.table["command"])
        renamed = f" (called {plain(each.called, 80)})" if each.called != each.name else ""
        printer.good(f"{each.name}{renamed}: {plain(how, 200)}")
        for note in each.notes:
            printer.line(f"  {plain(note, 200)}")
        if each.secret:
            printer.line(f"  its credential: deputize secrets set {each.secret}")
    for out in left:
        printer.warn(f"{plain(out.called, 80)} was left out: {plain(out.why, 400)}")
    if dry_run and taken:
        printer.line(lines.rstrip("\n"))
        return
    if backup is None:
        printer.line("Nothing was written.")
        return
    printer.good(f"{FILE} has {counted(len(taken), 'server')} more; what it was before is in {backup}")
    printer.line('  every tool counts as destructive until you say otherwise there, as in reads = ["get_*"]')
    printer.line("  next: deputize dev")
