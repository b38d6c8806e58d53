"""Read the input and output schemas of a tool from the type annotations of its function.

pydantic generates the schemas; they are tightened here: closed objects, no generated titles, only enforced formats.
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

from deputize.catalog.importers.annotations import MARKS
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.schemas import FORMATS, walk_schema
from deputize.core.contract.contract import Schema
from deputize.core.contract.tools import ToolContext
from deputize.core.outcome import Result

_JSON_TYPES = (str, bool, float, type(None), Any)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A function's schemas and parameters.

    `arguments_model` and `result_adapter` are None if the function works with JSON values, so nothing is converted.
    """

    input_schema: Schema
    output_schema: Schema
    argument_names: tuple[str, ...]
    context_name: str | None
    arguments_model: type[BaseModel] | None
    result_adapter: "TypeAdapter[Any] | None"


class _UntitledJsonSchema(GenerateJsonSchema):
    """A JSON Schema generator without the titles that pydantic derives from names."""

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:
        return False


def read_signature(function: Callable[..., Any], where: str, *, scope: dict[str, Any], returns: Any) -> Signature:
    """Read a function's signature; raise `WrongDeclaration` at `where` if the function cannot be a tool."""
    hints = _get_type_hints(function, where, scope)
    context_name: str | None = None
    fields: dict[str, Any] = {}
    is_plain = True
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        annotation = _get_annotation(parameter, hints, where)
        if annotation is ToolContext:
            context_name = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"a{len(names)}"] = (Annotated[annotation, Field(alias=parameter.name)], default)
        names.append(parameter.name)
        is_plain = is_plain and _is_json_type(annotation) and not isinstance(default, FieldInfo)
    output = _get_output_type(hints, returns, where)
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        adapter = TypeAdapter(output)
        input_schema = tighten_schema(model.model_json_schema(schema_generator=_UntitledJsonSchema), close=True)
        output_schema = tighten_schema(
            adapter.json_schema(schema_generator=_UntitledJsonSchema, mode="serialization"), close=False
        )
    except PydanticUserError as error:
        raise WrongDeclaration(
            f"{where}: a type cannot be described as JSON Schema; use another type: {_get_first_line(error)}"
        ) from error
    return Signature(
        input_schema=input_schema,
        output_schema=output_schema,
        argument_names=tuple(names),
        context_name=context_name,
        arguments_model=None if is_plain else model,
        result_adapter=None if _is_json_type(output) else adapter,
    )


def _get_first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _get_type_hints(function: Callable[..., Any], where: str, scope: dict[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=scope, include_extras=True)
    except NameError as error:
        raise WrongDeclaration(f"{where}: the type {error.name} is unknown; define it above the function") from error


def _get_annotation(parameter: inspect.Parameter, hints: dict[str, Any], where: str) -> Any:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise WrongDeclaration(f"{where}: *{name} has no schema; name each argument instead")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise WrongDeclaration(f"{where}: {name} cannot be passed by name; remove the / after it")
    if name not in hints:
        raise WrongDeclaration(f"{where}: the argument {name} has no type; write {name}: str, or its type")
    return hints[name]


def _get_output_type(hints: dict[str, Any], returns: Any, where: str) -> Any:
    output = returns if returns is not None else hints.get("return", PydanticUndefined)
    if output is PydanticUndefined:
        raise WrongDeclaration(f"{where}: it has no return type; write -> str, or its type")
    if output is Result:
        raise WrongDeclaration(f"{where}: Result has no payload type; name it, as in @tool(returns=User)")
    return output


def _is_json_type(annotation: Any) -> bool:
    """Tell whether the JSON value is also the Python value. An `int` is not: JSON may write 3 as 3.0."""
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if origin is Annotated:
        has_only_metadata = all(isinstance(extra, (str, FieldInfo, *MARKS)) for extra in parts[1:])
        has_no_default = all(not isinstance(extra, FieldInfo) or extra.is_required() for extra in parts[1:])
        return has_only_metadata and has_no_default and _is_json_type(parts[0])
    if origin is Literal:
        return all(isinstance(choice, str | bool) for choice in parts)
    if origin in (Union, types.UnionType, list):
        return all(map(_is_json_type, parts))
    if origin is dict:
        return parts[0] is str and _is_json_type(parts[1])
    return annotation in _JSON_TYPES or annotation in (dict, list)


def tighten_schema(schema: Schema, *, close: bool) -> Schema:
    """Tighten a generated schema: drop titles and unenforced formats, close objects, mark open types `x-open`."""
    schema.pop("title", None)
    names = schema.get("$defs", {}).keys()
    for _, node in walk_schema(schema):
        if node.get("title") in names:
            del node["title"]
        if node.get("format") not in FORMATS:
            node.pop("format", None)
        if close:
            _close_object(node)
    return schema


def _close_object(node: Schema) -> None:
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
