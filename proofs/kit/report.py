"""What a proof found, judged against its bars, and how that is told: one line, one JSON, one exit code."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from subprocess import TimeoutExpired
from typing import Any, Literal, get_args

import orjson
from httpx2 import TimeoutException

Figure = int | float | str
Operator = Literal[">=", ">", "<=", "<", "=="]
Bar = tuple[Operator, Figure]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a proof found: figures, and bars set on the figures of the same names.

    `prove` returns figures, controls and notes; bars come from `proofs.toml`. A control is a variant broken on purpose;
    true says that the proof caught it. `load_sensitive` are exact bars that a gateway misses without doing anything
    wrong where it hardly gets to run: it refuses, or is not ready in time. It also names controls that are caught by
    comparing times.
    """

    figures: Mapping[str, Figure]
    bars: Mapping[str, Bar] = field(default_factory=dict)
    controls: Mapping[str, bool] = field(default_factory=dict)
    notes: Sequence[str] = ()
    load_sensitive: Sequence[str] = ()
    has_timed_out: bool = False
    """True for a proof that broke off because something took too long, and for no other reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BarResult:
    """One bar and whether its figure meets it."""

    name: str
    op: Operator
    bar: Figure
    figure: Figure | None
    is_met: bool

    def __str__(self) -> str:
        mark = "" if self.is_met else " (!)"
        return f"{self.name} {_format_value(self.figure)} {self.op} {_format_value(self.bar)}{mark}"


def check_bars(verdict: Verdict) -> tuple[BarResult, ...]:
    """Every bar with its figure; a bar without a figure, or with one of another kind, is not met."""
    return tuple(
        BarResult(
            name=name,
            op=op,
            bar=bar,
            figure=verdict.figures.get(name),
            is_met=_is_met(op, verdict.figures.get(name), bar),
        )
        for name, (op, bar) in verdict.bars.items()
    )


def has_passed(verdict: Verdict) -> bool:
    """Whether every bar is met and every control was caught; without a bar nothing is shown, so it fails."""
    bars = check_bars(verdict)
    return bool(bars) and all(bar.is_met for bar in bars) and all(verdict.controls.values())


def has_wrong_result(verdict: Verdict) -> bool:
    """Whether something came out that must not, however busy the machine was: an exact bar or a control missed."""
    missed = {name for name, is_caught in verdict.controls.items() if not is_caught}
    missed |= {bar.name for bar in check_bars(verdict) if bar.op == "==" and not bar.is_met}
    return bool(missed.difference(verdict.load_sensitive))


def is_timeout(failure: BaseException) -> bool:
    """Whether a proof broke off because something took too long, and for no other reason."""
    if isinstance(failure, BaseExceptionGroup):
        return all(is_timeout(each) for each in failure.exceptions)
    return isinstance(failure, TimeoutError | TimeoutException | TimeoutExpired)


def render_last_line(name: str, verdict: Verdict) -> str:
    """Figures and bars in one line that ends with PASS or FAIL."""
    parts = [str(bar) for bar in check_bars(verdict)]
    parts += [f"{key} {_format_value(value)}" for key, value in verdict.figures.items() if key not in verdict.bars]
    parts += [f"control {key} {'caught' if is_caught else 'NOT CAUGHT'}" for key, is_caught in verdict.controls.items()]
    return f"{name}: {', '.join(parts) or 'no figures'}: {'PASS' if has_passed(verdict) else 'FAIL'}"


def render_json(name: str, verdict: Verdict, *, full: bool, run_facts: Mapping[str, object]) -> bytes:
    """Render the result as it is stored; `run_facts` adds commit, digests, machine and time."""
    bars = {
        bar.name: {"op": bar.op, "bar": bar.bar, "figure": bar.figure, "passed": bar.is_met}
        for bar in check_bars(verdict)
    }
    result = {
        "name": name,
        "passed": has_passed(verdict),
        "form": "full" if full else "quick",
        "figures": dict(verdict.figures),
        "bars": bars,
        "controls": dict(verdict.controls),
        "notes": list(verdict.notes),
        **run_facts,
    }
    return orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _is_met(op: Operator, figure: Figure | None, bar: Figure) -> bool:
    if op not in get_args(Operator):
        raise ValueError(f"a bar's operator is one of {', '.join(get_args(Operator))}, not {op!r}")
    if figure is None or isinstance(figure, str) != isinstance(bar, str):
        return False
    return bool(_OPERATORS[op](figure, bar))


_OPERATORS: dict[Operator, Callable[[Any, Any], object]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
}


def _format_value(value: Figure | None) -> str:
    if value is None:
        return "missing"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
