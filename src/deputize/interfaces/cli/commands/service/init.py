"""Define `deputize init`: create a project, and overwrite nothing."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from deputize.interfaces.cli.render.output import Json, exit_with_error, printer

_STARTER = Path(__file__).parents[2] / "local" / "starter"
_DEFAULT_POLICIES = Path(__file__).parents[4] / "govern" / "policy" / "defaults" / "default.cedar"
# Each file of the package, with its path in the new project. A gitignore with its dot would hide inside the package.
_STARTER_FILES = {
    _STARTER / "deputize.toml": "deputize.toml",
    _STARTER / "tools/hello.py": "tools/hello.py",
    _DEFAULT_POLICIES: "policies/default.cedar",
    _STARTER / "policies/tests/default.yaml": "policies/tests/default.yaml",
    _STARTER / "gitignore": ".gitignore",
}
_OPTIONAL_FILE = ".gitignore"


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to create the project; created if it does not exist.")
    ] = Path("."),
    json: Json = False,
) -> None:
    """Create a project: settings, three example tools, the default policies with tests, and a .gitignore."""
    conflicts = [name for name in _STARTER_FILES.values() if (folder / name).exists() and name != _OPTIONAL_FILE]
    if conflicts:
        exit_with_error(
            f"{folder / conflicts[0]} already exists, and init never overwrites a file: "
            "choose another folder, or start this project with deputize dev."
        )
    file_names = []
    try:
        for source, name in _STARTER_FILES.items():
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
