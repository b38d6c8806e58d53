"""Expand the short forms of tool declarations, and explain invalid declarations in sentences."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from deputize.catalog.schema_rules import Reason
from deputize.core.contract.contract import Contract, Effects, SideEffect, TimeoutClass

_OPS = ("create", "update", "delete")
_SHORT_RESOURCE = re.compile(rf"({'|'.join(_OPS)}) ([^/\s]+)(?:/(\S+))?")

_FIXES = {
    "missing": "add it",
    "string_too_short": "write a longer text",
    "string_too_long": "shorten it",
    "string_type": "write a string; put it in quotes if needed",
    "dict_type": "write an object: names with values",
    "tuple_type": "write a list",
    "bool_type": "write true or false",
}
_PATTERN_FIXES = {
    "namespace": "use lower-case words joined by single underscores, as in crm or order_desk",
    "name": "use lower-case words joined by single underscores, as in get_user",
    "version": "write MAJOR.MINOR.PATCH, as in 1.4.0",
    "scopes": "use printable characters without spaces, as in crm:read",
    "permissions": "write kind:name, as in api:crm",
    "secret": "use lower-case words, joined by slashes if there are several, as in crm/api-key",
    "readonly_secret": "use lower-case words, joined by slashes if there are several, as in crm/api-key-readonly",
    "volatile": "point at a value inside impact or guards, or at /changes/*/before, after or count",
}
_TOOL_REF_FIX = "write namespace.name, as in crm.get_user"


class WrongDeclaration(ValueError):
    """A tool is declared wrongly; each sentence says where, and how to fix it."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


def expand_timeout(value: Any) -> Any:
    """Expand `"standard"`, or seconds into the shortest timeout class that allows them; keep the long form."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        classes = (each for each in TimeoutClass if value <= each.seconds)
        return {"timeout_class": next(classes, TimeoutClass.ASYNC), "seconds": value}
    return {"timeout_class": value} if isinstance(value, str) else value


def expand_idempotency(value: Any) -> Any:
    """Expand `"deduplicates"`, `"idempotent"` or `"cannot"`; keep the long form."""
    return {"upstream": value} if isinstance(value, str) else value


def expand_resource(value: Any) -> Any:
    """Expand `"update crm.users/{id}"` into operation, resource and scope; keep the long form."""
    if isinstance(value, SideEffect):
        return value.model_dump()
    match = _SHORT_RESOURCE.fullmatch(value) if isinstance(value, str) else None
    return {"op": match[1], "resource": match[2], "scope": match[3] or "*"} if match else value


def choose_idempotency(effects: Any) -> str:
    """Choose the default: reads are idempotent; anything else is assumed unsafe to repeat."""
    return "idempotent" if effects == Effects.READ else "cannot"


def explain_validation_error(error: ValidationError) -> Iterator[Reason]:
    """Explain each pydantic error with its path and a fix, without the invalid values."""
    for entry in error.errors(include_url=False, include_context=True, include_input=False):
        path = "/" + "/".join(str(part) for part in entry["loc"])
        fields = [part for part in entry["loc"] if isinstance(part, str)]
        reason, fix = _explain_entry(entry["type"], entry["msg"], entry.get("ctx", {}), fields)
        yield Reason(conjunct="declaration", path=path, reason=reason, fix=fix)


def _explain_entry(kind: str, message: str, context: Mapping[str, Any], fields: list[str]) -> tuple[str, str]:
    last = fields[-1] if fields else ""
    if kind == "missing":
        return "is missing", _FIXES[kind]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(last, Contract.model_fields if len(fields) == 1 else (), n=1)
        return "is not a field of a contract", f"did you mean {near[0]}?" if near else "remove it"
    if kind == "string_pattern_mismatch":
        return "has an invalid format", _PATTERN_FIXES.get(last, _TOOL_REF_FIX)
    if "expected" in context:
        return "is not a known value", f"write {context['expected']}"
    return message[:1].lower() + message[1:], _FIXES.get(kind, "write another value")


def format_reasons(where: str, reasons: Iterable[Reason]) -> list[str]:
    """Format each reason as one line: where, the field, what is wrong and how to fix it."""
    return [f"{where}: {each.path.lstrip('/').replace('/', '.')} {each.reason}; {each.fix}" for each in reasons]
