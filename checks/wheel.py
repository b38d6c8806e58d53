"""Builds the wheels and compares each with its package folder, so that nothing a user needs stays behind.

The named SQL files and the migrations are data inside the package; a build setting that loses one would only
show on a user's machine.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The package folder of each distribution, by the folder of its pyproject.toml.
PACKAGES = {ROOT: ROOT / "src" / "deputize", ROOT / "verifier": ROOT / "verifier" / "deputize_verify"}


def list_package_files(package: Path) -> set[str]:
    """Every file of a package as it should be named in the wheel."""
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(package.parent).as_posix() for path in files}


def build_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of a distribution into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def list_absent_files(project: Path, package: Path) -> list[str]:
    """List the files of a package that its wheel does not hold."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(build_wheel(project, Path(folder))) as archive:
        return sorted(list_package_files(package) - set(archive.namelist()))


def main() -> int:
    """Compare each wheel with its folder."""
    status = 0
    for project, package in PACKAGES.items():
        absent = list_absent_files(project, package)
        for name in absent:
            print(f"wheel: {name} is not in it; see [tool.hatch.build] in {project}/pyproject.toml", file=sys.stderr)
        if absent:
            status = 1
        else:
            print(f"wheel: that of {package.name} holds every file of the package")
    return status


if __name__ == "__main__":
    sys.exit(main())
