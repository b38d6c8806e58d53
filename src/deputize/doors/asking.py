"""From plain values to a `CallRequest`: the one place that knows which fields a call may have, for every door."""

import re
from typing import Any, Literal, NoReturn

from deputize.core.call import MAX_KEY_LENGTH, MAX_SESSION_LENGTH, Callback, CallRequest
from deputize.core.errors import Malformed
from deputize.core.questions import NONE, Ability, Answers

FIELDS = (
    "tool", "arguments", "version", "session", "step", "deadline_ms", "dry_run", "mode", "priority", "continue",
    "callback", "can_answer", "answers",
)  # fmt: skip
MAX_TOOL_LENGTH = 200
MAX_VERSION_LENGTH = 100
MAX_DEADLINE_MS = 86_400_000
LOWEST_PRIORITY = 10
MAX_URL_LENGTH = 2048
KEY_NAME = r"^[a-z0-9][a-z0-9_-]{0,47}$"

_KNOWN = frozenset(FIELDS)
_ABILITIES = frozenset(Ability)
_CALLBACK = frozenset({"url", "secret", "include_result"})
_NOTHING: dict[str, Any] = {}


def call_request(fields: Any, *, key: str | None = None, traceparent: str | None = None) -> CallRequest:
    """A call as its fields ask for it, or `Malformed` with the field that is wrong and what it may be."""
    if type(fields) is not dict:
        raise Malformed("a call is a JSON object", details={"fields": list(FIELDS)})
    get = fields.get
    tool, arguments = get("tool"), get("arguments", _NOTHING)
    if type(tool) is not str or not 0 < len(tool) <= MAX_TOOL_LENGTH:
        _refuse("tool", f"must be the name of a tool, 1 to {MAX_TOOL_LENGTH} characters")
    if type(arguments) is not dict:
        _refuse("arguments", "must be an object with the tool's arguments by name")
    if len(fields) <= 2 and "arguments" in fields:
        return CallRequest(tool=tool, arguments=arguments, idempotency_key=key, traceparent=traceparent)
    if not fields.keys() <= _KNOWN:
        unknown = min(fields.keys() - _KNOWN)
        raise Malformed(
            f"a call has no field {unknown[:64]!r}; it may have {', '.join(FIELDS)}",
            details={"unknown": unknown[:64], "fields": list(FIELDS)},
        )
    return CallRequest(
        tool=tool,
        arguments=arguments,
        version=_text(fields, "version", MAX_VERSION_LENGTH) or "latest",
        idempotency_key=key,
        session=_text(fields, "session", MAX_SESSION_LENGTH),
        step=_text(fields, "step", MAX_SESSION_LENGTH),
        deadline_ms=_deadline(fields),
        traceparent=traceparent,
        mode=_mode(fields),
        priority=_priority(fields),
        may_continue=_truth(fields, "continue"),
        callback=_callback(fields),
        dry_run=_truth(fields, "dry_run"),
        can_answer=_can_answer(fields),
        answers=_answers(fields),
    )


def _mode(fields: dict[str, Any]) -> Literal["sync", "async"] | None:
    value = fields.get("mode")
    match value:
        case None | "sync" | "async":
            return value
        case _:
            _refuse("mode", "must be sync or async")


def _priority(fields: dict[str, Any]) -> int | None:
    value = fields.get("priority")
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 < value <= LOWEST_PRIORITY:
        _refuse("priority", f"must be a whole number from 1, the most urgent, to {LOWEST_PRIORITY}")
    return value


def _truth(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and type(value) is not bool:
        _refuse(name, "must be true or false")
    return bool(value)


def _callback(fields: dict[str, Any]) -> Callback | None:
    """Its form; whether its address may be used is for the lifecycle to say, on record."""
    value = fields.get("callback")
    if value is None:
        return None
    if type(value) is not dict or not value.keys() <= _CALLBACK:
        _refuse("callback", "must be an object with url, and perhaps secret and include_result")
    url, secret = _text(value, "url", MAX_URL_LENGTH), value.get("secret")
    if url is None or not (url.isascii() and url.isprintable()) or " " in url:
        _refuse("callback", "needs a url of visible ASCII characters")
    if secret is not None and (type(secret) is not str or not re.match(KEY_NAME, secret)):
        _refuse("callback", "has a secret whose name is not of lower case letters, digits, - and _")
    return Callback(url=url, secret=secret or "default", include_result=_truth(value, "include_result"))


def _can_answer(fields: dict[str, Any]) -> frozenset[Ability]:
    value = fields.get("can_answer")
    if value is None:
        return NONE
    if type(value) is not list or not all(type(each) is str and each in _ABILITIES for each in value):
        _refuse("can_answer", f"must be a list of what can be asked back: {', '.join(Ability)}")
    return frozenset(Ability(each) for each in value)


def _answers(fields: dict[str, Any]) -> Answers | None:
    """Their form; whether they fit what was asked is for the lifecycle to say, on record."""
    value = fields.get("answers")
    if value is None:
        return None
    if type(value) is not dict or value.keys() != {"round", "responses"}:
        _refuse("answers", "must be an object with the round they belong to, and responses by the names of questions")
    if type(value["round"]) is not str or type(value["responses"]) is not dict:
        _refuse("answers", "must have a round as it was given out, and responses as an object")
    return Answers(round=value["round"], responses=value["responses"])


def _text(fields: dict[str, Any], name: str, longest: int) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not str or not 0 < len(value) <= longest:
        _refuse(name, f"must be text of 1 to {longest} characters")
    return value


def _deadline(fields: dict[str, Any]) -> int | None:
    value = fields.get("deadline_ms")
    if value is None:
        return None
    # JSON has one kind of number: 500.0 is 500.
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 < value <= MAX_DEADLINE_MS:
        _refuse("deadline_ms", f"must be a whole number of milliseconds, 1 to {MAX_DEADLINE_MS}")
    return value


def idempotency_key(value: Any) -> str:
    """The key, whether it came in a header or a field. Quotation marks around a header's value are not part of it."""
    if type(value) is bytes:
        value = value.decode("latin-1")
        if len(value) > 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
    if type(value) is not str or not 0 < len(value) <= MAX_KEY_LENGTH:
        _refuse("Idempotency-Key", f"must be 1 to {MAX_KEY_LENGTH} characters")
    if not (value.isascii() and value.isprintable()) or " " in value:
        _refuse("Idempotency-Key", "must be visible ASCII characters without spaces")
    return value


def _refuse(field: str, rule: str) -> NoReturn:
    raise Malformed(f"{field} {rule}", details={"field": field})
