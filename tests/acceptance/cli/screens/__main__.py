"""Write the screens (`--write`), or only those of help, which needs no gateway (`--write --help-only`)."""

import argparse
from pathlib import Path

from tests.acceptance.cli.screens.screens import ALL, FOLDER, render_help, render_screens


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.cli.screens", description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="write the files")
    parser.add_argument("--help-only", action="store_true", help="write the screens of help alone")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="write them into this folder instead")
    options = parser.parse_args()
    for name, text in render_help() if options.help_only else render_screens():
        (options.folder / f"{name}.txt").write_text(text, encoding="utf-8")
    for file in options.folder.glob("*.txt"):
        if file.stem not in ALL:
            file.unlink()
    print(f"screens: written to {options.folder}")


main()
