"""`deputize init`: a project with settings, tools, policies and cases for them, and nothing overwritten."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from deputize.doors.cli.output import Json, give_up, printer

_STARTER = Path(__file__).parent / "starter"
_DEFAULT_SET = Path(__file__).parents[2] / "govern" / "policy" / "defaults" / "default.cedar"
# Where each file of the starter goes. The dot of .gitignore would hide it inside the package.
_FILES = {
    _STARTER / "deputize.toml": "deputize.toml",
    _STARTER / "tools/hello.py": "tools/hello.py",
    _DEFAULT_SET: "policies/default.cedar",
    _STARTER / "policies/tests/default.yaml": "policies/tests/default.yaml",
    _STARTER / "gitignore": ".gitignore",
}
_KEEP_IF_THERE = ".gitignore"


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to make it; the folder is made if it is missing.")
    ] = Path("."),
    json: Json = False,
) -> None:
    """Make a project: settings, three tools to start from, the default policies with cases, and a .gitignore."""
    taken = [name for name in _FILES.values() if (folder / name).exists() and name != _KEEP_IF_THERE]
    if taken:
        give_up(
            f"{folder / taken[0]} is already there, and nothing is overwritten: "
            "choose another folder, or start what is here with deputize dev."
        )
    made = []
    try:
        for source, name in _FILES.items():
            if _place(source, folder / name):
                made.append(name)
    except OSError as error:
        give_up(f"{folder} cannot be written ({error.strerror}): choose another folder, or make this one writable.")
    if json:
        printer.json({"folder": str(folder), "files": made})
    printer.good(", ".join(made))
    enter = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    printer.line(f"  next: {enter}deputize dev")


def _place(source: Path, target: Path) -> bool:
    """Copy a file into its place whole, or leave what is there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, draft)
    try:
        os.link(draft, target)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
