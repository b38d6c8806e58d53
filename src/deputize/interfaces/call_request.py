"""Parse the fields of a call into a `CallRequest`, for every interface."""

import re
from typing import Any, Literal, NoReturn
from uuid import UUID

from deputize.core.call import MAX_KEY_LENGTH, MAX_SESSION_LENGTH, Callback, CallOrigin, CallRequest
from deputize.core.errors import MalformedRequest
from deputize.core.mcp.elicitation import NO_CAPABILITIES, ClientCapability, InputResponses

FIELDS = (
    "tool", "arguments", "version", "session", "step", "deadline_ms", "dry_run", "mode", "priority", "continue",
    "callback", "client_capabilities", "input_responses", "did_not_happen", "native_call_id", "parent_call_id",
    "flow_id", "max_age_seconds",
)  # fmt: skip
MAX_TOOL_LENGTH = 200
MAX_VERSION_LENGTH = 100
MAX_DEADLINE_MS = 86_400_000
MAX_AGE_SECONDS = 30 * 86_400
LOWEST_PRIORITY = 10
MAX_URL_LENGTH = 2048
KEY_NAME = r"^[a-z0-9][a-z0-9_-]{0,47}$"

_FIELD_SET = frozenset(FIELDS)
_CAPABILITY_SET = frozenset(ClientCapability)
_CALLBACK_FIELDS = frozenset({"url", "secret", "include_result"})
_NO_ARGUMENTS: dict[str, Any] = {}


def parse_call_request(fields: Any, *, key: str | None = None, traceparent: str | None = None) -> CallRequest:
    """Parse a call, or raise `MalformedRequest` with the wrong field and what it may be."""
    if type(fields) is not dict:
        raise MalformedRequest("a call is a JSON object", details={"fields": list(FIELDS)})
    get = fields.get
    tool, arguments = get("tool"), get("arguments", _NO_ARGUMENTS)
    if type(tool) is not str or not 0 < len(tool) <= MAX_TOOL_LENGTH:
        raise_malformed("tool", f"must be the name of a tool, 1 to {MAX_TOOL_LENGTH} characters")
    if type(arguments) is not dict:
        raise_malformed("arguments", "must be an object with the tool's arguments by name")
    if len(fields) <= 2 and "arguments" in fields:
        return CallRequest(tool=tool, arguments=arguments, idempotency_key=key, traceparent=traceparent)
    if not fields.keys() <= _FIELD_SET:
        unknown = min(fields.keys() - _FIELD_SET)
        raise MalformedRequest(
            f"a call has no field {unknown[:64]!r}; it may have {', '.join(FIELDS)}",
            details={"unknown": unknown[:64], "fields": list(FIELDS)},
        )
    return CallRequest(
        tool=tool,
        arguments=arguments,
        version=_parse_text(fields, "version", MAX_VERSION_LENGTH) or "latest",
        idempotency_key=key,
        session=_parse_text(fields, "session", MAX_SESSION_LENGTH),
        step=_parse_text(fields, "step", MAX_SESSION_LENGTH),
        deadline_ms=_parse_whole_number(fields, "deadline_ms", 1, MAX_DEADLINE_MS, " of milliseconds"),
        traceparent=traceparent,
        mode=_parse_mode(fields),
        priority=_parse_whole_number(fields, "priority", 1, LOWEST_PRIORITY, " (1 is the most urgent)"),
        may_continue=_parse_flag(fields, "continue"),
        callback=_parse_callback(fields),
        dry_run=_parse_flag(fields, "dry_run"),
        client_capabilities=_parse_capabilities(fields),
        input_responses=_parse_input_responses(fields),
        did_not_happen=_parse_flag(fields, "did_not_happen"),
        origin=parse_origin(fields),
        max_age_seconds=_parse_whole_number(fields, "max_age_seconds", 0, MAX_AGE_SECONDS, " of seconds"),
    )


