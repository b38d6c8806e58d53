"""What a proof found, judged against its bars, and how that is told: one line, one JSON, one exit code.

Above: `proofs.__main__`. Below: `facts`, of the commit and the machine.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

Figure = int | float | str
Op = Literal[">=", ">", "<=", "<", "=="]
Bar = tuple[Op, Figure]

RESULTS = Path(__file__).resolve().parents[1] / "results"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What `prove` returns: figures, and bars set on the figures of the same names.

    A control is a variant broken on purpose; true says that the proof caught it. `starved` are exact bars that a
    gateway misses without doing anything wrong where it hardly gets to run: it refuses, or is not ready in time.
    """

    figures: Mapping[str, Figure]
    bars: Mapping[str, Bar]
    controls: Mapping[str, bool] = field(default_factory=dict)
    notes: Sequence[str] = ()
    starved: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One bar and whether its figure meets it."""

    name: str
    op: Op
    bar: Figure
    figure: Figure | None
    passed: bool

    def __str__(self) -> str:
        mark = "" if self.passed else " (!)"
        return f"{self.name} {_short(self.figure)} {self.op} {_short(self.bar)}{mark}"


def judge(verdict: Verdict) -> tuple[Judged, ...]:
    """Every bar with its figure; a bar without a figure, or with one of another kind, is not met."""
    return tuple(
        Judged(
            name=name,
            op=op,
            bar=bar,
            figure=verdict.figures.get(name),
            passed=_meets(op, verdict.figures.get(name), bar),
        )
        for name, (op, bar) in verdict.bars.items()
    )


def passes(verdict: Verdict) -> bool:
    """Whether every bar is met and every control was caught; without a bar nothing is shown, so it fails."""
    bars = judge(verdict)
    return bool(bars) and all(bar.passed for bar in bars) and all(verdict.controls.values())


def is_wrong(verdict: Verdict) -> bool:
    """Whether something came out that must not, however busy the machine was: an exact bar that is not met."""
    return any(bar.op == "==" and not bar.passed and bar.name not in verdict.starved for bar in judge(verdict))


def last_line(name: str, verdict: Verdict) -> str:
    """Figures and bars in one line that ends with PASS or FAIL."""
    told = [str(bar) for bar in judge(verdict)]
    told += [f"{key} {_short(value)}" for key, value in verdict.figures.items() if key not in verdict.bars]
    told += [f"control {key} {'caught' if caught else 'NOT CAUGHT'}" for key, caught in verdict.controls.items()]
    return f"{name}: {', '.join(told) or 'no figures'}: {'PASS' if passes(verdict) else 'FAIL'}"


def as_json(name: str, verdict: Verdict, *, full: bool, about: Mapping[str, object]) -> bytes:
    """The result as it is kept; `about` adds commit, machine and time."""
    bars = {
        bar.name: {"op": bar.op, "bar": bar.bar, "figure": bar.figure, "passed": bar.passed} for bar in judge(verdict)
    }
    result = {
        "name": name,
        "passed": passes(verdict),
        "form": "full" if full else "quick",
        "figures": dict(verdict.figures),
        "bars": bars,
        "controls": dict(verdict.controls),
        "notes": list(verdict.notes),
        **about,
    }
    return orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def shortcomings(folder: Path = RESULTS) -> list[str]:
    """What is wrong with the kept results: each must be of the full form and meet its bars, judged anew."""
    found: list[str] = []
    for file in sorted(folder.glob("*.json")):
        kept = orjson.loads(file.read_bytes())
        verdict = Verdict(
            figures=kept["figures"],
            bars={name: (bar["op"], bar["bar"]) for name, bar in kept["bars"].items()},
            controls=kept["controls"],
        )
        if kept["name"] != file.stem:
            found.append(f"{file.name} holds the result of {kept['name']}")
        if kept["form"] != "full":
            found.append(f"{file.name} is of the {kept['form']} form: run `python -m proofs {file.stem} --full`")
        if not kept["passed"] or not passes(verdict):
            found.append(last_line(file.stem, verdict))
    return found


def _meets(op: Op, figure: Figure | None, bar: Figure) -> bool:
    if op not in get_args(Op):
        raise ValueError(f"a bar's operator is one of {', '.join(get_args(Op))}, not {op!r}")
    if figure is None or isinstance(figure, str) != isinstance(bar, str):
        return False
    return bool(_OPERATORS[op](figure, bar))


_OPERATORS: dict[Op, Callable[[Any, Any], object]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
}


def _short(value: Figure | None) -> str:
    if value is None:
        return "missing"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
