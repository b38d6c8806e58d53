"""Parse the path to a part of a result: a JSON Pointer, or a JSONPath (RFC 9535) of names, places and one wildcard.

Filters, slices, unions and recursive descent are left out, so that reading a path takes time in proportion to what it
returns.
"""

import re
from typing import Final

from deputize.core.json_pointer import parse_pointer
from deputize.core.value_types import frozen

MAX_LENGTH: Final = 256
_STEP: Final = re.compile(
    r"""\.(?P<name>[^\W\d][\w-]*)|\[(?P<place>0|[1-9][0-9]{0,8})\]|\['(?P<single>[^'\\]*)'\]|\["(?P<double>[^"\\]*)"\]"""
    r"""|(?P<wildcard>\.\*|\[\*\])"""
)
_FORMS: Final = "a JSON Pointer such as /rows/0, or a JSONPath such as $.rows[*].name with at most one wildcard"


@frozen
class ResultPath:
    """The steps to a part; with `each_steps`, the steps from each of its members on."""

    steps: tuple[str, ...] = ()
    each_steps: tuple[str, ...] | None = None


def parse_path(text: str) -> ResultPath:
    """Parse a path; the empty one leads to the whole result. Raises `ValueError`."""
    if text in ("", "$"):
        return ResultPath()
    try:
        if not text.startswith("$"):
            return ResultPath(steps=parse_pointer(text))
        return _parse_json_path(text)
    except ValueError:
        raise ValueError(f"path must be {_FORMS}") from None


def _parse_json_path(text: str) -> ResultPath:
    steps: list[str] = []
    wildcard_place: int | None = None
    position = 1
    if len(text) > MAX_LENGTH:
        raise ValueError
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None or (match["wildcard"] and wildcard_place is not None):
            raise ValueError
        if match["wildcard"]:
            wildcard_place = len(steps)
        else:
            steps.append(next(each for each in match.group("name", "place", "single", "double") if each is not None))
        position = match.end()
    if wildcard_place is None:
        return ResultPath(steps=tuple(steps))
    return ResultPath(steps=tuple(steps[:wildcard_place]), each_steps=tuple(steps[wildcard_place:]))
