"""A permit in Cedar that holds for the questions it was learned from, and for no other.

Who calls, for whom, what, where and with which facts is held to what was seen: one value, or one of several. Numbers
become a range only where every number in it was seen. Session, labels and cost are held where a rule that asked looks
at them; elsewhere they had no part in it. A group that the caller loses ends it, one that is gained cannot be seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from deputize.core.frozen import frozen

# Of numbers that vary together, each combination is spelled out; more of them nobody would read.
MOST_COMBINATIONS = 20
MOST_VALUES = 200
_FEWEST_FOR_A_RANGE = 3

# A list only where it is empty: of any other, rules do not see the order.
Fact = bool | int | str | tuple[()]
# Words of Cedar's own, which an attribute is not called by without quotes.
_RESERVED = frozenset({"true", "false", "if", "then", "else", "in", "is", "like", "has", "permit", "forbid"})


@frozen
class Common:
    """What is the same in all of them: who asks whom to do what, and where."""

    tool: str
    version: str
    environment: str
    user: str
    issuer: str
    trust: str
    human: bool
    agents: tuple[str, ...]
    task: str | None


@frozen
class Seen:
    """What approved questions had in common, and between which values they differed."""

    common: Common
    # Groups the caller was in every time.
    groups: tuple[str, ...]
    # Each set of scopes that was seen.
    scopes: tuple[tuple[str, ...], ...]
    # Only where a rule that asked reads them.
    labels: tuple[tuple[str, ...], ...] | None
    sessions: tuple[str | None, ...] | None
    most_cost: int | None
    # Facts that were the same every time; None for one that was never there.
    facts: Mapping[str, Fact | None]
    # Facts that are numbers, and each combination of them that was seen.
    numbers: tuple[str, ...]
    combinations: tuple[tuple[int, ...], ...]


def spelled(seen: Seen, *, name: str, reason: str, until: int) -> str:
    """The rule, ready to be put into a file. `until` is in seconds since 1970."""
    common = seen.common
    clauses = "\n".join(f"when {{ {clause} }}" for clause in _clauses(seen, until))
    return (
        f"@id({text(name)})\n@reason({text(reason)})\n"
        f"permit (\n  principal == User::{text(common.user)},\n"
        f'  action == Action::"call",\n  resource == Tool::{text(common.tool)}\n)\n{clauses};\n'
    )


def text(value: str) -> str:
    """A text as Cedar writes it, with nothing in it that could end it, or look like something else."""
    return '"' + "".join(_sign(each) for each in value) + '"'


def day(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d")


def _sign(each: str) -> str:
    if each in '"\\':
        return "\\" + each
    return each if " " <= each <= "~" else f"\\u{{{ord(each):x}}}"


def _clauses(seen: Seen, until: int) -> Iterator[str]:
    """Clause by clause, because a long chain is a deep tree and many clauses are not."""
    common = seen.common
    yield f"context.time.epoch < {until}"
    yield f"resource.version == {text(common.version)}"
    yield f"context.environment == {text(common.environment)}"
    yield f"principal.issuer == {text(common.issuer)} && principal.trust == {text(common.trust)}"
    yield "principal.human" if common.human else "!principal.human"
    yield from (f"principal in Group::{text(group)}" for group in seen.groups)
    yield _one_of_sets("principal.scopes", seen.scopes)
    yield _agents(common.agents)
    yield _optional("context", "task", (common.task,))
    if seen.labels is not None:
        yield _one_of_sets("context.labels", seen.labels)
    if seen.sessions is not None:
        yield _optional("context", "session", seen.sessions)
    if seen.most_cost is not None:
        yield f"context.cost <= {seen.most_cost}"
    for name, value in seen.facts.items():
        yield f"!({_has(name)})" if value is None else _is(name, value)
    yield from _numbers(seen.numbers, seen.combinations)


def _agents(agents: Sequence[str]) -> str:
    if not agents:
        return "!context.delegated"
    several = ", ".join(f"Agent::{text(agent)}" for agent in agents)
    return f"context has agent && context.agent == Agent::{text(agents[0])} && context.agents == [{several}]"


def _one_of_sets(path: str, sets: Sequence[Sequence[str]]) -> str:
    """An empty set has no type of its own, so it is asked for by itself."""
    full = [f"[{', '.join(map(text, each))}]" for each in sets if each]
    ways = [f"{path}.isEmpty()"] if len(full) < len(sets) else []
    ways += [f"{path} == {full[0]}"] if len(full) == 1 else [f"[{', '.join(full)}].contains({path})"] if full else []
    return " || ".join(ways)


def _optional(owner: str, name: str, values: Sequence[str | None]) -> str:
    given = [text(each) for each in values if each is not None]
    ways = [f"!({owner} has {name})"] if None in values else []
    if given:
        ways.append(f"({owner} has {name} && [{', '.join(given)}].contains({owner}.{name}))")
    return " || ".join(ways)


def _has(name: str) -> str:
    return f"context.facts has {text(name) if name in _RESERVED else name}"


def _fact(name: str) -> str:
    return f"context.facts[{text(name)}]" if name in _RESERVED else f"context.facts.{name}"


def _is(name: str, value: Fact) -> str:
    match value:
        case bool():
            said = _fact(name) if value else f"!{_fact(name)}"
        case int():
            said = f"{_fact(name)} == {value}"
        case str():
            said = f"{_fact(name)} == {text(value)}"
        case _:
            said = f"{_fact(name)}.isEmpty()"
    return f"{_has(name)} && {said}"


def _numbers(names: Sequence[str], combinations: Sequence[Sequence[int]]) -> Iterator[str]:
    varying = [place for place in range(len(names)) if len({each[place] for each in combinations}) > 1]
    for place, name in enumerate(names):
        if place not in varying:
            yield _is(name, combinations[0][place])
    if len(varying) == 1:
        (place,) = varying
        yield _among(names[place], sorted(each[place] for each in combinations))
    elif varying:
        held = (" && ".join(_is(names[place], each[place]) for place in varying) for each in combinations)
        yield " || ".join(f"({each})" for each in held)


def _among(name: str, values: Sequence[int]) -> str:
    first, last = values[0], values[-1]
    if len(values) >= _FEWEST_FOR_A_RANGE and last - first == len(values) - 1:
        said = f"{_fact(name)} >= {first} && {_fact(name)} <= {last}"
    else:
        said = f"[{', '.join(map(str, values))}].contains({_fact(name)})"
    return f"{_has(name)} && {said}"
