"""Policies tried without a gateway: the tools of a project and the rules of some files, brought together.

What a case leaves to its tool (effects, facts, what the arguments touch) is worked out here as it would be for a call.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from deputize.catalog import versions
from deputize.catalog.compiled import CompiledTool
from deputize.catalog.exposed import FactType, exposed
from deputize.core.contract import Contract, inward
from deputize.core.decision import Behavior, sweeps
from deputize.govern.policy.cases import Asking, Judged, Placed, ToolCase, asked_of, judged
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.explain import smallest_change
from deputize.govern.policy.rules import Mistake
from deputize.govern.policy.world import Asked, describe_tool


class NoSuchCase(ValueError):
    """A case that cannot be asked; the message says why, in words that follow its place."""


class NoSuchTool(NoSuchCase):
    """It names a tool that nothing here is called like."""


def fact_types(contracts: Iterable[Contract]) -> dict[str, FactType]:
    """Every fact these tools expose: what policies are checked against."""
    return {fact.name: fact.type for contract in contracts for fact in exposed(contract)}


def names(contracts: Iterable[Contract], tenant: str) -> dict[str, set[str]]:
    """What rules may be about, by kind of thing."""
    several = list(contracts)
    return {
        "Tool": {each.full_name for each in several},
        "Namespace": {each.namespace for each in several},
        "Server": {each.external_service or each.provider for each in several} - {""},
        "Tenant": {tenant},
    }


class Rehearsal:
    """One set of policies and one set of tools, the newest version of each."""

    def __init__(
        self, policies: CompiledPolicies, contracts: Iterable[Contract], tenant: str, *, approvers: Sequence[str] = ()
    ) -> None:
        """`approvers`: the groups that are asked where a rule names none."""
        self.policies = policies
        self._tenant = tenant
        self._approvers = approvers
        self._contracts: dict[str, Contract] = {}
        self._tools: dict[str, CompiledTool] = {}
        for each in sorted(contracts, key=lambda contract: versions.parse(contract.version)):
            self._contracts[each.full_name] = each

    def run(self, placed: Placed) -> Judged | Mistake:
        try:
            asked = self.asked(placed.case)
        except NoSuchCase as error:
            more = "; or describe it in place, with name and effects" if isinstance(error, NoSuchTool) else ""
            return Mistake(file=placed.file, line=placed.line, message=f"{placed.case.name}: {error}{more}")
        verdict = self.policies.replay(asked)
        if placed.case.expect == "allow" and verdict.behavior is not Behavior.ALLOW:
            return judged(placed, verdict, smallest_change(self.policies, asked), usual=self._approvers)
        return judged(placed, verdict, usual=self._approvers)

    def asked(self, case: Asking) -> Asked:
        if case.arguments is not None and case.facts is not None:
            raise NoSuchCase("it gives arguments and facts; give one of them, facts follow from arguments")
        if isinstance(case.tool, ToolCase):
            if case.arguments is not None:
                raise NoSuchCase("a tool that is described in place takes no arguments; give facts")
            return asked_of(case, self._tenant, case.tool.described(), case.facts or {}, case.scopes or ())
        tool = self._tool(case.tool)
        arguments = _checked(tool, case.arguments)
        facts = tool.facts(arguments) if case.facts is None else _known(tool, case.facts)
        described = describe_tool(tool.contract)
        if case.scopes is not None:
            return asked_of(case, self._tenant, described, facts, case.scopes)
        touches = tool.writes(arguments)
        scopes = tuple(touched.scope for touched in touches)
        return asked_of(case, self._tenant, described, facts, scopes, sweeps(tool.contract.effects, touches))

    def _tool(self, name: str) -> CompiledTool:
        full = inward(name)
        contract = self._contracts.get(full)
        if contract is None:
            near = difflib.get_close_matches(full, self._contracts, n=1)
            if near:
                raise NoSuchCase(f"there is no tool {name} in this project; did you mean {near[0]}?")
            raise NoSuchTool(f"there is no tool {name} in this project")
        if full not in self._tools:
            self._tools[full] = CompiledTool(contract)
        return self._tools[full]


def _checked(tool: CompiledTool, arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The arguments as the tool would get them; a case without any asks about a call whose arguments nobody knows."""
    if arguments is None:
        return {}
    given = dict(arguments)
    if tool.is_valid_input(given):
        return tool.filled(given)
    coerced, changed = tool.coerce(given)
    if changed and tool.is_valid_input(coerced):
        return tool.filled(coerced)
    raise NoSuchCase(f"its arguments do not fit {tool.name}: {'; '.join(_sentences(tool.input_errors(given)))}")


def _sentences(errors: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in errors:
        yield f"{str(each['path']).strip('/') or 'the whole'} {each['message']}"


def _known(tool: CompiledTool, facts: Mapping[str, Any]) -> dict[str, Any]:
    told = {fact.name for fact in exposed(tool.contract)}
    unknown = sorted(set(facts) - told)
    if unknown:
        known = f"it tells {', '.join(sorted(told))}" if told else "it tells none; mark an argument with x-policy"
        raise NoSuchCase(f"{tool.name} tells policies no fact {unknown[0]}; {known}")
    return dict(facts)
