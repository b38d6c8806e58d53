"""Check the behaviours that a contract declares, as properties of real calls.

A behaviour about state needs a tool that reads it; without one the property cannot be seen, and is reported as
unchecked, never as held.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from deputize.catalog.schemas import resolve_pointer
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Contract
from deputize.testing.gateway_calls import CallAnswer
from deputize.testing.plan import ContractTestPlan, StateReader, fill_placeholders

# Sends one call of a tool with these arguments: the tool's name, its version or None for the latest, the arguments.
SendCall = Callable[[str, str | None, str], CallAnswer]


class UncheckedBehaviour(Exception):
    """The behaviour cannot be seen; the message says what is missing."""


class CallNotCompleted(Exception):
    """A call of the property did not complete, so these arguments show nothing."""

    def __init__(self, answer: CallAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer


@dataclass(frozen=True, kw_only=True, slots=True)
class BehaviourChecker:
    """Checks the behaviours of one contract by calls."""

    contract: Contract
    plan: ContractTestPlan
    send: SendCall

    def find_violation(self, behaviour: str, arguments: dict[str, Any]) -> str | None:
        """Return how the behaviour is violated with these arguments; None if it holds."""
        return _CHECKS[behaviour](self, arguments)

    def check_deterministic(self, arguments: dict[str, Any]) -> str | None:
        first, second = self._call(arguments), self._call(arguments)
        return None if _is_equal(first, second) else "the same arguments gave two different results"

    def check_idempotent(self, arguments: dict[str, Any]) -> str | None:
        first = self._call(arguments)
        state = self._read_state(arguments) if self.plan.state is not None else None
        second = self._call(arguments)
        if not _is_equal(first, second):
            return "executing the same call twice gave two different results"
        if self.plan.state is not None and not _is_equal(state, self._read_state(arguments)):
            return "executing the same call a second time changed the state again"
        return None

    def check_monotone(self, arguments: dict[str, Any]) -> str | None:
        before, after = self._measure_around(arguments, self._count)
        return None if after >= before else f"the state shrank from {before:g} to {after:g}"

    def check_conserving(self, arguments: dict[str, Any]) -> str | None:
        before, after = self._measure_around(arguments, self._add_up)
        return None if after == before else f"the total changed from {before:g} to {after:g}"

    def check_reversible(self, arguments: dict[str, Any]) -> str | None:
        if self.contract.undo is None:
            raise UncheckedBehaviour("the contract names no undo tool; set undo")
        before = self._read_state(arguments)
        result = self._call(arguments)
        self._undo(self.contract.undo, arguments, result)
        is_restored = _is_equal(before, self._read_state(arguments))
        return None if is_restored else f"{self.contract.undo} did not restore the state"

    def _undo(self, tool: str, arguments: dict[str, Any], result: Any) -> None:
        template = self.plan.undo
        undo_arguments = arguments if template is None else fill_placeholders(template, arguments, result)
        answer = self.send(tool, None, json.dumps(undo_arguments))
        if not answer.is_completed:
            raise UncheckedBehaviour(
                f"the undo call of {tool} was refused ({answer.slug}: {answer.message}); "
                "write its arguments under undo in the test plan"
            )

    def _measure_around(self, arguments: dict[str, Any], measure: Callable[[Any], float]) -> tuple[float, float]:
        before = measure(self._read_state(arguments))
        self._call(arguments)
        return before, measure(self._read_state(arguments))

    def _call(self, arguments: dict[str, Any]) -> Any:
        answer = self.send(self.contract.full_name, self.contract.version, json.dumps(arguments))
        if not answer.is_completed:
            raise CallNotCompleted(answer)
        return answer.result

    def _read_state(self, arguments: dict[str, Any]) -> Any:
        reader = self._require_reader()
        answer = self.send(reader.tool, None, json.dumps(fill_placeholders(reader.arguments, arguments)))
        if not answer.is_completed:
            raise UncheckedBehaviour(
                f"the state could not be read with {reader.tool} ({answer.slug}: {answer.message})"
            )
        return answer.result

    def _require_reader(self) -> StateReader:
        if self.plan.state is None:
            raise UncheckedBehaviour("no tool that reads the state is named; write state in the test plan")
        return self.plan.state

    def _find_quantity(self, state: Any) -> Any:
        pointer = self._require_reader().measure
        quantity = resolve_pointer({"state": state}, f"#/state{quote(pointer)}")
        if quantity is None:
            raise UncheckedBehaviour(f"the state has nothing at {pointer or 'its root'}; correct state.measure")
        return quantity

    def _count(self, state: Any) -> float:
        quantity = self._find_quantity(state)
        if isinstance(quantity, list | dict | str):
            return float(len(quantity))
        return _require_number(quantity)

    def _add_up(self, state: Any) -> float:
        quantity = self._find_quantity(state)
        parts = list(quantity.values()) if isinstance(quantity, dict) else quantity
        if isinstance(parts, list):
            return sum(_require_number(each) for each in parts)
        return _require_number(parts)


_CHECKS: Final[dict[str, Callable[[BehaviourChecker, dict[str, Any]], str | None]]] = {
    "deterministic": BehaviourChecker.check_deterministic,
    "idempotent": BehaviourChecker.check_idempotent,
    "monotone": BehaviourChecker.check_monotone,
    "conserving": BehaviourChecker.check_conserving,
    "reversible": BehaviourChecker.check_reversible,
}
BEHAVIOURS: Final = tuple(_CHECKS)


def _is_equal(one: Any, other: Any) -> bool:
    return canonicalize(one) == canonicalize(other)


def _require_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UncheckedBehaviour("the state has no number at state.measure; correct the pointer")
    return float(value)
