"""How long it takes a newcomer: the commands of the first tutorial, typed one after the other, with nothing prepared.

Timed from the first command to the printed outcome of the first governed call, with PATH and HOME as the only
variables. In full also from an empty virtual environment, the packages being in pip's cache.
"""

import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proofs.kit.child_process import ChildProcess, CommandResult, ProcessNotReady
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox

NAME = "quickstart"
PROMISE = "Two commands to a governed call, in seconds, with nothing to set."

_ROOT = Path(__file__).resolve().parents[1]
_TUTORIAL = _ROOT / "docs" / "tutorials" / "first-call.md"
_INIT, _DEV, _CALL = "deputize init shop && cd shop", "deputize dev", "deputize call hello.greet name=Ana"
_READY_LINE = "REST http://"
_ANSWER = "Hello, Ana!"
_CALL_ID = re.compile(r"call ([0-9a-f-]{36})")


@dataclass(frozen=True, kw_only=True, slots=True)
class NewUser:
    """Someone with a PATH, a HOME and an empty folder."""

    sandbox: Sandbox
    bin_folder: Path
    folder: Path

    def build_command(self, line: str) -> list[str]:
        variables = [f"PATH={self.bin_folder}:/usr/bin:/bin", f"HOME={self.folder}"]
        return ["env", "-i", *variables, *shlex.split(line)]

    async def run_typed(self, line: str, *, subfolder: str = ".") -> CommandResult:
        return await self.sandbox.run_command(self.build_command(line), cwd=self.folder / subfolder)


@dataclass(frozen=True, kw_only=True, slots=True)
class TutorialRun:
    """One way through the tutorial: how long it took, and what was not as it says."""

    seconds: float
    faults: tuple[str, ...]
    delays: tuple[str, ...]
    """What did not start or end in its time."""
    leftover_count: int


async def prove(sandbox: Sandbox) -> Verdict:
    _require_tutorial_commands()
    bin_folder = Path(sys.executable).parent
    runs = [
        await _run_tutorial(sandbox, bin_folder, f"installed-{number}")
        for number in range(sandbox.pick_size(quick=2, full=5))
    ]
    sandbox.log(f"installed: {', '.join(f'{each.seconds:.1f} s' for each in runs)}")
    venv_run = await _run_from_empty_venv(sandbox) if sandbox.full else None
    return Verdict(
        figures=judge_runs(runs, venv_run),
        controls={
            "a tool file that does not load": await _is_fault_caught(sandbox, "tools/hello.py", "def greet(:\n"),
            "a setting that does not exist": await _is_fault_caught(sandbox, "deputize.toml", "[server]\nprot = 1\n"),
        },
        notes=[
            sentence
            for each in (*runs, *([] if venv_run is None else [venv_run]))
            for sentence in (*each.faults, *each.delays)
        ],
    )


def judge_runs(runs: Sequence[TutorialRun], venv_run: TutorialRun | None) -> dict[str, Figure]:
    """Sum up the runs with the installed package, and the one from an empty virtual environment."""
    figures: dict[str, Figure] = {"installed_seconds": round(max(each.seconds for each in runs), 2)}
    if venv_run is not None:
        runs = [*runs, venv_run]
        figures["empty_venv_seconds"] = round(venv_run.seconds, 2)
    figures["wrong"] = sum(len(each.faults) for each in runs)
    figures["not_in_time"] = sum(len(each.delays) for each in runs)
    figures["left_running"] = sum(each.leftover_count for each in runs)
    return figures


def _require_tutorial_commands() -> None:
    commands = re.findall(r"^\$ (.+)$", _TUTORIAL.read_text(), re.MULTILINE)
    missing = {_INIT, _DEV, _CALL} - set(commands)
    if missing:
        raise RuntimeError(f"the tutorial no longer shows what is typed here: {', '.join(sorted(missing))}")


