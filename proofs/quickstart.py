"""How long it takes a newcomer: the commands of the first tutorial, typed one after the other, with nothing prepared.

Timed from the first command to the printed outcome of the first governed call, with PATH and HOME as the only
variables. In full also from an empty virtual environment, the packages being in pip's cache.
"""

import re
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from proofs.kit.child import Child, Finished, NotReady
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.world import World

NAME = "quickstart"
PROMISE = "Two commands to a governed call, in seconds, with nothing to set."

_ROOT = Path(__file__).resolve().parents[1]
_TUTORIAL = _ROOT / "docs" / "tutorials" / "first-call.md"
_INIT, _DEV, _CALL = "deputize init shop && cd shop", "deputize dev", "deputize call hello.greet name=Ana"
_LISTENING = "REST http://"
_ANSWER = "Hello, Ana!"
_CALL_ID = re.compile(r"call ([0-9a-f-]{36})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Newcomer:
    """Somebody with a PATH, a HOME and an empty folder."""

    world: World
    programs: Path
    folder: Path

    def typed(self, line: str) -> list[str]:
        variables = [f"PATH={self.programs}:/usr/bin:/bin", f"HOME={self.folder}"]
        return ["env", "-i", *variables, *shlex.split(line)]

    async def type(self, line: str, *, where: str = ".") -> Finished:
        return await self.world.run(self.typed(line), cwd=self.folder / where)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One way through the tutorial: how long it took, and what was not as it says."""

    seconds: float
    wrong: tuple[str, ...]
    left_running: int


async def prove(world: World) -> Verdict:
    _as_the_tutorial_says()
    installed = Path(sys.executable).parent
    tries = [await _try(world, installed, f"installed-{number}") for number in range(world.size(quick=2, full=5))]
    world.say(f"installed: {', '.join(f'{each.seconds:.1f} s' for each in tries)}")
    figures: dict[str, Figure] = {"installed_seconds": round(max(each.seconds for each in tries), 2)}
    bars: dict[str, Bar] = {"installed_seconds": ("<=", world.within(15))}
    if world.full:
        venv = await _from_an_empty_venv(world)
        tries.append(venv)
        figures["empty_venv_seconds"] = round(venv.seconds, 2)
        bars["empty_venv_seconds"] = ("<=", 60)
    figures["wrong"] = sum(len(each.wrong) for each in tries)
    figures["left_running"] = sum(each.left_running for each in tries)
    bars |= {"wrong": ("==", 0), "left_running": ("==", 0)}
    return Verdict(
        starved=("wrong", "left_running"),
        figures=figures,
        bars=bars,
        controls={
            "a tool file that does not load": await _is_caught(world, "tools/hello.py", "def greet(:\n"),
            "a setting that does not exist": await _is_caught(world, "deputize.toml", "[server]\nprot = 1\n"),
        },
        notes=[wrong for each in tries for wrong in each.wrong],
    )


def _as_the_tutorial_says() -> None:
    shown = re.findall(r"^\$ (.+)$", _TUTORIAL.read_text(), re.MULTILINE)
    missing = {_INIT, _DEV, _CALL} - set(shown)
    if missing:
        raise RuntimeError(f"the tutorial no longer shows what is typed here: {', '.join(sorted(missing))}")


async def _try(
    world: World, programs: Path, name: str, *, began: float | None = None, spoil: tuple[str, str] | None = None
) -> Tried:
    """Type the tutorial in an empty folder; `spoil` writes something else into one file of the new project."""
    folder = world.folder / name
    folder.mkdir()
    newcomer = Newcomer(world=world, programs=programs, folder=folder)
    began = time.monotonic() if began is None else began
    made = await newcomer.type(_INIT.partition(" && ")[0])
    wrong = [] if made.code == 0 else [f"init ended with {made.code}: {made.stderr[-300:]}"]
    if spoil is not None:
        (folder / "shop" / spoil[0]).write_text(spoil[1])
    gateway: Child | None = None
    try:
        gateway = await world.start(
            f"dev-{name}", newcomer.typed(_DEV), cwd=folder / "shop", ready_line=_LISTENING, timeout=240
        )
        called = await newcomer.type(_CALL, where="shop")
        seconds = time.monotonic() - began
        wrong += _wrong_with(called)
        wrong += await _not_recorded(newcomer, called)
    except NotReady as error:
        seconds = time.monotonic() - began
        wrong.append(f"dev: {error}")
    if gateway is not None and await gateway.stop(timeout=60) != 0:
        wrong.append(f"dev did not end in order: {gateway.state}")
    return Tried(seconds=seconds, wrong=tuple(wrong), left_running=_still_running(folder))


def _wrong_with(called: Finished) -> list[str]:
    if called.code == 0 and _ANSWER in called.stdout and "allowed by" in called.stderr:
        return []
    return [f"the call ended with {called.code} and said {(called.stdout + called.stderr)[-400:]!r}"]


async def _not_recorded(newcomer: Newcomer, called: Finished) -> list[str]:
    """A governed call can be looked back at by the id that was printed with its outcome."""
    printed = _CALL_ID.search(called.stdout + called.stderr)
    if printed is None:
        return ["no call id was printed"]
    shown = await newcomer.type(f"deputize calls show {printed[1]}", where="shop")
    return (
        []
        if shown.code == 0 and "succeeded" in shown.stdout + shown.stderr
        else [f"not recorded: {shown.stderr[-300:]}"]
    )


async def _from_an_empty_venv(world: World) -> Tried:
    """Once to fill pip's cache, then once in earnest. pip keeps this machine's own settings: where packages come from
    is not the product's to say.
    """
    for name in ("warm", "timed"):
        venv = world.folder / f"venv-{name}"
        began = time.monotonic()
        made = await world.run([sys.executable, "-m", "venv", str(venv)], timeout=120)
        install = [
            str(venv / "bin" / "pip"),
            "install",
            "--quiet",
            "--constraint",
            "constraints.txt",
            f"{_ROOT}[local]",
        ]
        installed = await world.run(install, cwd=_ROOT, timeout=600)
        if made.code or installed.code:
            raise RuntimeError(f"the package was not installed: {made.stderr}{installed.stderr[-2000:]}")
        world.say(f"empty venv, {name}: installed after {time.monotonic() - began:.1f} s")
    return await _try(world, venv / "bin", "venv", began=began)


async def _is_caught(world: World, file: str, content: str) -> bool:
    """A project that is broken on purpose must not pass for one that works."""
    tried = await _try(world, Path(sys.executable).parent, f"broken-{Path(file).stem}", spoil=(file, content))
    return bool(tried.wrong) and tried.left_running == 0


def _still_running(folder: Path) -> int:
    """How many processes still work in the folder, or were started with it."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes().decode(errors="replace")
            where = (process / "cwd").resolve()
        except OSError:
            continue
        count += str(folder) in told or where.is_relative_to(folder)
    return count
