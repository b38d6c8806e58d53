"""Count the values of JSON documents, and limit them: small values cost far more time than their bytes suggest.

A megabyte of `{}` is 340,000 objects, and each step of a call looks at each of them.
"""

from typing import Any, Final

# The values of one request, and of one answer of a server. Beyond it, a document is refused.
MAX_VALUES: Final = 20_000
MAX_ANSWER_VALUES: Final = 200_000


def has_more_values(value: Any, most: int) -> bool:
    """Tell whether a document contains more than so many values, and stop counting there."""
    count = 0
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict | list):
            count += len(each)
            if count > most:
                return True
            stack += [
                child for child in (each.values() if isinstance(each, dict) else each) if type(child) in (dict, list)
            ]
    return False


def count_values_in(body: bytes) -> int:
    """Count how many values JSON text can have at most, without parsing it; punctuation inside of texts counts too."""
    return body.count(b",") + body.count(b"{") + body.count(b"[") + 1
