"""Run the snippets of documentation pages: what a reader types, in order, and the output that the page promises.

An HTML comment before a code block says how to run it; it is invisible on the page.

    <!-- run -->                  run the `$` lines, or the Python; the other lines must appear in the output, in order
    <!-- run in background -->    start each command and continue once its lines have appeared
    <!-- seen there -->           the gateway's next output; its approval code replaces the page's code from here on
    <!-- seen at the end -->      wait for a command started in the background to succeed, and check its output
    <!-- file tools/x.py -->      save the block under that name
    <!-- needs a project -->      before the first block: `deputize init`; for `a running project`, `deputize dev` too
    <!-- npm -->                  install npm packages, so that their programs can be run
    <!-- also with A for B -->    run the page once more with these two words exchanged in its commands

`…` in an expected line matches anything, spaces match any spaces, and a local port matches any port.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from deputize.store.local_postgres_host import choose_account, find_installation
from tests.acceptance.cli.cli_process import TIMEOUT_SECONDS, BackgroundCommand

DOCS = Path(__file__).resolve().parents[3] / "docs"
_BLOCK = re.compile(
    r"^<!-- (?P<order>run|run in background|seen there|seen at the end|file (?P<file>\S+)) -->\n"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NEEDS = re.compile(r"^<!-- needs (?P<what>.*) -->$", re.MULTILINE)
_NPM = re.compile(r"^<!-- npm -->\n```console\n\$ npm install --global (?P<packages>.*)$", re.MULTILINE)
_SWAPPABLE = re.compile(r"^<!-- also with (?P<one>\S+) for (?P<other>\S+) -->$", re.MULTILINE)
_LOCAL = re.compile(r"127\.0\.0\.1:\d+")
_USUAL_URL = "http://127.0.0.1:7070"
_CODE = re.compile(r"(?<=code )[0-9A-Z]{4}-[0-9A-Z]{4}\b")
# Output of a command that failed, found a forgery, or whose call waits for approval: its exit code is not 0.
_SKIP_MARKS = ("✗", "⏸ Approval required", "NOT VALID", "NOT TRUSTED")


@dataclass(frozen=True, kw_only=True)
class Block:
    order: str
    file: str
    language: str
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command with the output lines expected after it."""
        command, promised = "", list[str]()
        for line in self.text.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, promised
                command, promised = line[2:], []
            elif line.strip():
                promised.append(line)
        yield command, promised

    def swap_with(self, one: str, other: str) -> "Block":
        """Exchange two words in the commands of the block."""
        swapped = {one: other, other: one}
        typed = re.compile(rf"(?<!\S)({re.escape(one)}|{re.escape(other)})(?!\S)")
        lines = [
            typed.sub(lambda found: swapped[found[0]], line) if line.startswith("$ ") else line
            for line in self.text.splitlines(keepends=True)
        ]
        return self if self.file else replace(self, text="".join(lines))


@dataclass(frozen=True, kw_only=True)
class Page:
    name: str
    needs: str
    blocks: tuple[Block, ...]
    npm: tuple[str, ...] = ()

    def swap_blocks(self, one: str, other: str) -> "Page":
        blocks = tuple(each.swap_with(one, other) for each in self.blocks)
        return replace(self, name=f"{self.name}, {one} and {other} exchanged", blocks=blocks)


def load_pages() -> list[Page]:
    """Load every page that has blocks to run."""
    found = []
    for path in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        blocks = tuple(
            Block(
                order=each["order"].split()[-1], file=each["file"] or "", language=each["language"], text=each["text"]
            )
            for each in _BLOCK.finditer(text)
        )
        if blocks:
            needs = _NEEDS.search(text)
            name = str(path.relative_to(DOCS if path.is_relative_to(DOCS) else DOCS.parent))
            npm = _NPM.search(text)
            wanted = tuple(npm["packages"].split()) if npm else ()
            page = Page(name=name, needs=needs["what"] if needs else "", blocks=blocks, npm=wanted)
            found += [page, *(page.swap_blocks(each["one"], each["other"]) for each in _SWAPPABLE.finditer(text))]
    return found


