"""Cases beside policies: what somebody would ask, and what the answer has to be. Written in YAML, told by place.

A case that leaves something out gets the cautious or the dull value, never one that depends on when it runs. Tools
that a case names are looked up by `lifecycle/rehearse.py`, which has the contracts; here a case is read and judged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from deputize.core.caller import Trust
from deputize.core.contract import Effects, ToolKind, ToolRef
from deputize.core.decision import Behavior, Environment, Rule, Verdict
from deputize.govern.policy.rules import Mistake
from deputize.govern.policy.wants import told, wanted_by
from deputize.govern.policy.world import Asked

# A Monday at noon, so that a rule that reads the time is tried at an hour everybody knows.
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
_MOST_NODES = 200_000
_MOST_CHANGES = 3


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_several)]
FactValue = StrictBool | StrictInt | StrictStr | tuple[StrictStr, ...]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CallerCase(_Part):
    user: str = "somebody"
    issuer: str = ""
    groups: Words = ()
    trust: Trust = "standard"
    human: bool = False
    agents: Words = ()
    scopes: Words = ()
    task: str | None = None

    def described(self, tenant: str) -> dict[str, Any]:
        return {
            "tenant": tenant, "user": self.user, "issuer": self.issuer, "trust": self.trust, "human": self.human,
            "groups": sorted(set(self.groups)), "scopes": sorted(set(self.scopes)), "agents": list(self.agents),
            "task": self.task,
        }  # fmt: skip


class ToolCase(_Part):
    """A tool described in place, for rules about tools that are not there yet."""

    name: ToolRef
    version: str = "1.0.0"
    effects: Effects = Effects.DESTRUCTIVE
    kind: ToolKind = ToolKind.FUNCTION
    provider: str = ""
    server: str = ""
    tags: Words = ()
    undoable: bool = False
    previewable: bool = False
    changes: Words = ()
    operations: Words = ()

    def described(self) -> dict[str, Any]:
        return {
            "name": self.name, "namespace": self.name.partition(".")[0], "version": self.version, "digest": "",
            "effects": self.effects.value, "mutation_class": self.effects.mutation_class.value,
            "kind": self.kind.value, "provider": self.provider, "server": self.server or self.provider,
            "tags": sorted(set(self.tags)), "undoable": self.undoable, "previewable": self.previewable,
            "changes": sorted(set(self.changes)), "operations": sorted(set(self.operations)),
        }  # fmt: skip


class Asking(_Part):
    """Who calls what, when and where: a case without its answer."""

    caller: CallerCase = CallerCase()
    tool: str | ToolCase
    arguments: dict[str, Any] | None = None
    facts: dict[str, FactValue] | None = None
    scopes: Words | None = None
    sweeping: bool | None = None
    environment: Environment = "production"
    time: datetime = NOON
    session: str | None = None
    cost: Annotated[int, Field(ge=0)] = 0
    labels: Words = ()


class Case(Asking):
    name: Annotated[str, Field(min_length=1, max_length=200)]
    expect: Literal["allow", "ask", "deny"]
    by: Words | None = None
    # Every group that would be asked, at once or later.
    approvers: Words | None = None

    @model_validator(mode="after")
    def _only_who_asks_has_approvers(self) -> "Case":
        if self.approvers is not None and self.expect != "ask":
            raise ValueError(f"names approvers and expects {self.expect}: expect ask, or leave approvers out")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A case and where it is written."""

    case: Case
    file: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What the policies said to a case, and whether that was expected."""

    placed: Placed
    verdict: Verdict
    holds: bool
    # Who is asked where a rule names nobody.
    usual: tuple[str, ...] = ()
    suggestion: str = ""

    def to_json(self) -> dict[str, Any]:
        case, verdict = self.placed.case, self.verdict
        return {
            "name": case.name, "file": self.placed.file, "line": self.placed.line, "holds": self.holds,
            "expected": {"behavior": case.expect, "by": _listed(case.by), "approvers": _listed(case.approvers)},
            "said": {
                "behavior": verdict.behavior,
                "rules": [{"id": rule.id, "where": rule.where, "reason": rule.reason} for rule in verdict.rules],
                "demands": told(verdict.demands, self.usual),
                "errors": list(verdict.errors),
            },
            "suggestion": self.suggestion,
        }  # fmt: skip


def read_cases(path: str, text: str) -> tuple[list[Placed], list[Mistake]]:
    """The cases that can be read, and what is wrong with the rest."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        wrong = list(_oddities(path, tree)) if tree is not None else []
        value = None if wrong else yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return [], [Mistake(file=path, line=line, message=f"this is not YAML: {error.problem}")]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        told = str(error).partition("\n")[0]
        return [], [Mistake(file=path, line=1, message=f"this is not YAML: {told}")]
    if wrong:
        return [], wrong
    if not isinstance(value, dict) or set(value) != {"cases"} or not isinstance(value["cases"], list):
        return [], [Mistake(file=path, line=1, message="holds no cases: write a list of them under cases:")]
    placed: list[Placed] = []
    for number, each in enumerate(value["cases"]):
        try:
            case = Case.model_validate(each)
        except ValidationError as error:
            wrong += _mistakes(path, tree, number, error)
        else:
            placed.append(Placed(case=case, file=path, line=_line(tree, ("cases", number))))
    return placed, wrong


