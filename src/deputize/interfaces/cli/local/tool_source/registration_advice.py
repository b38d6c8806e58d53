"""Explain why a Python tool cannot be registered, by its file, line, function and parameter."""

import ast
import inspect
import json
import linecache
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deputize.catalog.importers.docstrings import parse_docstring
from deputize.catalog.schema_rules import LACKS_DESCRIPTION, LACKS_EXAMPLE, NOT_CALLABLE, Reason
from deputize.core.contract.publication import PLACEHOLDER, has_placeholder
from deputize.core.contract.tools import PythonTool

_PARAMETER = re.compile(r"/input_schema/properties/([^/]+)")
_FIELD = re.compile(r"/input_schema/(?:\$defs|properties)/([^/]+)(?:/[^/]+)*?/properties/([^/]+)")
_SCHEMA_PARTS = {"/input_schema": "the parameters", "/output_schema": "the return type", "/auth": "the tool"}
_FIXES = {
    "/resources": 'name what it may change, as in resources=["update crm.users/{id}"]',
    "/preview": "add preview=, a function that returns what it would change, or undo=, the tool that reverses it",
    "/undo": 'name the tool that reverses it, as in undo="crm.restore_user", or write effects="destructive"',
    "/description": "write a docstring of one sentence that says what it does",
}
# A parameter's own are explained together.
_FIELD_FIXES = {
    LACKS_DESCRIPTION: 'annotate it with Field, as in Annotated[int, Field(description="In centimetres.")]',
    LACKS_EXAMPLE: "annotate it with Field, as in Annotated[int, Field(examples=[12])], or give it a default",
}
_WORDS = (
    ("a property of the input schema", "a parameter"),
    ("the input schema", "the parameters"),
    ("the example or the schema", "the example or the parameters"),
)
DRAFT_FIX = (
    'it is a draft, because its effects are not declared; write @tool(effects="read"), or effects="write" or '
    '"destructive" with scopes=, resources= and undo= or preview='
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceGaps:
    """What the author of one function has yet to write into its docstring and `@tool`."""

    function: str
    line: int
    has_docstring: bool
    argument_names: tuple[str, ...]
    # Parameters whose line in the docstring still has the placeholder.
    placeholder_names: tuple[str, ...]
    example_names: tuple[str, ...]
    # Values that the schema of a parameter names already.
    known_values: Mapping[str, Any] = field(default_factory=dict)
    has_placeholder_docstring: bool = False
    has_placeholder_example: bool = False

    @property
    def argument_lines(self) -> tuple[str, ...]:
        return tuple(f"{name}: {PLACEHOLDER}" for name in self.argument_names)

    @property
    def example(self) -> str:
        values = {name: self.known_values.get(name, PLACEHOLDER) for name in self.example_names}
        return f"examples=[{_format_literal(values)}]"


def find_source_gaps(tool: PythonTool, reasons: Sequence[Reason]) -> SourceGaps:
    """Find what is missing in the source of a tool's function."""
    function = inspect.unwrap(tool.run)
    parsed_text = parse_docstring(function.__doc__)
    names_undescribed, names_without_example = (
        tuple(match[1] for each in reasons if each.reason == text and (match := _PARAMETER.fullmatch(each.path)))
        for text in (LACKS_DESCRIPTION, LACKS_EXAMPLE)
    )
    required_names = tool.contract.input_schema.get("required", ())
    is_example_missing = any(each.path == "/examples" for each in reasons)
    names = dict.fromkeys((*(required_names if is_example_missing else ()), *names_without_example))
    properties = tool.contract.input_schema.get("properties", {})
    return SourceGaps(
        function=function.__name__,
        line=function.__code__.co_firstlineno,
        has_docstring=bool(parsed_text.description),
        argument_names=tuple(name for name in names_undescribed if name not in parsed_text.arguments),
        placeholder_names=tuple(name for name in names_undescribed if name in parsed_text.arguments),
        example_names=tuple(names),
        known_values={name: values[0] for name in names if (values := _list_known_values(properties.get(name)))},
        has_placeholder_docstring=has_placeholder(parsed_text.description),
        has_placeholder_example=is_example_missing and _has_placeholder_in_decorator(function),
    )


def _list_known_values(schema: Any) -> list[Any]:
    """List values that a parameter may have, as its schema names them; none in the schema of a reference."""
    if not isinstance(schema, dict):
        return []
    values = [*schema.get("examples", ()), *(schema[key] for key in ("const", "default") if key in schema)]
    return [each for each in (*values, *schema.get("enum", ())) if not has_placeholder(each)]


def _has_placeholder_in_decorator(function: Callable[..., Any]) -> bool:
    """Tell whether `@tool` has an example that waits for its values: the contract leaves such an example out."""
    # The file may have been written since it was read for an earlier message.
    linecache.checkcache(function.__code__.co_filename)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, ValueError):
        return False
    decorators = getattr(tree.body[0], "decorator_list", ())
    constants = (node for each in decorators for node in ast.walk(each) if isinstance(node, ast.Constant))
    return any(has_placeholder(each.value) for each in constants)


