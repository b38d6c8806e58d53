"""Define what an agent expects of a tool before it calls it."""

from dataclasses import dataclass

from deputize.core.contract.contract import Effects, Schema


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedSide:
    """What an agent sends or reads: a schema, or the JSON pointers of single fields; `*` stands for each item."""

    schema: Schema | None = None
    fields: tuple[str, ...] = ()
    optional_fields: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentExpectation:
    """What an agent expects of a tool; it says nothing about a side that is None. `effects` is the worst it accepts."""

    input: ExpectedSide | None = None
    output: ExpectedSide | None = None
    effects: Effects | None = None
