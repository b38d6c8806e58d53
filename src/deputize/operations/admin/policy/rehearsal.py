"""Try policies without a gateway: the tools of a project against the rules of some files.

What a case leaves to its tool (effects, facts, the resources it touches) is derived as for a call.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from deputize.catalog import versions
from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.policy_facts import FactType, list_facts
from deputize.core.contract.contract import Contract
from deputize.core.contract.names import to_full_name
from deputize.core.decision import Behavior, Verdict, has_unbounded_scope
from deputize.govern.policy.approval_annotations import describe_requirements
from deputize.govern.policy.attribute_values import describe_rules
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import PolicyQuery, describe_tool
from deputize.govern.policy.checks.policy_cases import (
    CaseInput,
    CaseResult,
    LocatedCase,
    ToolCase,
    build_case_query,
    judge_case,
)
from deputize.govern.policy.explain import find_smallest_changes
from deputize.govern.policy.policy_parser import PolicyDiagnostic, PolicyFile
from deputize.govern.policy.unmet_demand import deny_unmet
from deputize.sandboxes.port import Placement, parse_placement


class InvalidCase(ValueError):
    """A case that cannot be evaluated; the message says why and follows the case's location."""


class CaseToolNotFound(InvalidCase):
    """A case that names an unknown tool."""


def collect_fact_types(contracts: Iterable[Contract]) -> dict[str, FactType]:
    """Collect every fact that these tools expose, to check policies against."""
    return {fact.name: fact.type for contract in contracts for fact in list_facts(contract)}


def collect_names(contracts: Iterable[Contract], tenant: str) -> dict[str, dict[str, set[str]]]:
    """Collect the names that rules may refer to, by entity type, with the facts of their tools."""
    names: dict[str, dict[str, set[str]]] = {"Tool": {}, "Namespace": {}, "Server": {}, "Tenant": {tenant: set()}}
    for contract in contracts:
        server = contract.external_service or contract.provider
        facts = {fact.name for fact in list_facts(contract)}
        for kind, name in (("Tool", contract.full_name), ("Namespace", contract.namespace), ("Server", server)):
            if name:
                names[kind].setdefault(name, set()).update(facts)
        names["Tenant"][tenant] |= facts
    return names


