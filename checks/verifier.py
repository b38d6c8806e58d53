"""Compare the formats in the stand-alone verifier with those of the gateway: `deputize_verify/log` is a generated copy.

With `--write` the copy is made again. The gateway's `evidence/log` is the one place where the code is changed. With
`--archive FILE` the verifier is written as one file that Python runs, for people who are handed it with a receipt.
"""

import argparse
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "deputize" / "evidence" / "log"
COPY = ROOT / "verifier" / "deputize_verify" / "log"
_PACKAGE, _COPY_PACKAGE = "deputize.evidence.log", "deputize_verify.log"


def build_copy(source: Path) -> dict[str, str]:
    """Build what the copy has to hold, by file name."""
    return {
        path.name: path.read_text(encoding="utf-8").replace(_PACKAGE, _COPY_PACKAGE)
        for path in sorted(source.glob("*.py"))
    }


def find_differences(source: Path, copy: Path) -> list[str]:
    """List the files that are absent from the copy, differ from their original, or have none."""
    files = build_copy(source)
    found = {path.name: path.read_text(encoding="utf-8") for path in copy.glob("*.py")}
    return sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name))


def write_copy(source: Path, copy: Path) -> None:
    """Make the copy again, and delete what has no original."""
    files = build_copy(source)
    copy.mkdir(parents=True, exist_ok=True)
    for path in copy.glob("*.py"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (copy / name).write_text(text, encoding="utf-8")


def write_archive(target: Path) -> None:
    """Write the verifier as one file."""
    folder = COPY.parent.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (folder / "LICENSE", *sorted(COPY.parent.rglob("*.py"))):
            archive.write(path, path.relative_to(folder))
        # Not by `zipapp`, whose entry point forgets the exit code: a receipt that is not valid would exit with 0.
        archive.writestr("__main__.py", f"import sys\nfrom {COPY.parent.name}.__main__ import main\nsys.exit(main())\n")


def main() -> int:
    """Compare the copy with its source, or write it."""
    parser = argparse.ArgumentParser(prog="python -m checks.verifier", description=main.__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--archive", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.write:
        write_copy(SOURCE, COPY)
    differences = find_differences(SOURCE, COPY)
    for name in differences:
        print(
            f"verifier: {name} of {COPY.relative_to(ROOT)} is not the gateway's: run python -m checks.verifier --write",
            file=sys.stderr,
        )
    if not differences:
        print("verifier: its formats are the gateway's")
        if options.archive is not None:
            write_archive(options.archive)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
