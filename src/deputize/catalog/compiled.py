"""A contract made ready to judge calls: validators, coercion plan, the schema a model sees, what it touches.

Made once per digest, when the version is first called, and shared by every tenant and snapshot that holds it.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import jsonschema_rs

from deputize.catalog.coercion import Plan, coerce, plan, type_name
from deputize.catalog.exposed import defaults_in, exposed, facts_of
from deputize.catalog.schemas import Validator, compile_schema, follow, pointer, without_internal
from deputize.core.call import Mutation
from deputize.core.contract import Contract, Predicate, Schema

MOST_ERRORS = 20
_LONGEST_NAME = 64
_ARGUMENT = re.compile(r"\{([^{}]+)\}")
# Characters that mean something in a scope pattern are written as %XX when they come from an argument.
_PLAIN = "@:+, ~"

Kind = jsonschema_rs.ValidationErrorKind


class Touched(NamedTuple):
    """One thing a call may change, with the arguments filled into its scope."""

    resource: str
    op: str
    scope: str


class CompiledTool:
    """Everything derived from one contract. `is_valid_input` is the Rust validator's own bound method."""

    __slots__ = (
        "__weakref__",
        "_call",
        "_defaults",
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
        "withheld",
    )

    def __init__(self, contract: Contract, digest: str | None = None) -> None:
        self.contract = contract
        self.name = contract.full_name
        self.digest = digest or contract.digest
        self.model_schema: Schema = without_internal(contract.input_schema)
        self._input: Validator = compile_schema(self.model_schema)
        self._output: Validator = compile_schema(contract.output_schema)
        self._predicates = tuple((check, compile_schema(check.holds)) for check in contract.predicates)
        self._templates = tuple((effect, tuple(_ARGUMENT.findall(effect.scope))) for effect in contract.resources)
        self._plan: Plan | None = None
        self._call: Validator | None = None
        self._facts = exposed(contract)
        judged_by = {fact.argument for fact in self._facts}.union(*(names for _, names in self._templates))
        self._defaults = defaults_in(contract.input_schema, sorted(judged_by))
        self.withheld = frozenset(fact.name for fact in self._facts if fact.sensitive)
        self.is_valid_input = self._input.is_valid
        self.is_valid_output = self._output.is_valid
        self.example: dict[str, Any] | None = contract.examples[0] if contract.examples else None

    def input_errors(self, value: Any) -> list[dict[str, Any]]:
        """Where the arguments do not fit and what would; names and types, never the values themselves."""
        return _errors(self._input, value, self.model_schema)

    def call_errors(self, value: Any) -> list[dict[str, Any]]:
        """Like `input_errors`, for the input as the tool gets it: hooks may fill what callers may not even see."""
        if self._call is None:
            self._call = compile_schema(self.contract.input_schema)
        return _errors(self._call, value, self.contract.input_schema)

    def output_errors(self, value: Any) -> list[dict[str, Any]]:
        return _errors(self._output, value, self.contract.output_schema)

    def coerce(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[Mutation, ...]]:
        """For arguments that are not valid as they came; the original is never changed."""
        if self._plan is None:
            self._plan = plan(self.model_schema)
        return coerce(self._plan, arguments, self.is_valid_input)

    def failed_predicates(self, arguments: Mapping[str, Any], output: Any) -> tuple[Predicate, ...]:
        """The sanity checks this result does not pass."""
        if not self._predicates:
            return ()
        subject = {"input": arguments, "output": output}
        return tuple(check for check, validator in self._predicates if not validator.is_valid(subject))

    def filled(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the tool would go by, for whoever judges it: where the arguments are silent, its defaults speak. A rule
        about an amount holds for the amount that is taken when none is given.
        """
        return {**self._defaults, **arguments} if self._defaults else arguments

    def facts(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What policies may know of this call's arguments."""
        return facts_of(self._facts, arguments) if self._facts else {}

    def writes(self, arguments: Mapping[str, Any]) -> tuple[Touched, ...]:
        """What this call may change. An argument that is missing or no single value becomes `*`."""
        return tuple(
            Touched(effect.resource, effect.op, _fill(effect.scope, names, arguments) if names else effect.scope)
            for effect, names in self._templates
        )


def _fill(scope: str, names: tuple[str, ...], arguments: Mapping[str, Any]) -> str:
    for name in names:
        scope = scope.replace("{" + name + "}", _word(arguments.get(name)))
    return scope


def _word(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str() if value:
            return quote(value, safe=_PLAIN)
        case _:
            return "*"


def _errors(validator: Validator, value: Any, schema: Schema) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for error in validator.iter_errors(value):
        found.extend(_sentences(error, schema))
        if len(found) >= MOST_ERRORS:
            break
    return sorted(found[:MOST_ERRORS], key=lambda entry: str(entry["path"]))


def _sentences(error: jsonschema_rs.ValidationError, schema: Schema) -> list[dict[str, Any]]:
    """One entry per thing to mend, each at the place where it is to be mended."""
    path = tuple(error.instance_path)
    match error.kind:
        case Kind.Required(property=name):
            return [{"path": pointer((*path, str(name))), "message": "is required", "rule": "required"}]
        case Kind.AdditionalProperties(unexpected=names):
            known = _known_names(schema, path)
            return [
                {
                    "path": pointer((*path, name[:_LONGEST_NAME])),
                    "message": "is not an argument of this tool",
                    "rule": "additionalProperties",
                    **({"known": known} if known else {}),
                }
                for name in names
            ]
        case Kind.Type(types=types):
            wanted = " or ".join(types)
            message = f"must be {_a(wanted)}, not {_a(type_name(error.instance))}"
            return [{"path": pointer(path), "message": message, "rule": "type", "expected": wanted}]
        case Kind.Enum(options=options):
            return [
                {"path": pointer(path), "message": "must be one of the values in expected", "rule": "enum",
                 "expected": options}
            ]  # fmt: skip
        case Kind.Format(format=name):
            return [
                {
                    "path": pointer(path),
                    "message": f"must be a valid {name}",
                    "rule": "format",
                    "expected": name,
                }
            ]
        case _:
            return [{"path": pointer(path), "message": error.message, "rule": error.kind.name}]


def _a(word: str) -> str:
    return word if word == "null" else f"{'an' if word[0] in 'aeio' else 'a'} {word}"


def _known_names(schema: Schema, path: tuple[str | int, ...]) -> list[str]:
    """The names that may stand where an unknown one stood, as far as a plain path leads."""
    node = follow(schema, schema)
    for step in path:
        inside = node.get("items") if isinstance(step, int) else node.get("properties", {}).get(step)
        node = follow(schema, inside)
        if not isinstance(node, dict):
            return []
    return sorted(node.get("properties", {}))[:MOST_ERRORS]
