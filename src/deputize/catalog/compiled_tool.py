"""Compile a contract for checking calls: validators, coercion plan, model schema, policy facts, affected resources.

A contract is compiled once per digest, on the first call, and shared by every tenant and snapshot that has it.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from deputize.catalog.coercion import CoercionPlan, build_plan, coerce_arguments
from deputize.catalog.comparisons import compute_change, parse_comparison
from deputize.catalog.costly_documents import JobRunner, describe_errors
from deputize.catalog.policy_facts import list_facts, read_defaults, read_fact_values
from deputize.catalog.schema_cost import SchemaCost, measure_schema
from deputize.catalog.schema_errors import find_errors
from deputize.catalog.schemas import Validator, compile_schema, strip_internal
from deputize.core.call import Mutation
from deputize.core.contract.contract import DEFAULT_ERROR_SCHEMA, Contract, Predicate, Schema
from deputize.core.contract.unenforced_fields import list_unenforced_fields

_ARGUMENT = re.compile(r"\{([^{}]+)\}")
# All other characters of an argument are percent-encoded in a scope, because some have a meaning in scope patterns.
_SAFE_CHARACTERS = "@:+, ~"


class AffectedResource(NamedTuple):
    """A resource that a call may change, with the call's arguments filled into its scope."""

    resource: str
    op: str
    scope: str


class CompiledTool:
    """A contract with everything derived from it. `is_valid_input` is the Rust validator's own bound method."""

    __slots__ = (
        "__weakref__",
        "_call",
        "_costs",
        "_defaults",
        "_error",
        "_facts",
        "_input",
        "_output",
        "_plan",
        "_predicates",
        "_templates",
        "contract",
        "digest",
        "example",
        "is_valid_input",
        "is_valid_output",
        "model_schema",
        "name",
        "scope_arguments",
        "sensitive_facts",
        "unenforced_fields",
    )

    def __init__(self, contract: Contract, digest: str | None = None) -> None:
        self.contract = contract
        self.name = contract.full_name
        self.digest = digest or contract.digest
        self.unenforced_fields = list_unenforced_fields(contract)
        self.model_schema: Schema = strip_internal(contract.input_schema)
        self._input: Validator = compile_schema(self.model_schema)
        self._output: Validator = compile_schema(contract.output_schema)
        # Only an author's own error schema is compiled: every error matches the default.
        self._error = None if contract.error_schema == DEFAULT_ERROR_SCHEMA else compile_schema(contract.error_schema)
        self._predicates = tuple(
            (check, compile_schema(check.holds), tuple(map(parse_comparison, check.compare)))
            for check in contract.predicates
        )
        self._templates = tuple((effect, tuple(_ARGUMENT.findall(effect.scope))) for effect in contract.resources)
        # The arguments that scopes of its side effects are filled in from.
        self.scope_arguments = tuple(sorted({name for _, names in self._templates for name in names}))
        self._plan: CoercionPlan | None = None
        self._call: Validator | None = None
        self._costs: tuple[SchemaCost, SchemaCost] | None = None
        self._facts = list_facts(contract)
        policy_arguments = {fact.argument for fact in self._facts}.union(*(names for _, names in self._templates))
        self._defaults = read_defaults(contract.input_schema, sorted(policy_arguments))
        self.sensitive_facts = frozenset(fact.name for fact in self._facts if fact.is_sensitive)
        self.is_valid_input = self._input.is_valid
        self.is_valid_output = self._output.is_valid
        self.example: dict[str, Any] | None = contract.examples[0] if contract.examples else None

    @property
    def costs(self) -> tuple[SchemaCost, SchemaCost]:
        """The costs of validating an input and an output."""
        if self._costs is None:
            self._costs = (measure_schema(self.model_schema), measure_schema(self.contract.output_schema))
        return self._costs

    def list_input_errors(self, value: Any) -> list[dict[str, Any]]:
        """List what is invalid in the arguments and what is expected: names and types, never the values."""
        return find_errors(self._input, value, self.model_schema, self.costs[0])

    async def describe_input_errors(self, value: Any, run_job: JobRunner) -> list[dict[str, Any]]:
        """List the same of arguments that are not valid, in another process if that may take long."""
        return await describe_errors(self._input, value, self.model_schema, self.costs[0], run_job)

    def list_call_errors(self, value: Any) -> list[dict[str, Any]]:
        """List what is invalid in the input that the tool receives, including internal arguments set by hooks."""
        if self._call is None:
            self._call = compile_schema(self.contract.input_schema)
        return find_errors(self._call, value, self.contract.input_schema, measure_schema(self.contract.input_schema))

    async def describe_output_errors(self, value: Any, run_job: JobRunner) -> list[dict[str, Any]]:
        """List what is invalid in the tool's return value, in another process if that may take long."""
        return await describe_errors(self._output, value, self.contract.output_schema, self.costs[1], run_job)

    @property
    def has_error_schema(self) -> bool:
        """True if the contract declares an error schema of its own."""
        return self._error is not None

    def list_error_mismatches(self, value: Any) -> list[dict[str, Any]]:
        """List what is invalid in the tool's error, given as `{"message": …, "details": …}`."""
        if self._error is None:
            return []
        return find_errors(self._error, value, self.contract.error_schema, measure_schema(self.contract.error_schema))

    def coerce_arguments(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[Mutation, ...]]:
        """Coerce invalid arguments into valid ones, if that is possible; the original is never changed."""
        if self._plan is None:
            self._plan = build_plan(self.model_schema)
        return coerce_arguments(self._plan, arguments, self.is_valid_input)

    def find_failed_predicates(
        self, arguments: Mapping[str, Any], output: Any, state: Mapping[str, Any] | None = None
    ) -> tuple[Predicate, ...]:
        """Find the contract's predicates that the result does not satisfy; `state` has `before` and `after`.

        With None, comparisons of the state are left out; without members, they fail.
        """
        if not self._predicates:
            return ()
        subject = {"input": arguments, "output": output}
        if state:
            subject |= {**state, "change": compute_change(state["before"], state["after"])}
        return tuple(
            check
            for check, validator, comparisons in self._predicates
            if not validator.is_valid(subject)
            or not all(each.holds(subject) for each in comparisons if state is not None or not each.compares_state)
        )

    def fill_defaults(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the defaults of missing arguments, so that policies judge the values the tool would use."""
        return {**self._defaults, **arguments} if self._defaults else arguments

    def read_facts(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Read the arguments that policies may use, by fact name."""
        return read_fact_values(self._facts, arguments) if self._facts else {}

    def resolve_writes(self, arguments: Mapping[str, Any]) -> tuple[AffectedResource, ...]:
        """List the resources this call may change. A missing or non-scalar argument becomes `*` in a scope."""
        return tuple(
            AffectedResource(
                effect.resource, effect.op, _fill_scope(effect.scope, names, arguments) if names else effect.scope
            )
            for effect, names in self._templates
        )


def _fill_scope(scope: str, names: tuple[str, ...], arguments: Mapping[str, Any]) -> str:
    for name in names:
        scope = scope.replace("{" + name + "}", _format_scope_value(arguments.get(name)))
    return scope


def _format_scope_value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str() if value:
            return quote(value, safe=_SAFE_CHARACTERS)
        case _:
            return "*"