async def _run_tutorial(
    sandbox: Sandbox,
    bin_folder: Path,
    name: str,
    *,
    began: float | None = None,
    replacement: tuple[str, str] | None = None,
) -> TutorialRun:
    """Type the tutorial in an empty folder; `spoil` writes something else into one file of the new project."""
    folder = sandbox.folder / name
    folder.mkdir()
    user = NewUser(sandbox=sandbox, bin_folder=bin_folder, folder=folder)
    began = time.monotonic() if began is None else began
    init_result = await user.run_typed(_INIT.partition(" && ")[0])
    faults = [] if init_result.code == 0 else [f"init ended with {init_result.code}: {init_result.stderr[-300:]}"]
    delays = []
    if replacement is not None:
        (folder / "shop" / replacement[0]).write_text(replacement[1])
    gateway: ChildProcess | None = None
    try:
        gateway = await sandbox.start_process(
            f"dev-{name}", user.build_command(_DEV), cwd=folder / "shop", ready_line=_READY_LINE, timeout=240
        )
        call_result = await user.run_typed(_CALL, subfolder="shop")
        seconds = time.monotonic() - began
        faults += find_call_faults(call_result)
        faults += await _find_record_faults(user, call_result)
    except ProcessNotReady as error:
        seconds = time.monotonic() - began
        delays.append(f"dev: {error}")
    if gateway is not None and await gateway.stop(timeout=60) != 0:
        delays.append(f"dev did not end in order: {gateway.state}")
    leftover_count = count_running_processes(folder)
    return TutorialRun(seconds=seconds, faults=tuple(faults), delays=tuple(delays), leftover_count=leftover_count)


def find_call_faults(call_result: CommandResult) -> list[str]:
    if call_result.code == 0 and _ANSWER in call_result.stdout and "allowed by" in call_result.stderr:
        return []
    return [f"the call ended with {call_result.code} and said {(call_result.stdout + call_result.stderr)[-400:]!r}"]


async def _find_record_faults(user: NewUser, call_result: CommandResult) -> list[str]:
    """A governed call can be looked back at by the id that was printed with its outcome."""
    call_id = find_call_id(call_result)
    if call_id is None:
        return ["no call id was printed"]
    return find_show_faults(await user.run_typed(f"deputize calls show {call_id}", subfolder="shop"))


def find_call_id(call_result: CommandResult) -> str | None:
    id_match = _CALL_ID.search(call_result.stdout + call_result.stderr)
    return None if id_match is None else id_match[1]


def find_show_faults(show_result: CommandResult) -> list[str]:
    if show_result.code == 0 and "succeeded" in show_result.stdout + show_result.stderr:
        return []
    return [f"not recorded: {show_result.stderr[-300:]}"]


async def _run_from_empty_venv(sandbox: Sandbox) -> TutorialRun:
    """Once to fill pip's cache, then once in earnest. pip keeps this machine's own settings: where packages come from
    is not the product's to say.
    """
    for name in ("warm", "timed"):
        venv = sandbox.folder / f"venv-{name}"
        began = time.monotonic()
        venv_result = await sandbox.run_command([sys.executable, "-m", "venv", str(venv)], timeout=120)
        install_command = [
            str(venv / "bin" / "pip"),
            "install",
            "--quiet",
            "--constraint",
            "constraints.txt",
            f"{_ROOT}[local]",
        ]
        install_result = await sandbox.run_command(install_command, cwd=_ROOT, timeout=600)
        if venv_result.code or install_result.code:
            raise RuntimeError(f"the package was not installed: {venv_result.stderr}{install_result.stderr[-2000:]}")
        sandbox.log(f"empty venv, {name}: installed after {time.monotonic() - began:.1f} s")
    return await _run_tutorial(sandbox, venv / "bin", "venv", began=began)


async def _is_fault_caught(sandbox: Sandbox, file: str, content: str) -> bool:
    """A project that is broken on purpose must not pass for one that works."""
    run = await _run_tutorial(
        sandbox, Path(sys.executable).parent, f"broken-{Path(file).stem}", replacement=(file, content)
    )
    return bool(run.faults or run.delays) and run.leftover_count == 0


def count_running_processes(folder: Path) -> int:
    """How many processes still work in the folder, or were started with it."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command_line = (process / "cmdline").read_bytes().decode(errors="replace")
            working_folder = (process / "cwd").resolve()
        except OSError:
            continue
        count += str(folder) in command_line or working_folder.is_relative_to(folder)
    return count
