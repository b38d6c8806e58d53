"""Read the input and output schemas of a tool from the type annotations of its function.

pydantic generates the schemas; they are tightened here: closed objects, no generated titles, only enforced formats.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
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
    faults: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        fault = _find_parameter_fault(parameter, hints)
        if fault is not None:
            faults.append(f"{where}: {fault}")
            continue
        annotation = hints[parameter.name]
        if annotation is ToolContext:
            context_name = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"a{len(names)}"] = (Annotated[annotation, Field(alias=parameter.name)], default)
        names.append(parameter.name)
        is_plain = is_plain and _is_json_type(annotation) and not isinstance(default, FieldInfo)
    output = returns if returns is not None else hints.get("return", PydanticUndefined)
    if output is PydanticUndefined:
        faults.append(f"{where}: it has no return type; write -> str, or its type")
    elif output is Result:
        faults.append(f"{where}: Result has no payload type; name it, as in @tool(returns=User)")
    if faults:
        raise WrongDeclaration(*faults)
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        adapter = TypeAdapter(output)
        input_schema = tighten_schema(model.model_json_schema(schema_generator=_UntitledJsonSchema), close=True)
        output_schema = tighten_schema(
            adapter.json_schema(schema_generator=_UntitledJsonSchema, mode="serialization"), close=False
        )
    except PydanticUserError as error:
        types = {**{f"the argument {name}": hints[name] for name in names}, "the return value": output}
        raise WrongDeclaration(*_explain_types(types, where, error)) from error
    return Signature(
        input_schema=input_schema,
        output_schema=output_schema,
        argument_names=tuple(names),
        context_name=context_name,
        arguments_model=None if is_plain else model,
        result_adapter=None if _is_json_type(output) else adapter,
    )


def _explain_types(types: Mapping[str, Any], where: str, error: PydanticUserError) -> Iterator[str]:
    """Explain which types have no JSON form; if each has one alone, the library's own sentence."""
    is_explained = False
    for what, annotation in types.items():
        try:
            TypeAdapter(annotation).json_schema()
        except PydanticUserError:
            is_explained = True
            name = getattr(annotation, "__name__", str(annotation))
            yield (
                f"{where}: {what} is a {name}, which has no form in JSON; use str, int, float, bool, list, dict, a "
                "dataclass or a pydantic model"
            )
    if not is_explained:
        yield f"{where}: a type has no form in JSON; use another type: {str(error).partition(chr(10))[0]}"


def _get_type_hints(function: Callable[..., Any], where: str, scope: dict[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=scope, include_extras=True)
    except NameError as error:
        raise WrongDeclaration(f"{where}: the type {error.name} is unknown; define it above the function") from error


def _find_parameter_fault(parameter: inspect.Parameter, hints: dict[str, Any]) -> str | None:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return f"*{name} has no schema; name each argument instead"
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return f"{name} cannot be passed by name; remove the / after it"
    if name not in hints:
        return f"the argument {name} has no type; write {name}: str, or its type"
    return None


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
