"""Check tools with what the product offers: `deputize tool test`, then a first call, at a running gateway.

Nothing is known here about the tools but their names, their test plans and the arguments of a first call: no module of
the proofs is imported.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Effects
from deputize.testing.contract_test import CaseOutcome, CaseVerdict, ContractTest
from deputize.testing.gateway_calls import CallAnswer, GatewayCaller, ShownTool
from deputize.testing.plan import load_plan

NOT_REGISTERED, UNCHECKED, DISABLED = "not-registered", "unchecked", "tool-disabled"
ERROR_SCHEMA, UNCHANGED = "error-schema-violated", "nothing-changed"
_UNCHANGED_WARNING = "the call changed nothing"
_CONCURRENCY = 6
_SAMPLES = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The signs against a tool: in its test, and at its first call. Both are empty for one that did nothing wrong."""

    test_signs: frozenset[str] = frozenset()
    call_signs: frozenset[str] = frozenset()
    case_count: int = 0


def check_tools(
    gateway: GatewayCaller, plans: Path, first_calls: Mapping[str, Mapping[str, Any]], *, seed: int
) -> dict[str, Observation]:
    """Test tools and call each once, several at a time.

    Those that are declared as reads come first: a gateway blames no read while other calls change things.
    """
    with ThreadPoolExecutor(_CONCURRENCY) as threads:
        tools = dict(zip(first_calls, threads.map(lambda name: _show_tool(gateway, name), first_calls), strict=True))

        def check(name: str) -> tuple[str, Observation]:
            return name, _check_tool(gateway, plans, tools[name], first_calls[name], seed)

        reads = [name for name, tool in tools.items() if tool is not None and tool.contract.effects is Effects.READ]
        others = [name for name in tools if name not in reads]
        return {**dict(threads.map(check, reads)), **dict(threads.map(check, others))}


def _show_tool(gateway: GatewayCaller, name: str) -> ShownTool | None:
    try:
        return gateway.show_tool(name)
    except ConfigError:
        return None


def _check_tool(
    gateway: GatewayCaller, plans: Path, tool: ShownTool | None, arguments: Mapping[str, Any], seed: int
) -> Observation:
    if tool is None:
        return Observation(test_signs=frozenset({NOT_REGISTERED}))
    name = tool.contract.full_name
    caller = _AttentiveCaller(url=gateway.url, token=gateway.token)
    test = ContractTest(gateway=caller, tool=tool, plan=load_plan(plans, name), seed=seed, samples=_SAMPLES)
    outcomes = _run_until_red(test)
    answers = {answer.call_id: answer for answer in caller.answers}
    answer = gateway.call(name, tool.contract.version, json.dumps(arguments))
    return Observation(
        test_signs=frozenset(sign for each in outcomes for sign in _list_test_signs(each, answers)),
        call_signs=frozenset(_list_call_signs(answer)),
        case_count=len(outcomes),
    )


def _run_until_red(test: ContractTest) -> Sequence[CaseOutcome]:
    """Run the cases of a test up to the first that fails, which makes it red."""
    outcomes = []
    for each in test.run():
        outcomes.append(each)
        if each.verdict is CaseVerdict.FAILED:
            break
    return outcomes


def _list_test_signs(outcome: CaseOutcome, answers: Mapping[str | None, CallAnswer]) -> Iterator[str]:
    if outcome.verdict is CaseVerdict.UNCHECKED:
        yield UNCHECKED
    elif outcome.verdict is CaseVerdict.FAILED:
        behaviour = f"not {outcome.case.behaviour}"
        is_behaviour = outcome.case.behaviour is not None and outcome.reason.startswith(behaviour)
        call_signs = [sign for each in outcome.call_ids for sign in _list_call_signs(answers[each])]
        yield from [behaviour] if is_behaviour else call_signs or [f"red: {outcome.reason}"]


def _list_call_signs(answer: CallAnswer) -> Iterator[str]:
    if answer.slug:
        yield answer.slug
    if answer.violates_error_schema:
        yield ERROR_SCHEMA
    warnings = answer.document.get("warnings") or ()
    yield from (UNCHANGED if _UNCHANGED_WARNING in each else f"warning: {each}" for each in warnings)
    if not answer.slug and not answer.is_completed:
        yield f"HTTP {answer.status}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _AttentiveCaller(GatewayCaller):
    """Keeps the answers to its calls: what a read answered is not stored, and can be seen only here."""

    answers: list[CallAnswer] = field(default_factory=list)

    def call(self, tool: str, version: str | None, arguments_json: str, *, key: str | None = None) -> CallAnswer:
        answer = GatewayCaller.call(self, tool, version, arguments_json, key=key)
        self.answers.append(answer)
        return answer
