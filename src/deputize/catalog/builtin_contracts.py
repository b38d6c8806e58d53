"""Declare the contracts of tools that belong to the gateway itself.

They are registered with the first tool that needs them, in the same commit, and are governed like any other tool:
policies, limits and delegations name them, and each call has its audit entry. A change of a contract needs a new
version, because the registered one stays as it is.
"""

from typing import Any, Final

from deputize.core.contract.contract import Contract
from deputize.core.results.result_path import MAX_LENGTH

DEFAULT_READ_LENGTH: Final = 8_000
MAX_READ_LENGTH: Final = 100_000
_INPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "reference": {
            "type": "string",
            "description": "The reference of the result.",
            "pattern": "^result_[0-9a-f]{32}$",
        },
        "path": {
            "type": "string",
            "description": "The part to read: a JSON Pointer such as /rows/0, or a JSONPath such as $.rows[*].name "
            "with at most one wildcard. Empty: the whole result.",
            "maxLength": MAX_LENGTH,
            "default": "",
        },
        "offset": {
            "type": "integer",
            "description": "The first item of a list, member of an object or character of a text.",
            "minimum": 0,
            "maximum": 1_000_000_000,
            "default": 0,
        },
        "limit": {
            "type": ["integer", "null"],
            "description": "The most items, members or characters. Null: as many as fit.",
            "minimum": 1,
            "maximum": MAX_READ_LENGTH,
            "default": None,
        },
        "max_characters": {
            "type": "integer",
            "description": "The longest part to return.",
            "minimum": 200,
            "maximum": MAX_READ_LENGTH,
            "default": DEFAULT_READ_LENGTH,
        },
        "reveal": {
            "type": "boolean",
            "description": "Whether to include values that the tool marks as sensitive.",
            "default": False,
            "x-policy": "reveals_sensitive",
        },
    },
    "required": ["reference"],
    "additionalProperties": False,
}
_OUTPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "tool": {"type": "string", "description": "The tool whose result this is."},
        "call_id": {"type": "string", "description": "The call whose result this is."},
        "path": {"type": "string"},
        "type": {"type": "string", "description": "The type of the value at the path."},
        "value": {"description": "The part of the result."},
        "offset": {"type": "integer"},
        "total": {
            "type": ["integer", "null"],
            "description": "How many items, members or characters are at the path.",
        },
        "next_offset": {
            "type": ["integer", "null"],
            "description": "Where to read on. Null: there is no more.",
        },
        "is_cut": {"type": "boolean", "description": "Whether one item was too long; read it with its own path."},
        "redaction": {"type": "string", "enum": ["none", "hidden", "revealed"]},
    },
    "required": ["tool", "call_id", "path", "type", "value", "offset", "total", "next_offset", "is_cut", "redaction"],
    "additionalProperties": False,
}
RESULTS_READ: Final = Contract.model_validate(
    {
        "namespace": "results",
        "name": "read",
        "version": "1.0.0",
        "title": "Read a stored result",
        "description": "Read a part of a result that was given as a reference, because it is long or sensitive. Only "
        "the caller that got the reference can read it, until it expires.",
        "handler": {"driver": "python", "target": "deputize.results:read"},
        "input_schema": _INPUT_SCHEMA,
        "output_schema": _OUTPUT_SCHEMA,
        "examples": [{"reference": "result_00000000000000000000000000000000", "path": "/rows", "limit": 20}],
        "effects": "read",
        "open_world": False,
        "auth": {},
        "timeout": {},
        "idempotency": {},
        "observability": {},
        "provider": "deputize",
        "search_hint": "read more of a long result by its reference",
    }
)


def list_companions(*contracts: Contract) -> tuple[Contract, ...]:
    """List the tools of the gateway without which callers could not use these."""
    return (RESULTS_READ,) if any(each.max_inline is not None for each in contracts) else ()