class Reader:
    """Follow a page in a folder; the folder around it belongs to this reader, too."""

    def __init__(self, folder: Path, env: dict[str, str], programs: Path | None = None) -> None:
        self.folder = folder
        self._cwd_file = folder.parent / "cwd"
        # `pg_dump` has to be as new as the server.
        clients = find_installation(choose_account()).folder / "bin"
        places = [Path(sys.executable).parent, *([programs] if programs else []), clients, "/usr/bin", "/bin"]
        self._env = {"PATH": ":".join(map(str, places)), **env}
        self._background: dict[str, tuple[BackgroundCommand, signal.Signals]] = {}
        self._codes: dict[str, str] = {}

    def run_block(self, block: Block) -> None:
        if block.file:
            (self.folder / block.file).write_text(self._localize(block.text), encoding="utf-8")
        elif block.order == "background":
            for command, promised in block.commands():
                self.start_in_background(command, promised)
        elif block.order == "end":
            for command, promised in block.commands():
                ended, _ = self._background.pop(command)
                assert ended.wait_for_exit() == 0, "\n".join(ended.lines)
                require_lines(promised, ended.lines)
        elif block.order == "there":
            for line in block.text.splitlines():
                self._collect_code(line)
        elif block.language == "python":
            done = self._run([sys.executable, "-c", self._localize(block.text)])
            assert done.returncode == 0, done.stdout
        else:
            for command, promised in block.commands():
                self._run_and_check(command, promised)

    def start_in_background(self, command: str, expected_lines: list[str]) -> None:
        program, *words = self._localize(command).split()
        if program != "deputize":
            started = BackgroundCommand(*words, folder=self.folder, env=self._env, program=program)
            self._background[command] = (started, signal.SIGTERM)
            for line in expected_lines:
                started.wait_for_line(line.partition("…")[0].rstrip())
            return
        started = BackgroundCommand(*words, folder=self.folder, env=self._env)
        self._background[command] = (started, signal.SIGINT)
        started.wait_for_line("▶")
        require_lines(expected_lines, started.lines)

    def _collect_code(self, line: str) -> None:
        gateway, _ = [self._background[each] for each in self._background if each.startswith("deputize")][-1]
        said = gateway.wait_for_line(line.partition("…")[0].rstrip())
        require_lines([_CODE.sub("…", line)], [said])
        self._codes |= dict(zip(_CODE.findall(line), _CODE.findall(said), strict=True))

    def stop_background(self) -> None:
        """Stop what is still running, the last first: a later command may depend on an earlier one."""
        for started, number in reversed(self._background.values()):
            started.interrupt(number)

    def _run_and_check(self, command: str, expected_lines: list[str]) -> None:
        if command.startswith("curl") and shutil.which("curl") is None:
            return
        script = f"{self._localize(command)}\nCODE=$?; pwd > {self._cwd_file}; exit $CODE"
        done = self._run(["/bin/bash", "-c", script])
        self.folder = Path(self._cwd_file.read_text().strip())
        assert (done.returncode != 0) == any(line.startswith(_SKIP_MARKS) for line in expected_lines), done.stdout
        require_lines(expected_lines, done.stdout.splitlines())

    def _run(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

    def _localize(self, text: str) -> str:
        """Replace the address and the codes on the page by those of this gateway."""
        for written, shown in self._codes.items():
            text = text.replace(written, shown)
        announced = self.folder / ".deputize" / "dev.json"
        return text.replace(_USUAL_URL, json.loads(announced.read_text())["url"]) if announced.exists() else text


def require_lines(expected_lines: list[str], actual_lines: list[str]) -> None:
    """Require every expected line, in this order, with any lines between them."""
    left = iter(actual_lines)
    for line in expected_lines:
        parts = [r"\s+".join(map(re.escape, _normalize_port(part).split())) for part in line.split("…")]
        pattern = re.compile(r"\s*" + r".*".join(parts) + r"\s*")
        assert any(pattern.fullmatch(_normalize_port(each)) for each in left), (
            f"promised {line!r}, seen:\n" + "\n".join(actual_lines)
        )


def _normalize_port(line: str) -> str:
    return _LOCAL.sub("127.0.0.1:PORT", line)
