"""Pages whose snippets can be run: what a reader types, in order, and what they are promised to see.

An HTML comment before a code block says what to do with it; readers of the page do not see it.

    <!-- run -->                  type the `$` lines, or run the Python; the other lines must be seen, in order
    <!-- run in background -->    type each command and go on once its lines were seen
    <!-- seen there -->           what the gateway says next; a code in it is what is typed where the page has it
    <!-- seen at the end -->      each command again that was left running: it ends well, and had said these lines
    <!-- file tools/x.py -->      save the block under that name
    <!-- needs a project -->      before the first block: `deputize init`; `a running project`: `deputize dev` too
    <!-- npm -->                  `npm install --global` of packages; their programs are there to be typed
    <!-- also with A for B -->    the page holds once more with these two words exchanged wherever they are typed

`…` in a promised line stands for anything, spaces for any spaces, and a local port for any port.
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

from tests.acceptance.cli.shell import PATIENCE, Running

DOCS = Path(__file__).resolve().parents[3] / "docs"
_BLOCK = re.compile(
    r"^<!-- (?P<order>run|run in background|seen there|seen at the end|file (?P<file>\S+)) -->\n"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NEEDS = re.compile(r"^<!-- needs (?P<what>.*) -->$", re.MULTILINE)
_NPM = re.compile(r"^<!-- npm -->\n```console\n\$ npm install --global (?P<packages>.*)$", re.MULTILINE)
_EXCHANGED = re.compile(r"^<!-- also with (?P<one>\S+) for (?P<other>\S+) -->$", re.MULTILINE)
_LOCAL = re.compile(r"127\.0\.0\.1:\d+")
_USUAL_URL = "http://127.0.0.1:7070"
_CODE = re.compile(r"(?<=code )[0-9A-Z]{4}-[0-9A-Z]{4}\b")
# What a command ends with that did not end well, or has not ended.
_NOT_DONE = ("✗", "⏸ needs approval")


@dataclass(frozen=True, kw_only=True)
class Block:
    order: str
    file: str
    language: str
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command with the lines promised after it."""
        command, promised = "", list[str]()
        for line in self.text.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, promised
                command, promised = line[2:], []
            elif line.strip():
                promised.append(line)
        yield command, promised

    def exchanged(self, one: str, other: str) -> "Block":
        """The same, with two words of what is typed in each other's place."""
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

    def exchanged(self, one: str, other: str) -> "Page":
        blocks = tuple(each.exchanged(one, other) for each in self.blocks)
        return replace(self, name=f"{self.name}, {one} and {other} exchanged", blocks=blocks)


def pages() -> list[Page]:
    """Every page with something to run."""
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
            found += [page, *(page.exchanged(each["one"], each["other"]) for each in _EXCHANGED.finditer(text))]
    return found


class Reader:
    """Somebody who does what a page says, in a folder of their own."""

    def __init__(self, folder: Path, env: dict[str, str], programs: Path | None = None) -> None:
        self.folder = folder
        places = [Path(sys.executable).parent, *([programs] if programs else []), "/usr/bin", "/bin"]
        self._env = {"PATH": ":".join(map(str, places)), **env}
        self._background: dict[str, tuple[Running, signal.Signals]] = {}
        self._codes: dict[str, str] = {}

    def follow(self, block: Block) -> None:
        if block.file:
            (self.folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.order == "background":
            for command, promised in block.commands():
                self.leave_running(command, promised)
        elif block.order == "end":
            for command, promised in block.commands():
                ended, _ = self._background.pop(command)
                assert ended.end() == 0, "\n".join(ended.said)
                require_lines(promised, ended.said)
        elif block.order == "there":
            for line in block.text.splitlines():
                self._see(line)
        elif block.language == "python":
            done = self._run([sys.executable, "-c", self._here(block.text)])
            assert done.returncode == 0, done.stdout
        else:
            for command, promised in block.commands():
                self._type(command, promised)

    def leave_running(self, command: str, promised: list[str]) -> None:
        program, *words = self._here(command).split()
        if program != "deputize":
            started = Running(*words, folder=self.folder, env=self._env, program=program)
            self._background[command] = (started, signal.SIGTERM)
            for line in promised:
                started.until(line.partition("…")[0].rstrip())
            return
        started = Running(*words, folder=self.folder, env=self._env)
        self._background[command] = (started, signal.SIGINT)
        started.until("▶")
        require_lines(promised, started.said)

    def _see(self, line: str) -> None:
        gateway, _ = [self._background[each] for each in self._background if each.startswith("deputize")][-1]
        said = gateway.until(line.partition("…")[0].rstrip())
        require_lines([_CODE.sub("…", line)], [said])
        self._codes |= dict(zip(_CODE.findall(line), _CODE.findall(said), strict=True))

    def leave(self) -> None:
        """End what was left running, the last first: what was started later may stand on what was there before."""
        for started, number in reversed(self._background.values()):
            started.interrupt(number)

    def _type(self, command: str, promised: list[str]) -> None:
        if command.startswith("curl") and shutil.which("curl") is None:
            return
        marker = self.folder.parent / ".where"
        done = self._run(["/bin/bash", "-c", f"{self._here(command)}\nCODE=$?; pwd > {marker}; exit $CODE"])
        self.folder = Path(marker.read_text().strip())
        assert (done.returncode != 0) == any(line.startswith(_NOT_DONE) for line in promised), done.stdout
        require_lines(promised, done.stdout.splitlines())

    def _run(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def _here(self, text: str) -> str:
        """The page names the usual address and some code; this gateway may have taken another, and shown another."""
        for written, shown in self._codes.items():
            text = text.replace(written, shown)
        announced = self.folder / ".deputize" / "dev.json"
        return text.replace(_USUAL_URL, json.loads(announced.read_text())["url"]) if announced.exists() else text


def require_lines(promised: list[str], seen: list[str]) -> None:
    """Every promised line, in this order; other lines may stand between them."""
    left = iter(seen)
    for line in promised:
        parts = [r"\s+".join(map(re.escape, _plain(part).split())) for part in line.split("…")]
        pattern = re.compile(r"\s*" + r".*".join(parts) + r"\s*")
        assert any(pattern.fullmatch(_plain(each)) for each in left), f"promised {line!r}, seen:\n" + "\n".join(seen)


def _plain(line: str) -> str:
    return _LOCAL.sub("127.0.0.1:PORT", line)
