"""The official conformance suite: had through npm, run under the node it wants, its results read back."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, Self

import orjson
import yaml

from proofs.kit.child_process import CommandResult
from proofs.kit.idp.install import get_node_path, install_package
from proofs.kit.sandbox import Sandbox

Leg = Literal["server", "client"]
LEGS: tuple[Leg, ...] = ("server", "client")
REVISIONS = ("2025-11-25", "2026-07-28")
_PACKAGE = Path(__file__).resolve().with_name("package.json")
_SUITE = Path("node_modules") / "@modelcontextprotocol" / "conformance"
_BAD = frozenset({"FAILURE", "WARNING"})
# The suite's own limit per scenario; a machine with other work takes longer than it expects.
_SCENARIO_MS = 60_000
# A suite that hangs is ended, and what it reported until then counts; the rest is run again by itself.
_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioResult:
    """One scenario as it went: what of it failed, and how much did not. The suite's warnings count as failures."""

    scenario: str
    passed_count: int
    failures: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequiredScenarios:
    """What a revision asks for, in the suite's own words."""

    scored_names: tuple[str, ...]
    unscored_names: tuple[str, ...]

    @property
    def all_names(self) -> tuple[str, ...]:
        return (*self.scored_names, *self.unscored_names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    sandbox: Sandbox
    home: Path
    revisions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    async def install(cls, sandbox: Sandbox) -> Self:
        home = await install_package(sandbox, _PACKAGE)
        folder = home / _SUITE / "requirements"
        requirements = {name: yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in REVISIONS}
        return cls(sandbox=sandbox, home=home, revisions=requirements)

    def get_required(self, leg: Leg, revision: str) -> RequiredScenarios:
        requirements = self.revisions[revision]
        beside = tuple(each["scenario"] for each in requirements["not_scored"] if each["leg"] == leg)
        return RequiredScenarios(scored_names=tuple(requirements[leg]), unscored_names=beside)

    async def run_revision(self, leg: Leg, revision: str, *arguments: str) -> dict[str, ScenarioResult]:
        """Everything the revision asks of one side, scored or not."""
        output_folder = self.sandbox.folder / f"suite-{leg}-{revision}"
        command_result = await self._run_suite(
            leg, *arguments, "--requirements", revision, "--output-dir", str(output_folder)
        )
        results = read_results(output_folder, leg, self.get_required(leg, revision).all_names)
        if not results:
            raise _explain_silence(f"{leg} {revision}", command_result)
        return results

    async def run_scenario(self, leg: Leg, revision: str, scenario: str, *arguments: str) -> ScenarioResult:
        """One scenario, as the revision has it."""
        output_folder = Path(mkdtemp(dir=self.sandbox.folder, prefix="suite-"))
        arguments = (
            *arguments,
            "--scenario",
            scenario,
            "--spec-version",
            revision,
            "--force",
            "--output-dir",
            str(output_folder),
        )
        command_result = await self._run_suite(leg, *arguments)
        results = read_results(output_folder, leg, [scenario])
        if scenario not in results:
            raise _explain_silence(scenario, command_result)
        return results[scenario]

    async def _run_suite(self, leg: Leg, *arguments: str) -> CommandResult:
        argv = [str(get_node_path(self.home)), str(self.home / _SUITE / "dist" / "index.js"), leg, *arguments]
        env = {"NODE_COMPILE_CACHE": str(self.home / "compiled")}
        try:
            return await self.sandbox.run_command([*argv, "--timeout", str(_SCENARIO_MS)], env=env, timeout=_SECONDS)
        except TimeoutError:
            return CommandResult(
                code=-signal.SIGKILL, stdout="", stderr=f"ended after {_SECONDS:g} s", seconds=_SECONDS
            )


def _explain_silence(subject: str, command_result: CommandResult) -> Exception:
    """Build the error for a suite without a result; one that was ended only took too long."""
    text = f"the suite told nothing of {subject}: {command_result.stdout[-500:]} {command_result.stderr[-500:]}"
    return TimeoutError(text) if command_result.code == -signal.SIGKILL else RuntimeError(text)


def read_results(folder: Path, leg: Leg, scenarios: Sequence[str]) -> dict[str, ScenarioResult]:
    """Each scenario's checks, from where the suite keeps them: a folder named for the scenario and the time."""
    results: dict[str, ScenarioResult] = {}
    for file in sorted(folder.rglob("checks.json")):
        path = str(file.parent.relative_to(folder)).removeprefix("server-" if leg == "server" else "")
        matching_names = [each for each in scenarios if path.startswith(f"{each}-20")]
        if matching_names:
            name = max(matching_names, key=len)
            results[name] = parse_result(name, orjson.loads(file.read_bytes()))
    return results


def parse_result(scenario: str, checks: Sequence[Mapping[str, Any]]) -> ScenarioResult:
    failures: dict[str, str] = {}
    for check in checks:
        if check["status"] in _BAD:
            failures.setdefault(check["id"], str(check.get("errorMessage") or check.get("description") or "")[:300])
    return ScenarioResult(
        scenario=scenario, passed_count=sum(check["status"] == "SUCCESS" for check in checks), failures=failures
    )