def parse_origin(fields: dict[str, Any]) -> CallOrigin | None:
    """Parse where a call comes from, as its caller states it; None if it states nothing."""
    native_call_id, flow_id = (_parse_text(fields, name, MAX_SESSION_LENGTH) for name in ("native_call_id", "flow_id"))
    parent_call_id = _parse_text(fields, "parent_call_id", MAX_SESSION_LENGTH)
    if parent_call_id is not None:
        try:
            parent_call_id = str(UUID(parent_call_id))
        except ValueError:
            raise_malformed("parent_call_id", "must be the id of a call")
    if native_call_id is None and parent_call_id is None and flow_id is None:
        return None
    return CallOrigin(native_call_id=native_call_id, parent_call_id=parent_call_id, flow_id=flow_id)


def _parse_mode(fields: dict[str, Any]) -> Literal["sync", "async"] | None:
    value = fields.get("mode")
    match value:
        case None | "sync" | "async":
            return value
        case _:
            raise_malformed("mode", "must be sync or async")


def _parse_flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and type(value) is not bool:
        raise_malformed(name, "must be true or false")
    return bool(value)


def _parse_callback(fields: dict[str, Any]) -> Callback | None:
    """Check the form of a callback. The lifecycle checks whether its URL may be used, and audits a refusal."""
    value = fields.get("callback")
    if value is None:
        return None
    if type(value) is not dict or not value.keys() <= _CALLBACK_FIELDS:
        raise_malformed("callback", "must be an object with url, and perhaps secret and include_result")
    url, secret = _parse_text(value, "url", MAX_URL_LENGTH), value.get("secret")
    if url is None or not (url.isascii() and url.isprintable()) or " " in url:
        raise_malformed("callback", "needs a url of visible ASCII characters")
    if secret is not None and (type(secret) is not str or not re.match(KEY_NAME, secret)):
        raise_malformed("callback", "has a secret whose name is not of lower case letters, digits, - and _")
    return Callback(url=url, secret=secret or "default", include_result=_parse_flag(value, "include_result"))


def _parse_capabilities(fields: dict[str, Any]) -> frozenset[ClientCapability]:
    value = fields.get("client_capabilities")
    if value is None:
        return NO_CAPABILITIES
    if type(value) is not list or not all(type(each) is str and each in _CAPABILITY_SET for each in value):
        names = ", ".join(ClientCapability)
        raise_malformed("client_capabilities", f"must be a list of input requests that you can answer: {names}")
    return frozenset(ClientCapability(each) for each in value)


def _parse_input_responses(fields: dict[str, Any]) -> InputResponses | None:
    """Check the form of input responses. The lifecycle checks whether they fit the questions, and audits a refusal."""
    value = fields.get("input_responses")
    if value is None:
        return None
    if type(value) is not dict or value.keys() != {"round_token", "responses"}:
        raise_malformed("input_responses", "must be an object with round_token, and responses by the names of requests")
    if type(value["round_token"]) is not str or type(value["responses"]) is not dict:
        raise_malformed("input_responses", "must have round_token as a text, and responses as an object")
    return InputResponses(round_token=value["round_token"], responses=value["responses"])


def _parse_text(fields: dict[str, Any], name: str, max_length: int) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not str or not 0 < len(value) <= max_length:
        raise_malformed(name, f"must be text of 1 to {max_length} characters")
    return value


def _parse_whole_number(fields: dict[str, Any], name: str, lowest: int, highest: int, unit: str = "") -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    # JSON has one kind of number: 500.0 is 500.
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not lowest <= value <= highest:
        raise_malformed(name, f"must be a whole number{unit}, {lowest} to {highest}")
    return value


def parse_idempotency_key(value: Any) -> str:
    """Parse a key from a header or a field. Quotation marks around a header's value are not part of it."""
    if type(value) is bytes:
        value = value.decode("latin-1")
        if len(value) > 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
    if type(value) is not str or not 0 < len(value) <= MAX_KEY_LENGTH:
        raise_malformed("Idempotency-Key", f"must be 1 to {MAX_KEY_LENGTH} characters")
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise_malformed("Idempotency-Key", "must be visible ASCII characters without spaces")
    return value


def raise_malformed(field: str, rule: str) -> NoReturn:
    raise MalformedRequest(f"{field} {rule}", details={"field": field})
