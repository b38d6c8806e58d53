"""What every way of declaring a tool shares: its short forms, and its mistakes told as sentences."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from deputize.catalog.strictness import Reason
from deputize.core.contract import Contract, Effects, SideEffect, TimeoutClass

_OPS = ("create", "update", "delete")
_SHORT_RESOURCE = re.compile(rf"({'|'.join(_OPS)}) ([^/\s]+)(?:/(\S+))?")

_FIXES = {
    "missing": "add it",
    "string_too_short": "say a little more",
    "string_too_long": "make it shorter",
    "string_type": "write text; put quotes around it if need be",
    "dict_type": "write names and values here",
    "tuple_type": "write a list here",
    "bool_type": "write true or false",
}
_PATTERN_FIXES = {
    "namespace": "use lower-case words joined by single underscores, as in crm or order_desk",
    "name": "use lower-case words joined by single underscores, as in get_user",
    "version": "write MAJOR.MINOR.PATCH, as in 1.4.0",
    "scopes": "use printable characters without spaces, as in crm:read",
    "permissions": "write kind:what, as in api:crm",
    "secret": "use lower-case words, joined by slashes if there are several, as in crm/api-key",
    "readonly_secret": "use lower-case words, joined by slashes if there are several, as in crm/api-key-readonly",
    "volatile": "point at a value inside impact or guards, or at /changes/*/before, after or count",
}
_TOOL_REF_FIX = "write namespace.name, as in crm.get_user"


class WrongDeclaration(ValueError):
    """A tool was declared in a way that cannot work; each sentence says where and what to do."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


def timeout_fields(value: Any) -> Any:
    """`"standard"`, or seconds: then the shortest class that holds them. Longer forms pass through."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        fitting = (each for each in TimeoutClass if value <= each.seconds)
        return {"timeout_class": next(fitting, TimeoutClass.ASYNC), "seconds": value}
    return {"timeout_class": value} if isinstance(value, str) else value


def idempotency_fields(value: Any) -> Any:
    """`"deduplicates"`, `"idempotent"` or `"cannot"`; longer forms pass through."""
    return {"upstream": value} if isinstance(value, str) else value


def resource_fields(value: Any) -> Any:
    """`"update crm.users/{id}"` as an operation, a resource and a scope; longer forms pass through."""
    if isinstance(value, SideEffect):
        return value.model_dump()
    match = _SHORT_RESOURCE.fullmatch(value) if isinstance(value, str) else None
    return {"op": match[1], "resource": match[2], "scope": match[3] or "*"} if match else value


def default_idempotency(effects: Any) -> str:
    """Reading twice is harmless; of anything else, the worst is believed until somebody says otherwise."""
    return "idempotent" if effects == Effects.READ else "cannot"


def reasons_from(error: ValidationError) -> Iterator[Reason]:
    """What pydantic found, each with the place and a fix; the offending values are left out."""
    for found in error.errors(include_url=False, include_context=True, include_input=False):
        path = "/" + "/".join(str(part) for part in found["loc"])
        fields = [part for part in found["loc"] if isinstance(part, str)]
        reason, fix = _explain(found["type"], found["msg"], found.get("ctx", {}), fields)
        yield Reason(conjunct="declaration", path=path, reason=reason, fix=fix)


def _explain(kind: str, message: str, context: Mapping[str, Any], fields: list[str]) -> tuple[str, str]:
    last = fields[-1] if fields else ""
    if kind == "missing":
        return "is missing", _FIXES[kind]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(last, Contract.model_fields if len(fields) == 1 else (), n=1)
        return "is not a field of a contract", f"did you mean {near[0]}?" if near else "take it out"
    if kind == "string_pattern_mismatch":
        return "is not spelt as it must be", _PATTERN_FIXES.get(last, _TOOL_REF_FIX)
    if "expected" in context:
        return "is not a known value", f"write {context['expected']}"
    return message[:1].lower() + message[1:], _FIXES.get(kind, "write another value")


def sentences(where: str, reasons: Iterable[Reason]) -> list[str]:
    """Each reason as one line a person can act on."""
    return [f"{where}: {each.path.lstrip('/').replace('/', '.')} {each.reason}; {each.fix}" for each in reasons]
