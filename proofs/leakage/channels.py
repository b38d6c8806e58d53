"""The ways in which a planted value gets into a gateway, and what may be planted in each."""

from dataclasses import dataclass, field
from typing import Any, Final

from proofs.leakage.planted_values import Marking, PlantedValue

_ALL: Final = tuple(Marking)
# Of what a tool logs, and of what a server says, only the shape and names are known.
_UNMARKED: Final = (Marking.NAMED, Marking.FORMAT, Marking.PERSONAL, Marking.FREE)
_SHAPES: Final = (Marking.FORMAT, Marking.FREE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """A tool, and how it is called; `is_run` if a worker makes the call and a webhook reports its end."""

    name: str
    tool: str
    way: str | None = None
    markings: tuple[Marking, ...] = _ALL
    is_run: bool = False
    needs_approval: bool = False
    is_invalid: bool = False
    in_body: bool = False
    fields: dict[str, Any] = field(default_factory=dict)

    def build_arguments(self, value: PlantedValue) -> dict[str, Any]:
        """Put the value where its marking says."""
        way = {} if self.way is None else {"way": self.way}
        if self.way is None:
            return {"label": value.sentence}
        if self.is_invalid:
            return {**way, **_break_arguments(value)}
        arguments = {**way, **_place_value(value)}
        return {"body": arguments} if self.in_body else arguments


def _place_value(value: PlantedValue) -> dict[str, Any]:
    match value.marking:
        case Marking.MARKED:
            return {"person" if value.kind == "words" else "word": value.value}
        case Marking.NAMED:
            return {"extra": {"size": 3, "inner": [{"api_key": value.value}]}}
        case _:
            return {"note": value.sentence}


def _break_arguments(value: PlantedValue) -> dict[str, Any]:
    """Put the value where the schema allows no text, or no field."""
    match value.marking:
        case Marking.MARKED:
            return {"word": [value.value]}
        case Marking.NAMED:
            return {"password": value.value}
        case _:
            return {"extra": value.sentence}


CHANNELS: Final = (
    Channel(name="result of a read", tool="leakage.look", way="return"),
    Channel(name="summary of a read", tool="leakage.look", way="summary"),
    Channel(name="exception of a read", tool="leakage.look", way="raise"),
    Channel(name="conflict of a read", tool="leakage.look", way="conflict"),
    Channel(name="upstream of a tool fails", tool="leakage.look", way="upstream"),
    Channel(name="log of a tool", tool="leakage.look", way="log", markings=_UNMARKED),
    Channel(name="arguments that do not fit", tool="leakage.look", way="return", is_invalid=True),
    Channel(name="result of a write", tool="leakage.act", way="return"),
    Channel(name="exception of a write", tool="leakage.act", way="raise"),
    Channel(name="dry run", tool="leakage.plead", way="return", fields={"dry_run": True}),
    Channel(name="run", tool="leakage.act", way="return", is_run=True),
    Channel(name="summary of a run", tool="leakage.act", way="summary", is_run=True),
    Channel(name="exception of a run", tool="leakage.act", way="raise", is_run=True),
    Channel(name="progress of a run", tool="leakage.act", way="progress", is_run=True),
    Channel(name="approval", tool="leakage.plead", way="return", is_run=True, needs_approval=True),
    Channel(name="approved call that fails", tool="leakage.plead", way="conflict", is_run=True, needs_approval=True),
    Channel(name="result of a server", tool="quoting.quote", way="return", markings=_UNMARKED),
    Channel(name="error of a server", tool="quoting.quote", way="error", markings=_UNMARKED),
    Channel(name="protocol error of a server", tool="quoting.quote", way="rpc", markings=_UNMARKED),
    Channel(name="broken server", tool="quoting.quote", way="http", markings=_UNMARKED),
    Channel(name="result of a service", tool="reporting.report", way="return", markings=_UNMARKED, in_body=True),
    Channel(name="refusal of a service", tool="reporting.report", way="refuse", markings=_UNMARKED, in_body=True),
    Channel(name="conflict of a service", tool="reporting.report", way="conflict", markings=_UNMARKED, in_body=True),
    Channel(name="broken service", tool="reporting.report", way="break", markings=_UNMARKED, in_body=True),
    # What policies read has to be recorded, so personal data stays there unless it is marked.
    Channel(name="fact of a policy", tool="leakage.rank", markings=_SHAPES),
    Channel(name="name of a resource", tool="leakage.place", markings=_SHAPES),
)
