"""Test one version of a tool at a gateway: send every case, judge the answers, shrink failures and sum up.

The calls have real effects. Test tools that write against a gateway that is meant for it.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from deputize.core.contract.contract import Contract
from deputize.testing.behaviours import BEHAVIOURS, BehaviourChecker, CallNotCompleted, UncheckedBehaviour
from deputize.testing.contract_cases import CaseBuilder, CaseKind, ContractCase, Expectation
from deputize.testing.gateway_calls import CallAnswer, GatewayCaller, ShownTool
from deputize.testing.plan import ContractTestPlan
from deputize.testing.regressions import Regression
from deputize.testing.shrinking import shrink_arguments

# How the gateway refuses arguments that the schema, or JSON itself, does not allow.
_INPUT_REFUSALS: Final = frozenset({"schema-violation", "parse-failed", "malformed", "too-large"})
# How a tool refuses arguments that its schema allows, on purpose.
_DECLARED_REFUSALS: Final = frozenset(
    {"tool-precondition", "tool-conflict", "semantic-violation", "precondition-failed"}
)
# Failures of the tool itself; any other error says something about the gateway, the caller or the upstream.
_TOOL_FAILURES: Final = frozenset(
    {
        "tool-failed",
        "tool-timeout",
        "out-of-memory",
        "crashed",
        "result-invalid",
        "predicate-failed",
        "mutation-class-violated",
        "internal",
        "resource-limit",
        "outcome-unknown",
    }
)
_MAX_MESSAGE: Final = 300
_MAX_CITED_CALLS: Final = 200


class CaseVerdict(StrEnum):
    """What a case showed: it held, it did not, or it could not be tried."""

    PASSED = "passed"
    FAILED = "failed"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOutcome:
    """What one case showed, with the ids of its calls."""

    case: ContractCase
    verdict: CaseVerdict
    reason: str = ""
    call_ids: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "case": self.case.id,
            "kind": str(self.case.kind),
            "verdict": str(self.verdict),
            "call_ids": list(self.call_ids),
        }
        if self.reason:
            result["reason"] = self.reason
        if self.verdict is CaseVerdict.FAILED:
            result["arguments"] = self.case.arguments_json
        return result


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractTestReport:
    """The results of all cases of one version of a tool."""

    tool: ShownTool
    seed: int
    results: tuple[CaseOutcome, ...]

    def list_results(self, verdict: CaseVerdict) -> list[CaseOutcome]:
        return [each for each in self.results if each.verdict is verdict]

    @property
    def verdict(self) -> CaseVerdict:
        """Failed if a case failed; unchecked if one could not be tried; passed only if every case held."""
        if self.list_results(CaseVerdict.FAILED):
            return CaseVerdict.FAILED
        is_complete = bool(self.results) and not self.list_results(CaseVerdict.UNCHECKED)
        return CaseVerdict.PASSED if is_complete else CaseVerdict.UNCHECKED

    def list_regressions(self) -> list[Regression]:
        """List the failures that a later test tries again."""
        return [
            Regression(
                case=each.case.id,
                expectation=each.case.expectation,
                arguments_json=each.case.arguments_json,
                behaviour=each.case.behaviour,
                found_in=self.tool.contract.version,
            )
            for each in self.list_results(CaseVerdict.FAILED)
            if each.case.kind is not CaseKind.REGRESSION
        ]

    def to_claim(self) -> dict[str, Any]:
        """Build what the registry checks: the verdict of each case, and the calls that show it."""
        return {
            "digest": self.tool.digest,
            "seed": self.seed,
            "cases": [
                {"verdict": str(each.verdict), "call_ids": list(each.call_ids[:_MAX_CITED_CALLS])}
                for each in self.results
            ],
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool.contract.full_name,
            "version": self.tool.contract.version,
            "digest": self.tool.digest,
            "seed": self.seed,
            "verdict": str(self.verdict),
            "cases": [each.to_json() for each in self.results],
        }


@dataclass(kw_only=True, slots=True)
class ContractTest:
    """The test of one version of a tool. Cases are built at once; each is sent when it is run."""

    gateway: GatewayCaller
    tool: ShownTool
    plan: ContractTestPlan = field(default_factory=ContractTestPlan)
    regressions: tuple[Regression, ...] = ()
    seed: int = 0
    samples: int = 10
    _builder: CaseBuilder = field(init=False, repr=False)
    _call_ids: list[str] = field(init=False, default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._builder = CaseBuilder(self.contract, seed=self.seed, values=self.plan.values)

    @property
    def contract(self) -> Contract:
        return self.tool.contract

    def build_cases(self) -> list[ContractCase]:
        """Build all cases: an ordinary call, then regressions, the schemas and the declared behaviours."""
        cases = [self._builder.build_access_case()]
        cases += [each.to_case() for each in self.regressions if self._still_fits(each)]
        cases += self._builder.build_cases(samples=self.samples)
        for behaviour in BEHAVIOURS:
            if behaviour in self.contract.behaviours:
                cases += self._build_behaviour_cases(behaviour)
        return cases

    def run(self) -> Iterator[CaseOutcome]:
        """Run every case, and yield its result. If the first valid call says nothing about the tool, stop: so would
        every other.
        """
        for case in self.build_cases():
            result = self.run_case(case)
            yield result
            if case.kind is CaseKind.ACCESS and result.verdict is CaseVerdict.UNCHECKED:
                return

    def run_case(self, case: ContractCase) -> CaseOutcome:
        """Run one case; shrink its arguments if the tool fails on ones that its schema allows."""
        self._call_ids = []
        if case.behaviour is not None:
            return self._run_behaviour_case(case)
        if case.kind is CaseKind.ACCESS:
            return self._run_access_case(case)
        if case.kind is CaseKind.REPEAT:
            return self._run_repeat_case(case)
        verdict, reason = self._judge(case, self._send(case.arguments_json))
        result = self._make_result(case, verdict, reason)
        if verdict is CaseVerdict.FAILED and case.expectation is Expectation.ANSWERED:
            return self._shrink(result, lambda text: self._judge(case, self._send(text))[0] is CaseVerdict.FAILED)
        return result

    def _run_access_case(self, case: ContractCase) -> CaseOutcome:
        """Check what surrounds a call: it is refused without a token, runs with one, and is recorded with its trace."""
        without_token = self.gateway.call_without_token(self.contract.full_name, case.arguments_json)
        answer = self._send(case.arguments_json)
        verdict, reason = self._judge(case, answer)
        if verdict is CaseVerdict.PASSED and without_token.status != 401:
            verdict, reason = (
                CaseVerdict.FAILED,
                f"a call without a token was answered with HTTP {without_token.status}",
            )
        if verdict is CaseVerdict.PASSED and answer.call_id:
            stored_call = self.gateway.show_call(answer.call_id)
            if not stored_call.is_completed or not stored_call.document.get("trace_id"):
                verdict, reason = CaseVerdict.FAILED, "the call was not recorded with its trace"
        return self._make_result(case, verdict, reason)

    def _run_repeat_case(self, case: ContractCase) -> CaseOutcome:
        key = str(uuid.uuid4())
        first, second = (self._send(case.arguments_json, key=key) for _ in range(2))
        verdict, reason = self._judge(case, first)
        if verdict is CaseVerdict.PASSED and (second.call_id, second.result) != (first.call_id, first.result):
            verdict, reason = (
                CaseVerdict.FAILED,
                "a repeat with the same idempotency key was not answered with the first outcome",
            )
        return self._make_result(case, verdict, reason)

    def _run_behaviour_case(self, case: ContractCase) -> CaseOutcome:
        assert case.behaviour is not None
        behaviour = case.behaviour
        checker = BehaviourChecker(contract=self.contract, plan=self.plan, send=self._send_to)

        def find_violation(arguments_json: str) -> str | None:
            return checker.find_violation(behaviour, json.loads(arguments_json))

        def is_violated(arguments_json: str) -> bool:
            try:
                return find_violation(arguments_json) is not None
            except (CallNotCompleted, UncheckedBehaviour):
                return False

        try:
            violation = find_violation(case.arguments_json)
        except UncheckedBehaviour as error:
            return self._make_result(case, CaseVerdict.UNCHECKED, str(error))
        except CallNotCompleted as error:
            verdict, reason = self._judge(case, error.answer)
            is_refusal = verdict is CaseVerdict.PASSED
            return self._make_result(
                case,
                CaseVerdict.UNCHECKED if is_refusal else verdict,
                f"the tool refused these arguments ({error.answer.slug}); write others under values in the test plan"
                if is_refusal
                else reason,
            )
        if violation is None:
            return self._make_result(case, CaseVerdict.PASSED, "")
        return self._shrink(self._make_result(case, CaseVerdict.FAILED, f"not {behaviour}: {violation}"), is_violated)

    def _build_behaviour_cases(self, behaviour: str) -> Iterator[ContractCase]:
        """Build one case from an example, and more where the author named values that exist."""
        texts = {json.dumps(self._builder.base): None}
        for _ in range(self.samples if self.plan.values else 0):
            texts[json.dumps(self._builder.sample_known_arguments())] = None
        for number, text in enumerate(texts, start=1):
            yield ContractCase(
                kind=CaseKind.BEHAVIOUR,
                name=f"{behaviour}:{number}",
                expectation=Expectation.ANSWERED,
                arguments_json=text,
                behaviour=behaviour,
            )

    def _judge(self, case: ContractCase, answer: CallAnswer) -> tuple[CaseVerdict, str]:
        description = f"{answer.slug}: {answer.message}"[:_MAX_MESSAGE] if answer.slug else f"HTTP {answer.status}"
        is_tool_refusal = answer.slug in _DECLARED_REFUSALS
        if answer.needs_approval or answer.slug == "approval-required":
            return (
                CaseVerdict.UNCHECKED,
                "the call waits for approval; permit the tester's calls at the gateway under test",
            )
        if answer.violates_error_schema:
            return (
                CaseVerdict.FAILED,
                f"the tool failed with an error that its error schema does not allow ({description})",
            )
        if case.expectation is Expectation.REFUSED:
            if answer.slug in _INPUT_REFUSALS:
                return CaseVerdict.PASSED, ""
            if answer.is_completed or answer.slug in _TOOL_FAILURES or is_tool_refusal:
                what = "accepted" if answer.is_completed else f"passed on to the tool ({description})"
                return CaseVerdict.FAILED, f"arguments that the contract does not allow were {what}"
        elif answer.is_completed:
            return CaseVerdict.PASSED, ""
        elif answer.slug in _TOOL_FAILURES:
            return CaseVerdict.FAILED, f"the tool failed on arguments that its schema allows ({description})"
        elif answer.slug in _INPUT_REFUSALS:
            return CaseVerdict.FAILED, f"arguments that the contract allows were refused ({description})"
        elif is_tool_refusal:
            is_allowed = case.expectation is Expectation.ANSWERED
            return (
                (CaseVerdict.PASSED, "")
                if is_allowed
                else (CaseVerdict.FAILED, f"an example was refused ({description})")
            )
        return CaseVerdict.UNCHECKED, f"the answer says nothing about the tool ({description})"

    def _shrink(self, result: CaseOutcome, is_failing: Callable[[str], bool]) -> CaseOutcome:
        arguments = json.loads(result.case.arguments_json)
        simplest = shrink_arguments(
            arguments,
            is_valid=self._builder.tool.is_valid_input,
            is_failing=lambda candidate: is_failing(json.dumps(candidate)),
        )
        case = ContractCase(
            kind=result.case.kind,
            name=result.case.name,
            expectation=result.case.expectation,
            arguments_json=json.dumps(simplest),
            behaviour=result.case.behaviour,
        )
        return CaseOutcome(case=case, verdict=result.verdict, reason=result.reason, call_ids=result.call_ids)

    def _still_fits(self, regression: Regression) -> bool:
        """Tell whether the contract still promises what the regression expects; a new version may not."""
        try:
            arguments = json.loads(regression.arguments_json)
        except ValueError:
            return regression.expectation is Expectation.REFUSED
        is_valid = isinstance(arguments, dict) and self._builder.tool.is_valid_input(arguments)
        if regression.expectation is Expectation.REFUSED:
            # Text that is not written as an encoder writes it, such as a name that stands twice, is never allowed.
            return not is_valid or json.dumps(arguments) != regression.arguments_json
        is_declared = regression.behaviour is None or regression.behaviour in self.contract.behaviours
        return is_declared and is_valid

    def _send(self, arguments_json: str, *, key: str | None = None) -> CallAnswer:
        return self._remember(
            self.gateway.call(self.contract.full_name, self.contract.version, arguments_json, key=key)
        )

    def _send_to(self, tool: str, version: str | None, arguments_json: str) -> CallAnswer:
        return self._remember(self.gateway.call(tool, version, arguments_json))

    def _remember(self, answer: CallAnswer) -> CallAnswer:
        if answer.call_id and answer.call_id not in self._call_ids:
            self._call_ids.append(answer.call_id)
        return answer

    def _make_result(self, case: ContractCase, verdict: CaseVerdict, reason: str) -> CaseOutcome:
        return CaseOutcome(case=case, verdict=verdict, reason=reason, call_ids=tuple(self._call_ids))
