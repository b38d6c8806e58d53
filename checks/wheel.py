"""Builds the wheel and compares it with the package folder, so that nothing a user needs stays behind.

The named SQL files and the migrations are data inside the package; a build setting that loses one would only
show on a user's machine.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "deputize"


def list_package_files() -> set[str]:
    """Every file of the package as it should be named in the wheel."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PACKAGE.parent).as_posix() for path in files}


def build_wheel(folder: Path) -> set[str]:
    """Build the wheel into a folder and list what it holds."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def main() -> int:
    """Compare the wheel with the folder."""
    with tempfile.TemporaryDirectory() as folder:
        absent = sorted(list_package_files() - build_wheel(Path(folder)))
    for name in absent:
        print(f"wheel: {name} is not in it; see [tool.hatch.build] in pyproject.toml", file=sys.stderr)
    if not absent:
        print("wheel: holds every file of the package")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
