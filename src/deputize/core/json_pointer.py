"""Parse JSON Pointers (RFC 6901), and find what they lead to."""

import re
from collections.abc import Mapping
from typing import Any, Final

MISSING: Final = object()
_MAX_LENGTH: Final = 256
_INVALID_ESCAPE: Final = re.compile(r"~(?![01])")
# Longer numbers are no places in a list.
_MAX_DIGITS: Final = 9


def parse_pointer(text: str) -> tuple[str, ...]:
    """Split a pointer into its steps. Raises `ValueError`."""
    if not text.startswith("/") or len(text) > _MAX_LENGTH or _INVALID_ESCAPE.search(text):
        raise ValueError("is not a JSON Pointer such as /output/balance")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))


def find_value(document: Any, steps: tuple[str, ...]) -> Any:
    """Find the value at the end of the steps; `MISSING` if they lead nowhere."""
    for step in steps:
        if isinstance(document, Mapping) and step in document:
            document = document[step]
        elif isinstance(document, list | tuple) and is_place(step) and int(step) < len(document):
            document = document[int(step)]
        else:
            return MISSING
    return document


def is_place(step: str) -> bool:
    """Tell whether a step can be a place in a list."""
    return step.isascii() and step.isdecimal() and len(step) <= _MAX_DIGITS and (step == "0" or step[0] != "0")
