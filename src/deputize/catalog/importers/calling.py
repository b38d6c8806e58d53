"""A tool's function as a driver calls it: JSON values in, the author's own types inside, JSON values out."""

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

_CONTEXT = "context"


def runner(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """The function as a driver calls it: JSON values and `context` in, JSON values out."""
    renamed = signature.context not in (None, "context")
    if signature.arguments is None and signature.result is None and not renamed:
        return function

    def ready(arguments: dict[str, Any]) -> dict[str, Any]:
        context = arguments.pop("context") if signature.context else None
        made = _typed(signature, arguments)
        return {**made, signature.context: context} if signature.context else made

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(**arguments: Any) -> Any:
            return _plain(signature, await function(**ready(arguments)))

        return run_async

    @functools.wraps(function)
    def run(**arguments: Any) -> Any:
        return _plain(signature, function(**ready(arguments)))

    return run


def _typed(signature: Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments in the function's own types; what only a type can refuse is refused before any effect."""
    if signature.arguments is None:
        return arguments
    try:
        model = signature.arguments.model_validate(arguments)
    except ValidationError as error:
        _refuse(error)
    return {name: getattr(model, f"a{place}") for place, name in enumerate(signature.names)}


def _refuse(error: ValidationError) -> NoReturn:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    details = [{"path": "/" + "/".join(map(str, each["loc"])), "message": each["msg"]} for each in found]
    raise SemanticViolation(
        f"{details[0]['path']}: {details[0]['message']}", details={"errors": details}, nothing_happened=True
    ) from None


def _plain(signature: Signature, output: Any) -> Any:
    if signature.result is None:
        return output
    if isinstance(output, Result):
        return replace(output, payload=_plain(signature, output.payload))
    try:
        return signature.result.dump_python(output, mode="json", by_alias=True, warnings=False)
    except PydanticSerializationError as error:
        raise ResultInvalid("the tool returned a value that cannot be written as JSON") from error


def checker(check: Callable[..., Any], signature: Signature, where: str) -> Callable[..., Any]:
    """The author's `validate`, given the arguments it names, in the function's own types."""
    return _beside(check, signature, f"{where}: validate")


def previewer(preview: Callable[..., Any], signature: Signature, where: str) -> tuple[Callable[..., Any], bool]:
    """The author's `preview`, called like `validate`; and whether it takes a context beside the arguments."""
    if not callable(preview):
        raise WrongDeclaration(f"{where}: preview is a function that returns a Preview, not {preview!r}")
    if inspect.isasyncgenfunction(preview) or inspect.isgeneratorfunction(preview):
        raise WrongDeclaration(f"{where}: preview returns one Preview; return it instead of yielding")
    with_context = _CONTEXT in inspect.signature(preview).parameters and _CONTEXT not in signature.names
    also = frozenset({_CONTEXT}) if with_context else frozenset()
    return _beside(preview, signature, f"{where}: preview", also), with_context


def plain_previewer(preview: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The same for a function that a manifest names: JSON values as they are, those of them that it names."""
    parameters = inspect.signature(preview).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    def chosen(arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in arguments.items() if takes_all or name in parameters}

    return _choosing(preview, chosen), _CONTEXT in parameters


def _beside(
    check: Callable[..., Any], signature: Signature, who: str, also: frozenset[str] = frozenset()
) -> Callable[..., Any]:
    """A function beside the tool's own, given those of its arguments that it names; `also` as they come."""
    parameters = inspect.signature(check).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    wanted = frozenset(signature.names if takes_all else parameters.keys() - also)
    unknown = wanted - set(signature.names)
    if unknown:
        raise WrongDeclaration(f"{who} asks for {min(unknown)}, which is no argument of the tool")

    def chosen(arguments: dict[str, Any]) -> dict[str, Any]:
        more = {name: arguments.pop(name) for name in also if name in arguments}
        typed = _typed(signature, arguments)
        return {name: value for name, value in typed.items() if name in wanted} | more

    return _choosing(check, chosen)


def _choosing(check: Callable[..., Any], chosen: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(check):
        waiting: Callable[..., Awaitable[Any]] = check

        @functools.wraps(check)
        async def check_async(**arguments: Any) -> Any:
            return await waiting(**chosen(arguments))

        return check_async

    @functools.wraps(check)
    def check_now(**arguments: Any) -> Any:
        return check(**chosen(arguments))

    return check_now