def _format_literal(value: Any) -> str:
    """Format a JSON value as Python code, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_format_literal(key)}: {_format_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_literal, value)) + "]"
    return repr(value)


def explain_reasons(tool: PythonTool, file: str, reasons: Iterable[Reason]) -> list[str]:
    """Explain each reason; missing descriptions and examples together, with the lines to add."""
    all_reasons = list(reasons)
    gaps = find_source_gaps(tool, all_reasons)
    where = f"{file}:{gaps.line} {gaps.function}"
    if gaps.has_docstring:
        # What is too short to choose a tool by counts as none.
        all_reasons = [
            replace(each, reason="is shorter than 10 characters") if each.path == "/description" else each
            for each in all_reasons
        ]
    sentences = [f"{where}: {_explain_reason(each)}" for each in all_reasons if not _is_in_gaps(each, gaps)]
    return [*sentences, *(f"{where}: {each}" for each in _explain_gaps(gaps))]


def _is_in_gaps(reason: Reason, gaps: SourceGaps) -> bool:
    if reason.path == "/examples":
        return bool(gaps.example_names)
    if reason.path == "/description" and gaps.has_placeholder_docstring:
        return True
    match = _PARAMETER.fullmatch(reason.path)
    return match is not None and reason.reason in (LACKS_DESCRIPTION, LACKS_EXAMPLE)


def _explain_gaps(gaps: SourceGaps) -> Iterator[str]:
    if gaps.has_placeholder_docstring:
        yield f"the docstring says nothing yet; replace {PLACEHOLDER} in it by a sentence that says what the tool does"
    for name in gaps.placeholder_names:
        yield f"the parameter {name} has no description; replace {PLACEHOLDER} in the docstring by what it is"
    if gaps.argument_names:
        lines = "\n".join(f"            {line}" for line in gaps.argument_lines)
        noun = "the parameter" if len(gaps.argument_names) == 1 else "the parameters"
        verb = "has" if len(gaps.argument_names) == 1 else "have"
        yield (
            f"{noun} {', '.join(gaps.argument_names)} {verb} no description; write in the docstring, for {PLACEHOLDER} "
            f"what it is:\n        Args:\n{lines}"
        )
    if gaps.has_placeholder_example:
        yield f"a call that works is missing; replace {PLACEHOLDER} in examples of @tool by values of such a call"
    elif gaps.example_names:
        how = f", for {PLACEHOLDER} real values" if PLACEHOLDER in gaps.example else ""
        yield f"a call that works is missing; write in @tool{how}:\n        {gaps.example}"


def _explain_reason(reason: Reason) -> str:
    if reason.path == "/version" and "draft" in reason.reason:
        return DRAFT_FIX
    fix = _FIXES.get(reason.path, reason.fix) if reason.reason.startswith("is missing") else reason.fix
    fix = _FIELD_FIXES.get(reason.reason, fix)
    if reason.reason.endswith(NOT_CALLABLE):
        fix = "declare it with @tool in a file of the project, or correct the name"
    text = f"{name_place(reason.path)} {reason.reason}; {fix}".strip()
    for schema_words, python_words in _WORDS:
        text = text.replace(schema_words, python_words)
    return text


def name_place(path: str) -> str:
    """Name a place of a contract as the author of a function knows it."""
    if match := _FIELD.match(path):
        return f"the field {match[2]} of {match[1]}"
    if match := _PARAMETER.match(path):
        return f"the parameter {match[1]}"
    if path in _SCHEMA_PARTS:
        return _SCHEMA_PARTS[path]
    if path.startswith("/output_schema"):
        return f"the return type ({path.removeprefix('/output_schema/').replace('/', '.')})"
    path = path.removeprefix("/auth")
    return re.sub(r"/(\d+)", r"[\1]", path).strip("/").replace("/", ".")
