"""Render a Cedar permit that matches exactly the requests it was learned from.

Each condition (user, agents, tool, environment, facts) allows only the values that were approved. Numbers become a
range only if every number in it was approved. Session, labels and cost are fixed only if a rule that required approval
reads them. The permit stops matching when the caller leaves a group; a group the caller joins later cannot be detected.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from deputize.core.value_types import frozen

# Numbers that vary together are written out as combinations; a longer list would be unreadable.
MAX_COMBINATIONS = 20
MAX_VALUES = 200
_MIN_RANGE_VALUES = 3

# Of lists only the empty one: rules do not see the order of the others.
FactValue = bool | int | str | tuple[()]
# Cedar keywords: an attribute with such a name must be quoted.
_RESERVED_WORDS = frozenset({"true", "false", "if", "then", "else", "in", "is", "like", "has", "permit", "forbid"})


@frozen
class FixedConditions:
    """The conditions that are equal in all requests: tool, environment and caller."""

    tool: str
    version: str
    environment: str
    user: str
    issuer: str
    trust: str
    human: bool
    agents: tuple[str, ...]
    proven_agent: str | None
    task: str | None


@frozen
class PermitConditions:
    """What the approved requests have in common, and the values in which they differ."""

    common: FixedConditions
    # Groups the caller was in at every request.
    groups: tuple[str, ...]
    # Each set of token scopes that occurred.
    scopes: tuple[tuple[str, ...], ...]
    # None unless a rule that required approval reads them.
    labels: tuple[tuple[str, ...], ...] | None
    sessions: tuple[str | None, ...] | None
    max_cost: int | None
    # Facts that were equal in every request; None for a fact that was always absent.
    facts: Mapping[str, FactValue | None]
    # Numeric facts, and each combination of their values that was approved.
    numbers: tuple[str, ...]
    combinations: tuple[tuple[int, ...], ...]


def render_permit(conditions: PermitConditions, *, name: str, reason: str, until: int) -> str:
    """Render the rule for a policy file. It ends at `until`, in seconds since 1970."""
    common = conditions.common
    clauses = "\n".join(f"when {{ {clause} }}" for clause in _render_clauses(conditions, until))
    return (
        f"@id({quote_text(name)})\n@reason({quote_text(reason)})\n"
        f"permit (\n  principal == User::{quote_text(common.user)},\n"
        f'  action == Action::"call",\n  resource == Tool::{quote_text(common.tool)}\n)\n{clauses};\n'
    )


def quote_text(value: str) -> str:
    """Quote a text as a Cedar string, escaping quotes and every character outside printable ASCII."""
    return '"' + "".join(_escape_character(each) for each in value) + '"'


def format_day(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d")


def _escape_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if " " <= character <= "~" else f"\\u{{{ord(character):x}}}"


def _render_clauses(conditions: PermitConditions, until: int) -> Iterator[str]:
    """Yield one `when` clause per condition: one long `&&` chain would be too deep for the parser."""
    common = conditions.common
    yield f"context.time.epoch < {until}"
    yield f"resource.version == {quote_text(common.version)}"
    yield f"context.environment == {quote_text(common.environment)}"
    yield f"principal.issuer == {quote_text(common.issuer)} && principal.trust == {quote_text(common.trust)}"
    yield "principal.human" if common.human else "!principal.human"
    yield from (f"principal in Group::{quote_text(group)}" for group in conditions.groups)
    yield _match_any_set("principal.scopes", conditions.scopes)
    yield match_agents(common.agents)
    if common.proven_agent is not None:
        yield f"context has agent && context.agent == Agent::{quote_text(common.proven_agent)}"
    elif common.agents:
        yield "!(context has agent)"
    yield _match_optional("context", "task", (common.task,))
    if conditions.labels is not None:
        yield _match_any_set("context.labels", conditions.labels)
    if conditions.sessions is not None:
        yield _match_optional("context", "session", conditions.sessions)
    if conditions.max_cost is not None:
        yield f"context.cost <= {conditions.max_cost}"
    for name, value in conditions.facts.items():
        yield f"!({render_has(name)})" if value is None else _match_fact(name, value)
    yield from _match_numbers(conditions.numbers, conditions.combinations)


def match_agents(agents: Sequence[str]) -> str:
    """Match a chain of agents by all its names and the nearest one. An agent can add names to it, and remove none."""
    if not agents:
        return "!context.delegated"
    agent_list = ", ".join(f"Agent::{quote_text(agent)}" for agent in agents)
    nearest = f"context has agent_label && context.agent_label == {quote_text(agents[0])}"
    return f"{nearest} && context.agents == [{agent_list}]"


def _match_any_set(path: str, sets: Sequence[Sequence[str]]) -> str:
    """Match any of the sets. The empty set has no type in Cedar, so `isEmpty()` matches it."""
    full_sets = [f"[{', '.join(map(quote_text, each))}]" for each in sets if each]
    alternatives = [f"{path}.isEmpty()"] if len(full_sets) < len(sets) else []
    alternatives += (
        [f"{path} == {full_sets[0]}"]
        if len(full_sets) == 1
        else [f"[{', '.join(full_sets)}].contains({path})"]
        if full_sets
        else []
    )
    return " || ".join(alternatives)


def _match_optional(owner: str, name: str, values: Sequence[str | None]) -> str:
    texts = [quote_text(each) for each in values if each is not None]
    alternatives = [f"!({owner} has {name})"] if None in values else []
    if texts:
        alternatives.append(f"({owner} has {name} && [{', '.join(texts)}].contains({owner}.{name}))")
    return " || ".join(alternatives)


def render_has(name: str) -> str:
    """Render the test whether a fact is there."""
    return f"context.facts has {quote_text(name) if name in _RESERVED_WORDS else name}"


def render_fact(name: str) -> str:
    """Render the access to a fact."""
    return f"context.facts[{quote_text(name)}]" if name in _RESERVED_WORDS else f"context.facts.{name}"


def _match_fact(name: str, value: FactValue) -> str:
    match value:
        case bool():
            condition = render_fact(name) if value else f"!{render_fact(name)}"
        case int():
            condition = f"{render_fact(name)} == {value}"
        case str():
            condition = f"{render_fact(name)} == {quote_text(value)}"
        case _:
            condition = f"{render_fact(name)}.isEmpty()"
    return f"{render_has(name)} && {condition}"


def _match_numbers(names: Sequence[str], combinations: Sequence[Sequence[int]]) -> Iterator[str]:
    variable_indexes = [index for index in range(len(names)) if len({each[index] for each in combinations}) > 1]
    for index, name in enumerate(names):
        if index not in variable_indexes:
            yield _match_fact(name, combinations[0][index])
    if len(variable_indexes) == 1:
        (index,) = variable_indexes
        yield _match_any_number(names[index], sorted(each[index] for each in combinations))
    elif variable_indexes:
        conditions = (
            " && ".join(_match_fact(names[index], each[index]) for index in variable_indexes) for each in combinations
        )
        yield " || ".join(f"({each})" for each in conditions)


def _match_any_number(name: str, values: Sequence[int]) -> str:
    first, last = values[0], values[-1]
    if len(values) >= _MIN_RANGE_VALUES and last - first == len(values) - 1:
        condition = f"{render_fact(name)} >= {first} && {render_fact(name)} <= {last}"
    else:
        condition = f"[{', '.join(map(str, values))}].contains({render_fact(name)})"
    return f"{render_has(name)} && {condition}"
