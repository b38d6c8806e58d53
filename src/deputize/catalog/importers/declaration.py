"""Expand the short forms of tool declarations, and explain invalid declarations in sentences."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

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
_MAX_SHOWN_LENGTH = 100
_ANOTHER_VALUE = "write another value"
_NOT_A_PARAMETER = "is not a parameter of @tool"
# What pydantic says about a value, and what an author of Python says.
_PYTHON_WORDS = (
    ("input should be ", "must be "),
    ("a valid tuple", "a list"),
    ("a valid dictionary", "a dict"),
    ("a valid string", "a string"),
    ("a valid boolean, unable to interpret input", "True or False"),
    ("a valid integer, unable to parse string as an integer", "an integer"),
    ("is not a field of a contract", _NOT_A_PARAMETER),
)
_PYTHON_EXAMPLES = {
    "resources": 'resources=["update crm.users/{id}"]',
    "scopes": 'scopes=["crm:read"]',
    "permissions": 'permissions=["api:crm"]',
    "aliases": 'aliases=["crm.find_user"]',
    "tags": 'tags=["crm"]',
    "timeout": 'timeout=30, in seconds, or timeout="standard"',
    "idempotency": 'idempotency="idempotent"',
    "retry": 'retry={"max_attempts": 3}',
    "checkpoints": 'checkpoints={"enabled": True}',
    "undo": 'undo="crm.restore_user"',
    "status": 'status="crm.get_status"',
    "version": 'version="0.1.0"',
}
# Given as one value, and stored as an object.
_SHORT_FORMS = frozenset({"timeout", "idempotency"})


# In a module that is being loaded: a list that gets the faults of its tools.
DECLARATION_FAULTS: Final = "__deputize_faults__"


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
    return message[:1].lower() + message[1:], _FIXES.get(kind, _ANOTHER_VALUE)


def format_python_reasons(where: str, reasons: Iterable[Reason], declaration: Mapping[str, Any]) -> list[str]:
    """Format each reason as one line that names the parameter of `@tool` and shows the Python to write."""
    return [f"{where}: {_explain_in_python(each, declaration)}" for each in reasons]


def _explain_in_python(reason: Reason, declaration: Mapping[str, Any]) -> str:
    keys = reason.path.strip("/").split("/")
    if keys[0] == "auth" and len(keys) > 1:
        keys = keys[1:]
    elif keys[0] == "preview_rules" and len(keys) > 1:
        keys = [f"preview_{keys[1]}", *keys[2:]]
    parameter, rest = keys[0], keys[1:]
    value: Any = declaration.get(parameter)
    if parameter in _SHORT_FORMS and not isinstance(value, Mapping):
        rest = []
    is_item = parameter == "resources" and len(rest) == 1 and isinstance(value, list | tuple)
    if is_item and isinstance(item := value[int(rest[0])], str):
        text = item if item.isprintable() and len(item) <= _MAX_SHOWN_LENGTH else "…"
        return (
            f'resources[{rest[0]}] "{text}" does not say what is done to what; write create, update or delete and a '
            f"resource, as in {_PYTHON_EXAMPLES[parameter]}"
        )
    place = parameter + "".join(f"[{key}]" if key.isdigit() else f'["{key}"]' for key in rest)
    text, fix = reason.reason, reason.fix
    for pydantic_words, python_words in _PYTHON_WORDS:
        text = text.replace(pydantic_words, python_words)
    text = text.partition(" or instance of")[0]
    if rest and text == _NOT_A_PARAMETER:
        text = "is not known"
    if isinstance(value, str) and "must be a list" in text and value.isprintable() and '"' not in value:
        fix = f'write {parameter}=["{value}"]'
    elif text.startswith("must be") and parameter in _PYTHON_EXAMPLES:
        text = "has the wrong type" if text == "must be a dict" else text
        fix = f"write it as in {_PYTHON_EXAMPLES[parameter]}"
    elif text.startswith("must be") and fix != _ANOTHER_VALUE:
        return f"{place} {text}"
    return f"{place} {text}; {fix}"
