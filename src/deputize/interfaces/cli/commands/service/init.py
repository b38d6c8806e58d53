"""Define `deputize init`: create a project, and overwrite nothing."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from deputize.interfaces.cli.project.starter_files import STARTER_FILES
from deputize.interfaces.cli.render.output import Json, exit_with_error, printer

_OPTIONAL_FILE = ".gitignore"


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to create the project; created if it does not exist.")
    ] = Path("."),
    json: Json = False,
) -> None:
    """Create a project: settings, three example tools, the default policies with tests, and a .gitignore."""
    conflicts = [name for name in STARTER_FILES.values() if (folder / name).exists() and name != _OPTIONAL_FILE]
    if conflicts:
        exit_with_error(
            f"{folder / conflicts[0]} already exists, and init never overwrites a file: "
            "choose another folder, or start this project with deputize dev."
        )
    file_names = []
    try:
        for source, name in STARTER_FILES.items():
            if _copy_file(source, folder / name):
                file_names.append(name)
    except OSError as error:
        exit_with_error(
            f"{folder} cannot be written ({error.strerror}): choose another folder, or make this one writable."
        )
    if json:
        printer.json({"folder": str(folder), "files": file_names})
    printer.success(f"Created {', '.join(file_names)}")
    cd_command = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    printer.line(f"  Next: {cd_command}deputize dev")


def _copy_file(source: Path, target: Path) -> bool:
    """Copy a file in one step; return False if the target exists."""
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
