"""Judge the results stored in `proofs/results` anew, against the code, the history and what the proofs declare."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from proofs.kit.declarations import Declaration
from proofs.kit.facts import compute_digests, list_commits
from proofs.kit.report import Bar, Verdict, check_bars, has_passed

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
_FIELDS: Final = frozenset({"name", "passed", "form", "figures", "bars", "controls", "commit", "dirty", "machine"})


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResult:
    """What is known about the result of one proof."""

    name: str
    result: Mapping[str, Any] | None
    faults: Sequence[str] = ()
    """Why it must not be published: it is missing, or says what is not so."""
    misses: Sequence[str] = ()
    """Bars and controls that it truthfully misses."""
    changed: Sequence[str] = ()
    """Packages that changed since it was measured; not empty means stale."""
    unmeasured: str | None = None
    """Why there is no result."""

    @property
    def is_current(self) -> bool:
        return not (self.faults or self.misses or self.changed or self.unmeasured)

    def describe_state(self) -> str:
        """Say in a few words what a reader of its figures has to know."""
        if self.result is None or self.faults:
            return "not measured on this code"
        parts = ["below its bar"] if self.misses else []
        parts += [f"measured on earlier code (`{str(self.result['commit'])[:10]}`)"] if self.changed else []
        return ", ".join(parts) or "measured on this code"


@dataclass(frozen=True, kw_only=True)
class ResultJudge:
    """Judge stored results; what git and the files say is asked once."""

    declarations: Mapping[str, Declaration]
    folder: Path = RESULTS
    commits: frozenset[str] = field(default_factory=list_commits)
    compute: Callable[[str, Sequence[str]], Mapping[str, str]] = compute_digests

    def judge_all(self) -> list[StoredResult]:
        """Judge the result of every declared proof, and of every file that belongs to none."""
        strays = sorted({file.stem for file in self.folder.glob("*.json")} - self.declarations.keys())
        return [
            *(self._judge_result(self.declarations[name]) for name in sorted(self.declarations)),
            *(StoredResult(name=name, result=None, faults=["a result of no proof: remove it"]) for name in strays),
        ]

    def _judge_result(self, declaration: Declaration) -> StoredResult:
        name, file = declaration.name, self.folder / f"{declaration.name}.json"
        advice = f"run `python -m proofs {name} --full` on a clean commit"
        if not file.exists():
            if declaration.unmeasured is not None:
                return StoredResult(name=name, result=None, unmeasured=declaration.unmeasured)
            return StoredResult(name=name, result=None, faults=[f"results/{file.name} is missing: {advice}"])
        try:
            result = orjson.loads(file.read_bytes())
            absent = _FIELDS - result.keys()
        except (orjson.JSONDecodeError, AttributeError):
            absent, result = _FIELDS, None
        if absent:
            return StoredResult(name=name, result=None, faults=[f"results/{file.name} is no result: {advice}"])
        verdict = Verdict(figures=result["figures"], bars=_read_bars(result), controls=result["controls"])
        return StoredResult(
            name=name,
            result=result,
            faults=[
                *self._find_origin_faults(result, advice),
                *_find_differences(verdict, declaration, advice),
                *_find_contradictions(result, verdict),
                *(
                    ["proofs.toml calls it unmeasured, and there is a result: remove that"]
                    if declaration.unmeasured
                    else []
                ),
            ],
            misses=_list_misses(verdict),
            changed=self._list_changes(result, declaration),
        )

    def _find_origin_faults(self, result: Mapping[str, Any], advice: str) -> list[str]:
        """Say why what was measured cannot be found again."""
        faults = []
        if result["form"] != "full":
            faults.append(f"is of the {result['form']} form: {advice}")
        if result["dirty"] is not False:
            faults.append(f"was measured on code that was changed and not committed: {advice}")
        if result["commit"] not in self.commits:
            faults.append(f"names commit {result['commit']}, which is not in the history (a shallow clone?): {advice}")
        return faults

    def _list_changes(self, result: Mapping[str, Any], declaration: Declaration) -> list[str]:
        stored = result.get("digests", {})
        now = self.compute(declaration.name, declaration.covers)
        return sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))


def _read_bars(result: Mapping[str, Any]) -> dict[str, Bar]:
    return {name: (bar["op"], bar["bar"]) for name, bar in result["bars"].items()}


def _find_differences(verdict: Verdict, declaration: Declaration, advice: str) -> list[str]:
    """Say which bars and controls are not those of the code."""
    names = {*verdict.bars, *declaration.full_bars}
    bars = sorted(name for name in names if verdict.bars.get(name) != declaration.full_bars.get(name))
    controls = sorted(set(verdict.controls) ^ set(declaration.controls))
    faults = [f"was held to other bars than the code's ({', '.join(bars)}): {advice}"] if bars else []
    return faults + ([f"tried other controls than the code's ({', '.join(controls)}): {advice}"] if controls else [])


def _find_contradictions(result: Mapping[str, Any], verdict: Verdict) -> list[str]:
    """Say where the stored verdict is not what its own figures give."""
    faults = []
    if result["passed"] is not has_passed(verdict):
        faults.append(f"says passed = {str(result['passed']).lower()}, and its figures say otherwise")
    for bar in check_bars(verdict):
        stored = result["bars"][bar.name]
        if stored["passed"] is not bar.is_met or stored["figure"] != bar.figure:
            faults.append(f"says of {bar.name} what its figure contradicts")
    return faults


def _list_misses(verdict: Verdict) -> list[str]:
    bars = [str(bar) for bar in check_bars(verdict) if not bar.is_met]
    return bars + [f"control {name} not caught" for name, is_caught in verdict.controls.items() if not is_caught]


def render_states(results: Sequence[StoredResult]) -> list[str]:
    """Render one line per thing to know, faults first."""
    lines = [f"{each.name}: {fault}" for each in results for fault in each.faults]
    for each in results:
        lines += [f"{each.name}: below its bar: {', '.join(each.misses)}"] if each.misses else []
        lines += (
            [f"{each.name}: stale: {', '.join(each.changed)} changed since it was measured"] if each.changed else []
        )
        lines += [f"{each.name}: not measured: {each.unmeasured}"] if each.unmeasured else []
    return lines
