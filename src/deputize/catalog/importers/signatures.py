"""A typed Python function seen as a tool: the schemas of what goes in and what comes out.

Above is `python.py`, which makes a contract of it. pydantic does the typing; what it writes is tightened
here: closed objects, no made-up titles, only formats that are enforced.
"""

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, PydanticUndefined

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.marks import MARKS
from deputize.catalog.schemas import FORMATS, walk
from deputize.core.contract import Schema
from deputize.core.definition import ToolContext
from deputize.core.outcome import Result

_PLAIN = (str, bool, float, type(None), Any)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """`arguments` is None where JSON values already are what the function wants; `result` likewise."""

    input_schema: Schema
    output_schema: Schema
    names: tuple[str, ...]
    context: str | None
    arguments: type[BaseModel] | None
    result: "TypeAdapter[Any] | None"


class _Tight(GenerateJsonSchema):
    """JSON Schema without the titles pydantic makes up from names."""

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:
        return False


def read_signature(function: Callable[..., Any], where: str, *, scope: dict[str, Any], returns: Any) -> Signature:
    """Everything the types say; a function that cannot be a tool raises one sentence at `where`."""
    hints = _hints(function, where, scope)
    context: str | None = None
    fields: dict[str, Any] = {}
    plain = True
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        annotation = _annotation(parameter, hints, where)
        if annotation is ToolContext:
            context = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"a{len(names)}"] = (Annotated[annotation, Field(alias=parameter.name)], default)
        names.append(parameter.name)
        plain = plain and _is_plain(annotation) and not isinstance(default, FieldInfo)
    output = _output_type(hints, returns, where)
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        adapter = TypeAdapter(output)
        input_schema = tighten(model.model_json_schema(schema_generator=_Tight), close=True)
        output_schema = tighten(adapter.json_schema(schema_generator=_Tight, mode="serialization"), close=False)
    except PydanticUserError as error:
        raise WrongDeclaration(f"{where}: a type cannot be described as JSON: {_first(error)}") from error
    return Signature(
        input_schema=input_schema,
        output_schema=output_schema,
        names=tuple(names),
        context=context,
        arguments=None if plain else model,
        result=None if _is_plain(output) else adapter,
    )


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _hints(function: Callable[..., Any], where: str, scope: dict[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=scope, include_extras=True)
    except NameError as error:
        raise WrongDeclaration(f"{where}: the type {error.name} is not known; define it above the function") from error


def _annotation(parameter: inspect.Parameter, hints: dict[str, Any], where: str) -> Any:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise WrongDeclaration(f"{where}: *{name} has no schema; name each argument instead")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise WrongDeclaration(f"{where}: {name} cannot be given by name; remove the / after it")
    if name not in hints:
        raise WrongDeclaration(f"{where}: the argument {name} has no type; write {name}: str, or what it is")
    return hints[name]


def _output_type(hints: dict[str, Any], returns: Any, where: str) -> Any:
    output = returns if returns is not None else hints.get("return", PydanticUndefined)
    if output is PydanticUndefined:
        raise WrongDeclaration(f"{where}: it does not say what it returns; write -> str, or what it is")
    if output is Result:
        raise WrongDeclaration(f"{where}: Result does not say what is inside; name its type as in @tool(returns=User)")
    return output


def _is_plain(annotation: Any) -> bool:
    """Whether the JSON value already is the Python value. An `int` is not: JSON may write 3 as 3.0."""
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if origin is Annotated:
        said_only = all(isinstance(extra, (str, FieldInfo, *MARKS)) for extra in parts[1:])
        undefaulted = all(not isinstance(extra, FieldInfo) or extra.is_required() for extra in parts[1:])
        return said_only and undefaulted and _is_plain(parts[0])
    if origin is Literal:
        return all(isinstance(choice, str | bool) for choice in parts)
    if origin in (Union, types.UnionType, list):
        return all(map(_is_plain, parts))
    if origin is dict:
        return parts[0] is str and _is_plain(parts[1])
    return annotation in _PLAIN or annotation in (dict, list)


def tighten(schema: Schema, *, close: bool) -> Schema:
    """What pydantic wrote, as strict as we promise; a type that is open by intent is marked so."""
    schema.pop("title", None)
    names = schema.get("$defs", {}).keys()
    for _, node in walk(schema):
        if node.get("title") in names:
            del node["title"]
        if node.get("format") not in FORMATS:
            node.pop("format", None)
        if close:
            _close(node)
    return schema


def _close(node: Schema) -> None:
    properties = node.get("properties")
    if isinstance(properties, dict):
        node.setdefault("additionalProperties", False)
        for part in properties.values():
            if not part.keys() - {"description", "examples", "default", "x-sensitivity", "x-internal", "x-policy"}:
                part["x-open"] = True
    elif node.get("type") == "object":
        node.setdefault("additionalProperties", True)
    if node.get("additionalProperties") is True:
        node["x-open"] = True
