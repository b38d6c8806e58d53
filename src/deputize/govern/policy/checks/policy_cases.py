"""Read and judge policy test cases: a YAML description of a call, and the expected verdict.

Omitted fields get a cautious or neutral default, never one that depends on when the case runs. Tools that a case names
are looked up by `operations/admin/policy/rehearsal.py`, which has the contracts.
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
from deputize.core.contract.contract import Behaviour, Effects, ToolKind, ToolRef
from deputize.core.decision import Behavior, Environment, MatchedRule, UndoneCall, Verdict
from deputize.govern.policy.approval_annotations import describe_requirements, get_approval_terms
from deputize.govern.policy.cedar_schema import PolicyQuery
from deputize.govern.policy.policy_parser import PolicyDiagnostic

# A Monday at noon UTC: the fixed time of cases that set none.
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
_MAX_NODES = 200_000
_MAX_CHANGES = 3


def _wrap_text(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_wrap_text)]
FactValue = StrictBool | StrictInt | StrictStr | tuple[StrictStr, ...]


class _CaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CallerCase(_CaseModel):
    """The caller of a case."""

    user: str = "somebody"
    issuer: str = ""
    groups: Words = ()
    trust: Trust = "standard"
    human: bool = False
    # The names of the chain, nearest first; and the one that an issuer proved, if any did.
    agents: Words = ()
    proven_agent: str | None = None
    scopes: Words = ()
    task: str | None = None

    def describe_caller(self, tenant: str) -> dict[str, Any]:
        return {
            "tenant": tenant, "user": self.user, "issuer": self.issuer, "trust": self.trust, "human": self.human,
            "groups": sorted(set(self.groups)), "scopes": sorted(set(self.scopes)), "agents": list(self.agents),
            "proven_agent": self.proven_agent, "task": self.task,
        }  # fmt: skip


class ToolCase(_CaseModel):
    """A tool described inside a case, for rules about tools that do not exist yet."""

    name: ToolRef
    version: str = "1.0.0"
    effects: Effects = Effects.DESTRUCTIVE
    kind: ToolKind = ToolKind.FUNCTION
    provider: str = ""
    server: str = ""
    tags: Words = ()
    permissions: Words = ()
    undoable: bool = False
    previewable: bool = False
    open_world: bool = True
    requires_user_interaction: bool = False
    behaviours: Annotated[tuple[Behaviour, ...], BeforeValidator(_wrap_text)] = ()
    authority_rank: Annotated[int, Field(ge=0, le=100)] = 0
    changes: Words = ()
    operations: Words = ()

    def describe_tool(self) -> dict[str, Any]:
        return {
            "name": self.name, "namespace": self.name.partition(".")[0], "version": self.version, "digest": "",
            "effects": self.effects.value, "mutation_class": self.effects.mutation_class.value,
            "kind": self.kind.value, "provider": self.provider, "server": self.server or self.provider,
            "tags": sorted(set(self.tags)), "permissions": sorted(set(self.permissions)),
            "undoable": self.undoable, "previewable": self.previewable, "open_world": self.open_world,
            "requires_user_interaction": self.requires_user_interaction, "behaviours": sorted(set(self.behaviours)),
            "authority_rank": self.authority_rank,
            "changes": sorted(set(self.changes)), "operations": sorted(set(self.operations)),
        }  # fmt: skip


class UndoneCase(_CaseModel):
    """The call that the call of a case takes back."""

    tool: ToolRef
    agents: Words = ()


class CaseInput(_CaseModel):
    """The input of a case: caller, tool, arguments and context, without the expected verdict."""

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
    undoes: UndoneCase | None = None


class Case(CaseInput):
    """A case with its expected verdict."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    expect: Literal["allow", "ask", "deny"]
    by: Words | None = None
    # All groups that may approve, now or after escalation.
    approvers: Words | None = None

    @model_validator(mode="after")
    def _check_approvers(self) -> "Case":
        if self.approvers is not None and self.expect != "ask":
            raise ValueError(f"has approvers but expects {self.expect}: expect ask, or remove approvers")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedCase:
    """A case with its file and line."""

    case: Case
    file: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """The verdict on a case, and whether it is the expected one."""

    located_case: LocatedCase
    verdict: Verdict
    has_passed: bool
    # The groups that approve if a rule names none.
    default_groups: tuple[str, ...] = ()
    suggestion: str = ""

    def to_json(self) -> dict[str, Any]:
        case, verdict = self.located_case.case, self.verdict
        return {
            "name": case.name, "file": self.located_case.file, "line": self.located_case.line, "holds": self.has_passed,
            "expected": {"behavior": case.expect, "by": _to_list(case.by), "approvers": _to_list(case.approvers)},
            "said": {
                "behavior": verdict.behavior,
                "rules": [{"id": rule.id, "where": rule.where, "reason": rule.reason} for rule in verdict.rules],
                "demands": describe_requirements(verdict.requirements, self.default_groups),
                "errors": list(verdict.errors),
            },
            "suggestion": self.suggestion,
        }  # fmt: skip


