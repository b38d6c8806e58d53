"""What a tool's server asks back before it answers, and what whoever called says to it. Words only; nothing here asks.

A call that is asked back has come to an end of its own kind: nobody waits in it. Whoever answers makes a new call that
continues it, from the state the server gave out. `execute/drivers/mcp.py` hears questions, `lifecycle/questions.py`
holds them to the protocol's shapes, `lifecycle/rounds.py` gives out what an answer refers to and reads it again.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal

from deputize.core.frozen import frozen

Family = Literal["elicitation", "sampling", "roots"]


class Ability(StrEnum):
    """What whoever calls can be asked for: a form, an address to open, a model's answer, the folders at hand."""

    FORM = "elicitation.form"
    ADDRESS = "elicitation.url"
    SAMPLING = "sampling"
    ROOTS = "roots"

    @property
    def family(self) -> Family:
        """The name under which an operator allows it."""
        return _FAMILIES[self]


_FAMILIES: Final[Mapping[Ability, Family]] = {
    Ability.FORM: "elicitation",
    Ability.ADDRESS: "elicitation",
    Ability.SAMPLING: "sampling",
    Ability.ROOTS: "roots",
}
NONE: Final[frozenset[Ability]] = frozenset()
Question = dict[str, Any]


@frozen
class Asks:
    """How a tool's server answered that asks first: each question by its name, as MCP spells it, and the server's own
    state, which goes back to it and to nobody else.
    """

    server: str
    questions: dict[str, Question]
    state: str | None = None


@frozen
class Answers:
    """What a caller says to questions: to which (`round`, as it was given out with them), and what, by their names."""

    round: str
    responses: dict[str, Any]


@frozen
class Round:
    """What a call goes on from: the one whose questions it answers, the state of the server then, and the answers."""

    continues: str
    state: str | None
    responses: dict[str, Any]


def ability_of(question: Question) -> Ability | None:
    """What answering it takes; None for what the protocol does not know."""
    params = question.get("params")
    match question.get("method"):
        case "elicitation/create":
            mode = params.get("mode", "form") if isinstance(params, dict) else None
            return {"form": Ability.FORM, "url": Ability.ADDRESS}.get(mode) if isinstance(mode, str) else None
        case "sampling/createMessage":
            return Ability.SAMPLING
        case "roots/list":
            return Ability.ROOTS
        case _:
            return None


def abilities_in(capabilities: Mapping[str, Any]) -> frozenset[Ability]:
    """What a client of MCP says it can be asked. An elicitation that names no mode is a form."""
    found = {each for each in (Ability.SAMPLING, Ability.ROOTS) if isinstance(capabilities.get(each.value), dict)}
    elicitation = capabilities.get("elicitation")
    if isinstance(elicitation, dict):
        addresses = isinstance(elicitation.get("url"), dict)
        if addresses:
            found.add(Ability.ADDRESS)
        if isinstance(elicitation.get("form"), dict) or not addresses:
            found.add(Ability.FORM)
    return frozenset(found)


def capabilities_of(abilities: Iterable[Ability]) -> dict[str, Any]:
    """The same the other way round, as a server is told it. Nothing more than the bare ability is ever promised."""
    told: dict[str, Any] = {}
    for each in sorted(abilities):
        name, _, mode = each.value.partition(".")
        told.setdefault(name, {})
        if mode:
            told[name][mode] = {}
    return told