class Rehearsal:
    """One set of policies and one set of tools, the newest version of each."""

    def __init__(
        self,
        policies: CompiledPolicies,
        contracts: Iterable[Contract],
        tenant: str,
        *,
        approvers: Sequence[str] = (),
        placements: Mapping[str, Placement] | None = None,
    ) -> None:
        """Keep the newest version of each tool; `approvers` are the groups for rules that name none.

        `placements` are those of tools by full name, as far as they are certain.
        """
        self.policies = policies
        self._tenant = tenant
        self._approvers = approvers
        self._placements = placements or {}
        self._contracts: dict[str, Contract] = {}
        self._tools: dict[str, CompiledTool] = {}
        for each in sorted(contracts, key=lambda contract: versions.parse_version(contract.version)):
            self._contracts[each.full_name] = each

    def run_case(self, case: LocatedCase) -> CaseResult | PolicyDiagnostic:
        try:
            query = self.build_query(case.case)
        except InvalidCase as error:
            is_unknown = isinstance(error, CaseToolNotFound)
            more = "; or describe the tool in the case, with name and effects" if is_unknown else ""
            return PolicyDiagnostic(file=case.file, line=case.line, message=f"{case.case.name}: {error}{more}")
        verdict = self._decide(query)
        if case.case.expect == "allow" and verdict.behavior is not Behavior.ALLOW:
            return judge_case(case, verdict, self._find_changes(query, verdict), default_groups=self._approvers)
        return judge_case(case, verdict, default_groups=self._approvers)

    def explain(self, case: CaseInput) -> dict[str, Any]:
        """Decide a hypothetical call, and say what would allow it."""
        query = self.build_query(case)
        verdict = self._decide(query)
        return {
            "tool": {"name": query.tool["name"], "version": query.tool["version"]},
            "principal": dict(query.caller),
            "behavior": verdict.behavior,
            "reason": verdict.reason,
            "suggestion": verdict.suggestion,
            "errors": list(verdict.errors),
            "rules": describe_rules(self.policies, verdict, query),
            "demands": describe_requirements(verdict.requirements, self._approvers),
            "allowed_if": self._find_changes(query, verdict),
        }

    def _decide(self, query: PolicyQuery) -> Verdict:
        verdict, name = self.policies.evaluate_query(query, may_take_long=True), query.tool["name"]
        return deny_unmet(verdict, self._placements[name]) if name in self._placements else verdict

    def _find_changes(self, query: PolicyQuery, verdict: Verdict) -> list[str]:
        return [] if verdict.weak_sandbox else find_smallest_changes(self.policies, query, may_take_long=True)

    def build_query(self, case: CaseInput) -> PolicyQuery:
        if case.arguments is not None and case.facts is not None:
            raise InvalidCase("give either arguments or facts, not both: facts are derived from arguments")
        if isinstance(case.tool, ToolCase):
            if case.arguments is not None:
                raise InvalidCase("a tool described in the case takes no arguments; give facts instead")
            return build_case_query(case, self._tenant, case.tool.describe_tool(), case.facts or {}, case.scopes or ())
        tool = self._get_tool(case.tool)
        arguments = _coerce_arguments(tool, case.arguments)
        facts = tool.read_facts(arguments) if case.facts is None else _check_facts(tool, case.facts)
        description = describe_tool(tool.contract)
        if case.scopes is not None:
            return build_case_query(case, self._tenant, description, facts, case.scopes)
        touches = tool.resolve_writes(arguments)
        scopes = tuple(write.scope for write in touches)
        return build_case_query(
            case, self._tenant, description, facts, scopes, has_unbounded_scope(tool.contract.effects, touches)
        )

    def _get_tool(self, name: str) -> CompiledTool:
        full = to_full_name(name)
        contract = self._contracts.get(full)
        if contract is None:
            suggestions = difflib.get_close_matches(full, self._contracts, n=1)
            if suggestions:
                raise InvalidCase(f"there is no tool {name} in this project; did you mean {suggestions[0]}?")
            raise CaseToolNotFound(f"there is no tool {name} in this project")
        if full not in self._tools:
            self._tools[full] = CompiledTool(contract)
        return self._tools[full]


def rehearse_job(payload: bytes) -> bytes:
    """Decide a hypothetical call in another process: its tool, policies and case come from outside."""
    request = orjson.loads(payload)
    policies = CompiledPolicies([PolicyFile(path=path, text=text) for path, text in request["files"]], request["facts"])
    contract = Contract.model_validate(request["contract"])
    rehearsal = Rehearsal(
        policies,
        (contract,),
        request["tenant"],
        approvers=request["approvers"],
        placements={contract.full_name: parse_placement(request["placement"])},
    )
    try:
        explanation = rehearsal.explain(CaseInput.model_validate(request["case"]))
    except InvalidCase as error:
        return orjson.dumps({"invalid": str(error)})
    return orjson.dumps({name: each for name, each in explanation.items() if name != "principal"})


def _coerce_arguments(tool: CompiledTool, arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Coerce the arguments as for a call; a case without any stands for a call with unknown arguments."""
    if arguments is None:
        return {}
    raw_arguments = dict(arguments)
    if tool.is_valid_input(raw_arguments):
        return tool.fill_defaults(raw_arguments)
    coerced_arguments, changes = tool.coerce_arguments(raw_arguments)
    if changes and tool.is_valid_input(coerced_arguments):
        return tool.fill_defaults(coerced_arguments)
    raise InvalidCase(
        f"the arguments do not match {tool.name}: {'; '.join(_describe_errors(tool.list_input_errors(raw_arguments)))}"
    )


def _describe_errors(errors: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in errors:
        yield f"{str(each['path']).strip('/') or 'the arguments'} {each['message']}"


def _check_facts(tool: CompiledTool, facts: Mapping[str, Any]) -> dict[str, Any]:
    fact_names = {fact.name for fact in list_facts(tool.contract)}
    unknown = sorted(set(facts) - fact_names)
    if unknown:
        hint = (
            f"its facts are {', '.join(sorted(fact_names))}"
            if fact_names
            else "it exposes none; mark an argument with x-policy"
        )
        raise InvalidCase(f"{tool.name} exposes no fact {unknown[0]}; {hint}")
    return dict(facts)
