"""Adapt a tool's functions for the driver: JSON values in and out, the function's own types inside."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.signatures import Signature
from deputize.core.errors import ResultInvalid, SemanticViolation
from deputize.core.outcome import Result

_CONTEXT_NAME = "context"


def adapt_tool(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """Wrap a function so that the driver can call it with JSON values and `context` and gets JSON values back."""
    is_context_renamed = signature.context_name not in (None, "context")
    if signature.arguments_model is None and signature.result_adapter is None and not is_context_renamed:
        return function

    def prepare_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
        context = arguments.pop("context") if signature.context_name else None
        values = _convert_arguments(signature, arguments)
        return {**values, signature.context_name: context} if signature.context_name else values

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(**arguments: Any) -> Any:
            return _dump_output(signature, await function(**prepare_arguments(arguments)))

        return run_async

    @functools.wraps(function)
    def run(**arguments: Any) -> Any:
        return _dump_output(signature, function(**prepare_arguments(arguments)))

    return run


def _convert_arguments(signature: Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert arguments to the function's own types; reject values that only a type can reject, before any effect."""
    if signature.arguments_model is None:
        return arguments
    try:
        model = signature.arguments_model.model_validate(arguments)
    except ValidationError as error:
        _raise_violation(error)
    return {name: getattr(model, f"a{place}") for place, name in enumerate(signature.argument_names)}


def _raise_violation(error: ValidationError) -> NoReturn:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    details = [{"path": "/" + "/".join(map(str, each["loc"])), "message": each["msg"]} for each in errors]
    raise SemanticViolation(
        f"{details[0]['path']}: {details[0]['message']}", details={"errors": details}, nothing_happened=True
    ) from None


def _dump_output(signature: Signature, output: Any) -> Any:
    if signature.result_adapter is None:
        return output
    if isinstance(output, Result):
        return replace(output, payload=_dump_output(signature, output.payload))
    try:
        return signature.result_adapter.dump_python(output, mode="json", by_alias=True, warnings=False)
    except PydanticSerializationError as error:
        raise ResultInvalid("the tool returned a value that cannot be serialized as JSON") from error


def adapt_validator(check: Callable[..., Any], signature: Signature, where: str) -> Callable[..., Any]:
    """Wrap the author's `validate`: it gets the arguments it names, in the function's own types."""
    return _adapt_helper(check, signature, f"{where}: validate")


def adapt_state_reader(read_state: Callable[..., Any], signature: Signature, where: str) -> Callable[..., Any]:
    """Wrap the author's `read_state` like `validate`."""
    if not callable(read_state):
        raise WrongDeclaration(f"{where}: read_state is {read_state!r}; pass a function that returns the state as JSON")
    return _adapt_helper(read_state, signature, f"{where}: read_state")


def require_rollback(rollback: Callable[..., Any], where: str) -> Callable[..., Any]:
    """Require a function that can be called with the arguments and the output."""
    try:
        inspect.signature(rollback).bind({}, None)
    except TypeError as error:
        raise WrongDeclaration(
            f"{where}: rollback is {rollback!r}; pass a function of two parameters, the arguments and the output"
        ) from error
    return rollback


def adapt_previewer(preview: Callable[..., Any], signature: Signature, where: str) -> tuple[Callable[..., Any], bool]:
    """Wrap the author's `preview` like `validate`; also return whether it takes a `context`."""
    if not callable(preview):
        raise WrongDeclaration(f"{where}: preview is {preview!r}; pass a function that returns a Preview")
    if inspect.isasyncgenfunction(preview) or inspect.isgeneratorfunction(preview):
        raise WrongDeclaration(f"{where}: preview is a generator; return one Preview instead of yielding")
    with_context = (
        _CONTEXT_NAME in inspect.signature(preview).parameters and _CONTEXT_NAME not in signature.argument_names
    )
    extra_names = frozenset({_CONTEXT_NAME}) if with_context else frozenset()
    return _adapt_helper(preview, signature, f"{where}: preview", extra_names), with_context


def adapt_plain_previewer(preview: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Wrap a preview function that a manifest names: it gets the JSON values of the arguments it names."""
    parameters = inspect.signature(preview).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    def select_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in arguments.items() if takes_all or name in parameters}

    return _adapt_function(preview, select_arguments), _CONTEXT_NAME in parameters


def _adapt_helper(
    check: Callable[..., Any], signature: Signature, label: str, extra_names: frozenset[str] = frozenset()
) -> Callable[..., Any]:
    """Wrap a helper function so that it gets the tool's arguments that it names; `extra_names` are not converted."""
    parameters = inspect.signature(check).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    parameter_names = frozenset(signature.argument_names if takes_all else parameters.keys() - extra_names)
    unknown = parameter_names - set(signature.argument_names)
    if unknown:
        raise WrongDeclaration(
            f"{label} has a parameter {min(unknown)}, which is not an argument of the tool; rename or remove it"
        )

    def select_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
        extra = {name: arguments.pop(name) for name in extra_names if name in arguments}
        values = _convert_arguments(signature, arguments)
        return {name: value for name, value in values.items() if name in parameter_names} | extra

    return _adapt_function(check, select_arguments)


def _adapt_function(
    check: Callable[..., Any], select_arguments: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(check):
        coroutine_function: Callable[..., Awaitable[Any]] = check

        @functools.wraps(check)
        async def check_async(**arguments: Any) -> Any:
            return await coroutine_function(**select_arguments(arguments))

        return check_async

    @functools.wraps(check)
    def check_now(**arguments: Any) -> Any:
        return check(**select_arguments(arguments))

    return check_now