def read_cases(path: str, text: str) -> tuple[list[LocatedCase], list[PolicyDiagnostic]]:
    """Parse the cases of a file; return the valid ones, and diagnostics for the rest."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        diagnostics = list(_find_yaml_hazards(path, tree)) if tree is not None else []
        value = None if diagnostics else yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return [], [PolicyDiagnostic(file=path, line=line, message=f"this is not valid YAML: {error.problem}")]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = str(error).partition("\n")[0]
        return [], [PolicyDiagnostic(file=path, line=1, message=f"this is not valid YAML: {message}")]
    if diagnostics:
        return [], diagnostics
    if not isinstance(value, dict) or set(value) != {"cases"} or not isinstance(value["cases"], list):
        return [], [PolicyDiagnostic(file=path, line=1, message="this file has no cases: list them under cases:")]
    cases: list[LocatedCase] = []
    for number, each in enumerate(value["cases"]):
        try:
            case = Case.model_validate(each)
        except ValidationError as error:
            diagnostics += _list_diagnostics(path, tree, number, error)
        else:
            cases.append(LocatedCase(case=case, file=path, line=_find_line(tree, ("cases", number))))
    return cases, diagnostics


def build_case_query(
    case: CaseInput,
    tenant: str,
    tool: Mapping[str, Any],
    facts: Mapping[str, Any],
    scopes: Sequence[str],
    is_sweeping: bool | None = None,
) -> PolicyQuery:
    """Build the query of a case. Without `is_sweeping`, the scopes decide whether the effects are unbounded."""
    if is_sweeping is None:
        is_sweeping = tool["effects"] != Effects.READ and (not scopes or any("*" in scope for scope in scopes))
    at = case.time if case.time.tzinfo else case.time.replace(tzinfo=UTC)
    return PolicyQuery(
        caller=case.caller.describe_caller(tenant),
        tool=tool,
        environment=case.environment,
        session=case.session,
        now_ms=int(at.timestamp() * 1000),
        facts=facts,
        scopes=tuple(sorted(set(scopes))),
        is_sweeping=is_sweeping if case.sweeping is None else case.sweeping,
        cost_micros=case.cost,
        labels=frozenset(case.labels),
        undone=None
        if case.undoes is None
        else UndoneCall(tool=case.undoes.tool, agents=tuple(sorted(set(case.undoes.agents)))),
    )


def judge_case(
    located_case: LocatedCase, verdict: Verdict, changes: Sequence[str] = (), default_groups: Sequence[str] = ()
) -> CaseResult:
    """Compare a verdict with what the case expects.

    `changes` are the changes that would allow the call, smallest first, if they were computed. `default_groups` approve
    if a rule names no group.
    """
    case = located_case.case
    rule_ids, groups = {rule.id for rule in verdict.rules}, _list_groups(verdict, default_groups)
    has_expected_rules = verdict.behavior == case.expect and (case.by is None or set(case.by) == rule_ids)
    has_passed = has_expected_rules and (case.approvers is None or set(case.approvers) == set(groups))
    return CaseResult(
        located_case=located_case,
        verdict=verdict,
        has_passed=has_passed,
        default_groups=tuple(default_groups),
        suggestion="" if has_passed else _suggest_fix(case, verdict, changes, groups if has_expected_rules else ()),
    )


def _list_groups(verdict: Verdict, default_groups: Sequence[str]) -> list[str]:
    return list(
        dict.fromkeys(
            group for each in verdict.requirements for group in get_approval_terms(each, default_groups).groups
        )
    )


def _to_list(words: Sequence[str] | None) -> list[str] | None:
    return None if words is None else list(words)


def _suggest_fix(case: Case, verdict: Verdict, changes: Sequence[str], groups: Sequence[str]) -> str:
    rule_names = _format_rules(verdict.rules)
    if verdict.errors:
        return f"Fix the rule that could not be evaluated: {'; '.join(verdict.errors)}."
    if groups:
        verb = "requires" if len(verdict.rules) == 1 else "require"
        return (
            f"{rule_names} {verb} approval by {', '.join(groups)}: change @approvers, or expect approvers: "
            f"[{', '.join(groups)}]."
        )
    match case.expect, verdict.behavior:
        case expected, Behavior() as behavior if expected == behavior:
            return (
                "The verdict is right, but other rules match: if these should decide, write by: "
                f"[{_join_ids(verdict.rules)}]."
            )
        case "allow", _ if changes:
            return f"It would be allowed {', or '.join(changes[:_MAX_CHANGES])}."
        case "allow", Behavior.ASK:
            return f'{rule_names} requires approval: add a matching permit without @decision("ask"), or expect ask.'
        case "allow", _:
            return verdict.suggestion or f"Narrow {rule_names}, or expect {verdict.behavior}."
        case "ask", Behavior.ALLOW:
            return f'Add @decision("ask") to {rule_names}, or write a matching forbid with @decision("ask").'
        case "ask", _:
            return verdict.suggestion or f'Add @decision("ask") to {rule_names}, and write a permit that matches.'
        case _:
            return f"Write a forbid that matches, or narrow {rule_names}."


def _format_rules(rules: Sequence[MatchedRule]) -> str:
    return ", ".join(f"{rule.id} ({rule.where})" if rule.where else rule.id for rule in rules)


def _join_ids(rules: Sequence[MatchedRule]) -> str:
    return ", ".join(rule.id for rule in rules)


def _list_diagnostics(
    path: str, tree: yaml.Node | None, number: int, error: ValidationError
) -> Iterator[PolicyDiagnostic]:
    """Yield one diagnostic per place, because a failed union type reports each alternative as an error."""
    reported_steps: set[tuple[str, ...]] = set()
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        steps = tuple(str(step) for step in detail["loc"])
        named_steps = tuple(step for step in steps if step.isidentifier() or step.isdigit())
        if named_steps[:2] in reported_steps:
            continue
        reported_steps.add(named_steps[:2])
        message = detail["msg"][:1].lower() + detail["msg"][1:]
        if detail["type"] == "extra_forbidden":
            message = "is not a field of a case"
        elif detail["type"] == "missing":
            message = "is missing"
        message = message.removeprefix("value error, ")
        where = ".".join(named_steps) or "this"
        yield PolicyDiagnostic(
            file=path, line=_find_line(tree, ("cases", number, *steps)), message=f"{where} {message}"
        )


def _find_yaml_hazards(path: str, tree: yaml.Node) -> Iterator[PolicyDiagnostic]:
    """Find what the YAML loader accepts silently: repeated keys, and aliases that expand without end."""
    stack, nodes = [tree], 0
    while stack:
        node = stack.pop()
        nodes += 1
        if nodes > _MAX_NODES:
            yield PolicyDiagnostic(file=path, line=1, message="this file is too large: split it into several files")
            return
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for name in sorted({name for name in names if names.count(name) > 1 and name != "<<"}):
                yield PolicyDiagnostic(
                    file=path, line=node.start_mark.line + 1, message=f"{name} occurs twice; remove one"
                )
            stack += [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            stack += node.value


def _find_line(tree: yaml.Node | None, steps: Sequence[str | int]) -> int:
    """Find the line of the node at this path, or of its nearest existing parent."""
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
