"""Someone with a PATH, a HOME and an empty folder, who types commands, and the list of what went wrong for them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proofs.kit.child_process import ChildProcess, CommandResult, ProcessNotReady
from proofs.kit.sandbox import Sandbox

_CALL_ID = re.compile(r"\bcall ([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12})")


@dataclass(kw_only=True, slots=True)
class Journal:
    """What was checked, and what was not as it should be."""

    check_count: int = 0
    faults: list[str] = field(default_factory=list)

    def check(self, is_ok: object, sentence: str) -> None:
        """Note one check; the sentence says what should be the case."""
        self.check_count += 1
        if not is_ok:
            self.faults.append(sentence)

    def check_text(self, text: str, sentence: str, *texts: str, without: Sequence[str] = ()) -> None:
        """Check what a page, a message or an answer says, and what it must not say."""
        missing = [each for each in texts if each not in text]
        wrong = [each for each in (*without, "Traceback") if each in text]
        self.check(not missing and not wrong, f"{sentence}: without {missing}, with {wrong}: {text[-600:]!r}")

    def check_result(
        self, result: CommandResult, sentence: str, *texts: str, without: Sequence[str] = (), code: int = 0
    ) -> None:
        """Check a command's exit code and what it said."""
        output = read_output(result)
        if result.code == code:
            self.check_text(output, sentence, *texts, without=without)
        else:
            self.check(False, f"{sentence}: exit {result.code} in place of {code}: {output[-600:]!r}")


@dataclass(kw_only=True, slots=True)
class Newcomer:
    """A person at a shell; `variables` are those they exported."""

    sandbox: Sandbox
    bin_folder: Path
    home: Path
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    command_count: int = 0

    def build_command(self, line: str) -> list[str]:
        variables = {
            "PATH": f"{self.bin_folder}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            **self.variables,
        }
        return ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), "bash", "-c", line]

    async def run_typed(self, line: str) -> CommandResult:
        """Run a line as it was typed."""
        self.command_count += 1
        return await self.sandbox.run_command(self.build_command(line), cwd=self.folder)

    async def start_typed(self, name: str, line: str, ready_line: str | None) -> ChildProcess:
        """Start a line that goes on."""
        self.command_count += 1
        return await self.sandbox.start_process(
            name, self.build_command(f"exec {line}"), cwd=self.folder, ready_line=ready_line, timeout=240
        )


def read_output(result: CommandResult) -> str:
    return result.stdout + result.stderr


def find_call_id(result: CommandResult) -> str:
    """Find the id of the call that a command made; empty if it made none."""
    found = _CALL_ID.search(read_output(result))
    return found[1] if found else ""


async def wait_for(process: ChildProcess, text: str, seconds: float = 30.0) -> bool:
    """Wait for a line of a process that goes on; false if it does not come in time."""
    try:
        await process.wait_for_line(text, timeout=seconds)
    except ProcessNotReady:
        return False
    return True
