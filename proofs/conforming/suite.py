"""The official conformance suite: had through npm, run under the node it wants, its results read back.

Above: `conformance.py`. Below: `kit/idp/install.py`, which asks npm; the suite, which is what `package.json` names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, Self

import orjson
import yaml

from proofs.kit.child import Finished
from proofs.kit.idp.install import install, node_of
from proofs.kit.world import World

Leg = Literal["server", "client"]
LEGS: tuple[Leg, ...] = ("server", "client")
REVISIONS = ("2025-11-25", "2026-07-28")
_PACKAGE = Path(__file__).resolve().with_name("package.json")
_SUITE = Path("node_modules") / "@modelcontextprotocol" / "conformance"
_BAD = frozenset({"FAILURE", "WARNING"})
# The suite's own limit per scenario; a machine with other work takes longer than it expects.
_SCENARIO_MS = 60_000
_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One scenario as it went: what of it failed, and how much did not. The suite's warnings count as failures."""

    scenario: str
    passed: int
    failed: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Required:
    """What a revision asks for, in the suite's own words."""

    scored: tuple[str, ...]
    beside: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.scored, *self.beside)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    world: World
    home: Path
    revisions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    async def get(cls, world: World) -> Self:
        home = await install(world, _PACKAGE)
        folder = home / _SUITE / "requirements"
        read = {name: yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in REVISIONS}
        return cls(world=world, home=home, revisions=read)

    def required(self, leg: Leg, revision: str) -> Required:
        known = self.revisions[revision]
        beside = tuple(each["scenario"] for each in known["not_scored"] if each["leg"] == leg)
        return Required(scored=tuple(known[leg]), beside=beside)

    async def run(self, leg: Leg, revision: str, *words: str) -> dict[str, Seen]:
        """Everything the revision asks of one side, scored or not."""
        kept = self.world.folder / f"suite-{leg}-{revision}"
        done = await self._run(leg, *words, "--requirements", revision, "--output-dir", str(kept))
        seen = read_results(kept, leg, self.required(leg, revision).all)
        if not seen:
            raise RuntimeError(f"the suite told nothing of {leg} {revision}: {done.stdout[-500:]} {done.stderr[-500:]}")
        return seen

    async def run_one(self, leg: Leg, revision: str, scenario: str, *words: str) -> Seen:
        """One scenario, as the revision has it."""
        kept = Path(mkdtemp(dir=self.world.folder, prefix="suite-"))
        words = (*words, "--scenario", scenario, "--spec-version", revision, "--force", "--output-dir", str(kept))
        done = await self._run(leg, *words)
        seen = read_results(kept, leg, [scenario])
        if scenario not in seen:
            raise RuntimeError(f"the suite told nothing of {scenario}: {done.stdout[-500:]} {done.stderr[-500:]}")
        return seen[scenario]

    async def _run(self, leg: Leg, *words: str) -> Finished:
        argv = [str(node_of(self.home)), str(self.home / _SUITE / "dist" / "index.js"), leg, *words]
        env = {"NODE_COMPILE_CACHE": str(self.home / "compiled")}
        return await self.world.run([*argv, "--timeout", str(_SCENARIO_MS)], env=env, timeout=_SECONDS)


def read_results(folder: Path, leg: Leg, scenarios: Sequence[str]) -> dict[str, Seen]:
    """Each scenario's checks, from where the suite keeps them: a folder named for the scenario and the time."""
    found: dict[str, Seen] = {}
    for file in sorted(folder.rglob("checks.json")):
        path = str(file.parent.relative_to(folder)).removeprefix("server-" if leg == "server" else "")
        named = [each for each in scenarios if path.startswith(f"{each}-20")]
        if named:
            name = max(named, key=len)
            found[name] = seen_in(name, orjson.loads(file.read_bytes()))
    return found


def seen_in(scenario: str, checks: Sequence[Mapping[str, Any]]) -> Seen:
    failed: dict[str, str] = {}
    for check in checks:
        if check["status"] in _BAD:
            failed.setdefault(check["id"], str(check.get("errorMessage") or check.get("description") or "")[:300])
    return Seen(scenario=scenario, passed=sum(check["status"] == "SUCCESS" for check in checks), failed=failed)
