"""Encode the arguments of a call into an HTTP request, by the styles of OpenAPI.

An argument must never change which operation is called: a value in the path that has a slash or climbs is refused,
because many services decode the path before they choose the operation. Values that a style cannot represent are refused
too.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import orjson

from deputize.core.contract.http_request import (
    BODY_ARGUMENT,
    HttpParameter,
    HttpRequest,
    is_method_override,
    list_credential_names,
    normalize_parameter_name,
)
from deputize.core.errors import SemanticViolation
from deputize.core.value_types import frozen

_FORM: Final = "application/x-www-form-urlencoded"
_CLIMBING: Final = frozenset({".", ".."})
_LIST_SEPARATORS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C", "simple": ","}


@frozen
class EncodedRequest:
    """The parts of a request besides the service's URL and the credential."""

    path: str
    query: tuple[str, ...]
    headers: Mapping[str, str]
    body: bytes | None


def encode_request(request: HttpRequest, arguments: Mapping[str, Any]) -> EncodedRequest:
    """Encode the arguments, or raise `SemanticViolation`."""
    path, query, headers = request.path, list[str](), dict[str, str]()
    for parameter in request.parameters:
        value = arguments.get(parameter.argument)
        if value is None and parameter.place != "path":
            continue
        if parameter.place == "path":
            path = path.replace("{" + parameter.name + "}", _encode_path_value(parameter, value))
        elif parameter.place == "query":
            if isinstance(value, dict) and parameter.style == "form" and parameter.explode:
                _require_free_names(request, parameter, value)
            query.extend(_encode_query(parameter, value))
        else:
            headers[parameter.name] = _encode_header(parameter, value)
    body = None
    if request.body is not None and BODY_ARGUMENT in arguments:
        body = _encode_body(request.body, arguments[BODY_ARGUMENT])
        headers["Content-Type"] = request.body
    return EncodedRequest(path=path, query=tuple(query), headers=headers, body=body)


def _encode_path_value(parameter: HttpParameter, value: Any) -> str:
    texts = list(_iterate_texts(parameter, value))
    has_slash = any("/" in text or "\\" in text for text in texts)
    if not texts or "" in texts or has_slash or _CLIMBING.intersection(texts):
        raise SemanticViolation(
            f"the argument {parameter.argument} would change the path: it is empty, has a slash or a backslash, or is "
            ". or .., which values in a path cannot be"
        )
    return _join_simple(parameter, value)


def _join_simple(parameter: HttpParameter, value: Any) -> str:
    if isinstance(value, dict):
        pairs = [(quote(name, safe=""), quote(text, safe="")) for name, text in _iterate_members(parameter, value)]
        return ",".join(f"{name}={text}" if parameter.explode else f"{name},{text}" for name, text in pairs)
    return ",".join(quote(text, safe="") for text in _iterate_texts(parameter, value))


def _require_free_names(request: HttpRequest, parameter: HttpParameter, value: dict[str, Any]) -> None:
    """Require that no member of an object, whose names become parameters, is a credential, another parameter or the
    method.
    """
    names = {each.name.lower() for each in request.parameters if each.place == "query" and each is not parameter}
    secret_names = {normalize_parameter_name(each) for each in list_credential_names(request, "query")}
    for key in value:
        # Some services read name[] and name[x] as name, or names in any case.
        plain = key.lower().partition("[")[0]
        _require_no_override(parameter.argument, plain)
        if not names.isdisjoint((key.lower(), plain)) or normalize_parameter_name(plain) in secret_names:
            raise SemanticViolation(
                f"the argument {parameter.argument} has the member {key[:80]}, which is the name of another parameter "
                "of the request: leave it out"
            )


def _require_no_override(argument: str, name: str) -> None:
    if is_method_override(name):
        raise SemanticViolation(
            f"the argument {argument} has the member {name[:80]}, which services take for the method of the request: "
            "leave it out"
        )


def _encode_query(parameter: HttpParameter, value: Any) -> Iterator[str]:
    name = quote(parameter.name, safe="[]")
    if isinstance(value, dict):
        members = [(quote(key, safe=""), quote(text, safe="")) for key, text in _iterate_members(parameter, value)]
        if parameter.style == "deepObject":
            yield from (f"{name}[{key}]={text}" for key, text in members)
        elif parameter.style == "form" and parameter.explode:
            yield from (f"{key}={text}" for key, text in members)
        else:
            separator = _LIST_SEPARATORS[parameter.style]
            yield f"{name}={separator.join(part for member in members for part in member)}"
        return
    if parameter.style == "deepObject":
        raise SemanticViolation(f"the argument {parameter.argument} must be an object")
    texts = [quote(text, safe="") for text in _iterate_texts(parameter, value)]
    if isinstance(value, list) and not parameter.explode:
        yield f"{name}={_LIST_SEPARATORS[parameter.style].join(texts)}"
    else:
        yield from (f"{name}={text}" for text in texts)


def _encode_header(parameter: HttpParameter, value: Any) -> str:
    if isinstance(value, dict):
        members = _iterate_members(parameter, value)
        text = ",".join(f"{name}={each}" if parameter.explode else f"{name},{each}" for name, each in members)
    else:
        text = ",".join(_iterate_texts(parameter, value))
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise SemanticViolation(
            f"the argument {parameter.argument} goes into a header: use visible ASCII characters, without spaces at "
            "the beginning or end"
        )
    return text


def _encode_body(declared_type: str, value: Any) -> bytes:
    media_type = declared_type.lower()
    if media_type == _FORM:
        if not isinstance(value, dict):
            raise SemanticViolation("the body is a form: give an object")
        for name in value:
            _require_no_override(BODY_ARGUMENT, name.partition("[")[0])
        field = HttpParameter(argument=BODY_ARGUMENT, name=BODY_ARGUMENT, place="query", style="form", explode=True)
        pairs = [
            f"{quote(name, safe='')}={quote(text, safe='')}"
            for name, each in value.items()
            for text in _iterate_texts(field, each)
        ]
        return "&".join(pairs).encode()
    if media_type == "text/plain":
        return str(value).encode()
    return orjson.dumps(value) if media_type.endswith(("/json", "+json")) else _decode_base64(value)


def _decode_base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise SemanticViolation(
            "the body is bytes: give them as base64, with padding and without line breaks"
        ) from None


def _iterate_members(parameter: HttpParameter, value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, each in value.items():
        yield str(name), _format_plain(parameter, each)


def _iterate_texts(parameter: HttpParameter, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (part for member in _iterate_members(parameter, value) for part in member)
    elif isinstance(value, list):
        yield from (_format_plain(parameter, each) for each in value)
    else:
        yield _format_plain(parameter, value)


def _format_plain(parameter: HttpParameter, value: Any) -> str:
    """Write a value that is not a list or an object."""
    if isinstance(value, list | dict):
        raise SemanticViolation(
            f"the argument {parameter.argument} has lists or objects inside, which its place in the request cannot hold"
        )
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()
