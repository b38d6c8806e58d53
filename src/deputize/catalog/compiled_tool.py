"""Compile a contract for checking calls: validators, coercion plan, model schema, policy facts, affected resources.

A contract is compiled once per digest, on the first call, and shared by every tenant and snapshot that has it.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from deputize.catalog.coercion import CoercionPlan, build_plan, coerce_arguments
from deputize.catalog.policy_facts import list_facts, read_defaults, read_fact_values
from deputize.catalog.predicates import CompiledPredicates
from deputize.catalog.schemas import strip_internal
from deputize.catalog.validation_job import CompiledSchema
from deputize.core.call import Mutation
from deputize.core.contract.contract import DEFAULT_ERROR_SCHEMA, Contract, Schema
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
    """A contract with everything derived from it.

    `input` is the schema that callers see, `call_input` the one that also has the internal arguments that hooks set.
    `error` is None without an error schema of the author's own, because every error matches the default.
    """

    __slots__ = (
        "__weakref__",
        "_defaults",
        "_facts",
        "_plan",
        "_templates",
        "call_input",
        "contract",
        "digest",
        "error",
        "example",
        "input",
        "is_valid_input",
        "is_valid_output",
        "model_schema",
        "name",
        "output",
        "predicates",
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
        self.input = CompiledSchema(self.model_schema)
        has_internal = self.model_schema != contract.input_schema
        self.call_input = CompiledSchema(contract.input_schema) if has_internal else self.input
        self.output = CompiledSchema(contract.output_schema)
        self.error = None if contract.error_schema == DEFAULT_ERROR_SCHEMA else CompiledSchema(contract.error_schema)
        self.predicates = CompiledPredicates(contract.predicates) if contract.predicates else None
        self._templates = tuple((effect, tuple(_ARGUMENT.findall(effect.scope))) for effect in contract.resources)
        # The arguments that scopes of its side effects are filled in from.
        self.scope_arguments = tuple(sorted({name for _, names in self._templates for name in names}))
        self._plan: CoercionPlan | None = None
        self._facts = list_facts(contract)
        policy_arguments = {fact.argument for fact in self._facts}.union(*(names for _, names in self._templates))
        self._defaults = read_defaults(contract.input_schema, sorted(policy_arguments))
        self.sensitive_facts = frozenset(fact.name for fact in self._facts if fact.is_sensitive)
        self.is_valid_input = self.input.is_valid
        self.is_valid_output = self.output.is_valid
        self.example: dict[str, Any] | None = contract.examples[0] if contract.examples else None

    def list_input_errors(self, value: Any) -> list[dict[str, Any]]:
        """List what is invalid in the arguments and what is expected: names and types, never the values."""
        return self.input.find_errors(value)

    def coerce_arguments(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[Mutation, ...]]:
        """Coerce invalid arguments into valid ones, if that is possible; the original is never changed."""
        if self._plan is None:
            self._plan = build_plan(self.model_schema)
        return coerce_arguments(self._plan, arguments, self.is_valid_input)

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
        case int():
            return str(value)
        case float():
            # JSON has one kind of number: 7.0 is 7, and leads a tool to the same resource.
            return str(int(value)) if value.is_integer() else str(value)
        case str() if value:
            return quote(value, safe=_SAFE_CHARACTERS)
        case _:
            return "*"
