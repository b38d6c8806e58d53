"""Read what proofs declare in `proofs/proofs.toml`: the packages they cover, their bars and their controls."""

import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from proofs.kit.report import Bar, Figure, Operator

DECLARATIONS: Final = Path(__file__).resolve().parents[1] / "proofs.toml"
TIME_FACTOR: Final = 25
"""How much longer something timed by the clock may take in the quick form, which runs beside whatever else."""
RATIO_FACTOR: Final = 3
"""How much looser a ratio may be in the quick form: both sides of it are measured on the same machine."""
_KINDS: Final = ("size", "time", "ratio")


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """What one proof covers and has to show."""

    name: str
    covers: tuple[str, ...]
    full_bars: Mapping[str, Bar]
    quick_bars: Mapping[str, Bar]
    controls: tuple[str, ...]
    load_sensitive: tuple[str, ...]
    needs: Mapping[str, str] = field(default_factory=dict)

    def explain_missing_programs(self) -> str | None:
        """Say which programs that it needs are not on this host, and how to install them; None if all are."""
        missing = [each for each in self.needs if shutil.which(each) is None]
        if not missing:
            return None
        packages = " ".join(dict.fromkeys(self.needs[each] for each in missing))
        return f"{self.name} needs {' and '.join(missing)}: apt-get install -y {packages}, then run it again"


def load_declarations(path: Path = DECLARATIONS) -> dict[str, Declaration]:
    """Load every declaration; one that says what it must not is an error that names it."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: _read_declaration(name, table) for name, table in tables.items()}


def get_declaration(name: str, path: Path = DECLARATIONS) -> Declaration:
    """Return the declaration of one proof."""
    declarations = load_declarations(path)
    if name not in declarations:
        raise ValueError(f"proofs/{path.name} has no [{name}]: declare what it covers, its bars and its controls")
    return declarations[name]


def _read_declaration(name: str, table: Mapping[str, Any]) -> Declaration:
    unknown = table.keys() - {"covers", "bars", "controls", "load_sensitive", "needs"}
    if unknown or not table.get("covers") or not table.get("bars"):
        raise ValueError(f"[{name}] in {DECLARATIONS.name} needs covers and bars, and knows no {sorted(unknown)}")
    full_bars: dict[str, Bar] = {}
    quick_bars: dict[str, Bar] = {}
    for figure, declared in table["bars"].items():
        full_bar, quick_bar = _read_bar(f"[{name}] {figure}", declared)
        full_bars[figure] = full_bar
        if quick_bar is not None:
            quick_bars[figure] = quick_bar
    controls, load_sensitive = tuple(table.get("controls", ())), tuple(table.get("load_sensitive", ()))
    exact = {figure for figure, (operator, _) in full_bars.items() if operator == "=="}
    for each in load_sensitive:
        if each not in exact.union(controls):
            raise ValueError(f"[{name}] load_sensitive names {each}, which is no control and has no exact bar")
    return Declaration(
        name=name,
        covers=tuple(table["covers"]),
        full_bars=full_bars,
        quick_bars=quick_bars,
        controls=controls,
        load_sensitive=load_sensitive,
        needs=dict(table.get("needs", {})),
    )


def _read_bar(place: str, declared: str | Mapping[str, Any]) -> tuple[Bar, Bar | None]:
    """Return the bars of the full and of the quick form; the quick form may have none."""
    table = {"full": declared} if isinstance(declared, str) else declared
    kind = table.get("kind", "size")
    if table.keys() - {"full", "kind", "quick"} or kind not in _KINDS:
        raise ValueError(f"{place}: a bar has full, quick and a kind, which is one of {', '.join(_KINDS)}")
    full_bar, quick = _parse_bar(place, table["full"]), table.get("quick")
    if quick is False:
        return full_bar, None
    if kind == "size":
        return full_bar, full_bar if quick is None else _parse_bar(place, quick)
    loosest = _loosen_bar(full_bar, TIME_FACTOR if kind == "time" else RATIO_FACTOR)
    quick_bar = loosest if quick is None else _parse_bar(place, quick)
    if quick_bar[0] != full_bar[0] or _is_looser(quick_bar, loosest):
        raise ValueError(f"{place}: the quick form of a {kind} is at most {_format_bar(loosest)}")
    return full_bar, quick_bar


def _parse_bar(place: str, text: str) -> Bar:
    operator, _, number = text.partition(" ")
    if operator not in get_args(Operator):
        raise ValueError(f"{place}: {text!r} is not an operator and a number, such as '<= 3'")
    value: Figure = float(number) if "." in number else int(number)
    return operator, value  # type: ignore[return-value]  # compared with the literals above


def _loosen_bar(bar: Bar, factor: int) -> Bar:
    operator, value = bar
    number = float(value)
    return operator, round(number / factor if operator.startswith(">") else number * factor, 6)


def _is_looser(bar: Bar, other: Bar) -> bool:
    return float(bar[1]) < float(other[1]) if bar[0].startswith(">") else float(bar[1]) > float(other[1])


def _format_bar(bar: Bar) -> str:
    return f"{bar[0]} {bar[1]}"
