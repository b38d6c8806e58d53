"""Someone with a PATH, a HOME and an empty folder, who types commands, and the list of what went wrong for them."""

from dataclasses import dataclass, field
from pathlib import Path

from proofs.kit.child_process import ChildProcess, CommandResult
from proofs.kit.sandbox import Sandbox


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

    def check_result(self, result: CommandResult, sentence: str, *texts: str, code: int = 0) -> None:
        """Check a command's exit code and what it said."""
        output = result.stdout + result.stderr
        missing = [each for each in texts if each not in output]
        is_ok = result.code == code and not missing and "Traceback" not in output
        self.check(is_ok, f"{sentence}: exit {result.code}, without {missing}: {output[-600:]!r}")


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
