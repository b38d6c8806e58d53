"""Describe where a schema refuses a value that another one allows."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from deputize.catalog.compatibility.json_equality import NUMBER_KINDS

Path = tuple[str | int, ...]


class BreakKind(StrEnum):
    """What kind of difference breaks callers."""

    VALUE = "value"
    REQUIRED = "required"
    EXTRA = "extra"
    UNPROVEN = "unproven"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaBreak:
    """One break: at a path, one schema demands `need`, and the other allows `have`."""

    path: Path
    kind: BreakKind
    need: str = ""
    have: str = ""

    def explain(self, view: "BreakView") -> str:
        """Explain the break as what happened to an input or a result."""
        return _SENTENCES[view][self.kind].format(need=self.need, have=self.have)


class BreakView(StrEnum):
    """From which side a break is told: what a new version accepts or returns, less or more than before; or what an
    agent sends or reads.
    """

    ACCEPTS_LESS = "accepts less"
    ACCEPTS_MORE = "accepts more"
    RETURNS_LESS = "returns less"
    RETURNS_MORE = "returns more"
    SENDS = "sends"
    READS = "reads"


_SENTENCES: Final[Mapping[BreakView, Mapping[BreakKind, str]]] = {
    BreakView.ACCEPTS_LESS: {
        BreakKind.VALUE: "must be {need} now, and could be {have}",
        BreakKind.REQUIRED: "is required now, and was optional",
        BreakKind.EXTRA: "is not accepted any more",
        BreakKind.UNPROVEN: "cannot be shown to accept all that was accepted: {need}",
    },
    BreakView.ACCEPTS_MORE: {
        BreakKind.VALUE: "can be {have} now, and had to be {need}",
        BreakKind.REQUIRED: "is optional now, and was required",
        BreakKind.EXTRA: "is accepted now, and was not",
        BreakKind.UNPROVEN: "may accept more than before: {need}",
    },
    BreakView.RETURNS_MORE: {
        BreakKind.VALUE: "can be {have} now, and was always {need}",
        BreakKind.REQUIRED: "can be missing now, and was always there",
        BreakKind.EXTRA: "is possible now, and was excluded",
        BreakKind.UNPROVEN: "cannot be shown to stay within what was promised: {need}",
    },
    BreakView.RETURNS_LESS: {
        BreakKind.VALUE: "is always {need} now, and could be {have}",
        BreakKind.REQUIRED: "is always there now, and could be missing",
        BreakKind.EXTRA: "is excluded now, and was possible",
        BreakKind.UNPROVEN: "may promise more than before: {need}",
    },
    BreakView.SENDS: {
        BreakKind.VALUE: "must be {need}, and you may send {have}",
        BreakKind.REQUIRED: "is required, and you do not always send it",
        BreakKind.EXTRA: "is not accepted",
        BreakKind.UNPROVEN: "cannot be shown to accept all that you send: {need}",
    },
    BreakView.READS: {
        BreakKind.VALUE: "can be {have}, and you expect {need}",
        BreakKind.REQUIRED: "is not always in the result",
        BreakKind.EXTRA: "can be in the result, and you exclude it",
        BreakKind.UNPROVEN: "cannot be shown to be what you expect: {need}",
    },
}


def make_unproven(path: Path, why: str) -> SchemaBreak:
    return SchemaBreak(path=path, kind=BreakKind.UNPROVEN, need=why)


def format_kinds(kinds: frozenset[str]) -> str:
    """Format kinds of values as the types of JSON Schema."""
    names = set(kinds)
    if names >= NUMBER_KINDS:
        names = names - NUMBER_KINDS | {"number"}
    if len(names) == 6:
        return "anything"
    return " or ".join(sorted("number" if name == "fraction" else name for name in names))


def format_value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"