def asked_of(
    case: Asking,
    tenant: str,
    tool: Mapping[str, Any],
    facts: Mapping[str, Any],
    scopes: Sequence[str],
    sweeping: bool | None = None,
) -> Asked:
    """The question a case asks, once its tool is known; whether it sweeps is told by the scopes where nobody knows."""
    if sweeping is None:
        sweeping = tool["effects"] != Effects.READ and (not scopes or any("*" in scope for scope in scopes))
    when = case.time if case.time.tzinfo else case.time.replace(tzinfo=UTC)
    return Asked(
        caller=case.caller.described(tenant),
        tool=tool,
        environment=case.environment,
        session=case.session,
        now_ms=int(when.timestamp() * 1000),
        facts=facts,
        scopes=tuple(sorted(set(scopes))),
        sweeping=sweeping if case.sweeping is None else case.sweeping,
        cost_micros=case.cost,
        labels=frozenset(case.labels),
    )


def judged(placed: Placed, verdict: Verdict, changes: Sequence[str] = (), usual: Sequence[str] = ()) -> Judged:
    """`changes`: what would allow it, smallest first, where somebody has worked it out. `usual`: who is asked where a
    rule names nobody.
    """
    case = placed.case
    said, groups = {rule.id for rule in verdict.rules}, _groups(verdict, usual)
    right = verdict.behavior == case.expect and (case.by is None or set(case.by) == said)
    holds = right and (case.approvers is None or set(case.approvers) == set(groups))
    return Judged(
        placed=placed,
        verdict=verdict,
        holds=holds,
        usual=tuple(usual),
        suggestion="" if holds else _suggest(case, verdict, changes, groups if right else ()),
    )


def _groups(verdict: Verdict, usual: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(group for each in verdict.demands for group in wanted_by(each, usual).groups))


def _listed(words: Sequence[str] | None) -> list[str] | None:
    return None if words is None else list(words)


def _suggest(case: Case, verdict: Verdict, changes: Sequence[str], groups: Sequence[str]) -> str:
    spoke = _named(verdict.rules)
    if verdict.errors:
        return f"Mend what could not be evaluated: {'; '.join(verdict.errors)}."
    if groups:
        verb = "asks" if len(verdict.rules) == 1 else "ask"
        return (
            f"{spoke} {verb} {', '.join(groups)}: name others in @approvers, or write approvers: [{', '.join(groups)}]."
        )
    match case.expect, verdict.behavior:
        case expected, Behavior() as said if expected == said:
            return (
                f"The answer is right, by other rules: if they should have the say, write by: [{_ids(verdict.rules)}]."
            )
        case "allow", _ if changes:
            return f"It would be allowed {', or '.join(changes[:_MOST_CHANGES])}."
        case "allow", Behavior.ASK:
            return f'{spoke} asks: a permit without @decision("ask") has to speak here, or expect ask.'
        case "allow", _:
            return verdict.suggestion or f"Narrow {spoke}, or expect {verdict.behavior}."
        case "ask", Behavior.ALLOW:
            return f'Mark {spoke} with @decision("ask"), or write a forbid with @decision("ask") that speaks here.'
        case "ask", _:
            return verdict.suggestion or f'Mark {spoke} with @decision("ask"), and let a rule permit the call.'
        case _:
            return f"Write a forbid that speaks here, or narrow {spoke}."


def _named(rules: Sequence[Rule]) -> str:
    return ", ".join(f"{rule.id} ({rule.where})" if rule.where else rule.id for rule in rules)


def _ids(rules: Sequence[Rule]) -> str:
    return ", ".join(rule.id for rule in rules)


def _mistakes(path: str, tree: yaml.Node | None, number: int, error: ValidationError) -> Iterator[Mistake]:
    """One for each place; the alternatives a value was tried as are one mistake, not several."""
    seen: set[tuple[str, ...]] = set()
    for found in error.errors(include_url=False, include_context=False, include_input=False):
        steps = tuple(str(step) for step in found["loc"])
        known = tuple(step for step in steps if step.isidentifier() or step.isdigit())
        if known[:2] in seen:
            continue
        seen.add(known[:2])
        message = found["msg"][:1].lower() + found["msg"][1:]
        if found["type"] == "extra_forbidden":
            message = "is nothing a case can say"
        elif found["type"] == "missing":
            message = "is missing"
        message = message.removeprefix("value error, ")
        where = ".".join(known) or "this"
        yield Mistake(file=path, line=_line(tree, ("cases", number, *steps)), message=f"{where} {message}")


def _oddities(path: str, tree: yaml.Node) -> Iterator[Mistake]:
    """What YAML would take without a word: a name given twice, and parts repeated until they fill the memory."""
    waiting, nodes = [tree], 0
    while waiting:
        node = waiting.pop()
        nodes += 1
        if nodes > _MOST_NODES:
            yield Mistake(file=path, line=1, message="is too large: put the cases into several files")
            return
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for name in sorted({name for name in names if names.count(name) > 1 and name != "<<"}):
                yield Mistake(file=path, line=node.start_mark.line + 1, message=f"{name} is given twice; keep one")
            waiting += [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _line(tree: yaml.Node | None, steps: Sequence[str | int]) -> int:
    """The line of the thing at these steps, or of the nearest around it that is written down."""
    node, line = tree, 1
    for step in steps:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == step), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and str(step).isdigit() and int(step) < len(node.value):
            node = node.value[int(step)]
            line = node.start_mark.line + 1
        else:
            break
    return line
