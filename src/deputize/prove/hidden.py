"""Redaction where no schema describes the document: a tool's own words about a call, such as its preview.

What the tool's schemas mark is hidden by its name, wherever that stands, and what the call's own arguments hide is
hidden by its value, also inside a longer text. In doubt a value is hidden.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from deputize.core.sensitive import is_sensitive_name
from deputize.prove.redact import MARK, RedactionPlan

# Shorter ones are hidden where they stand alone; inside other words they would be met by chance.
_LEAST_INSIDE: Final = 4


class Hidden:
    """What of one call nobody may read: names of its tool's schemas, and values of its arguments."""

    __slots__ = ("_inside", "_names", "_whole")

    def __init__(self, asked: RedactionPlan, answered: RedactionPlan, arguments: Mapping[str, Any]) -> None:
        """The plans of the tool's input and output, and this call's input."""
        self._names = asked.names | answered.names
        self._whole = {text for value in asked.hidden(arguments) for text in _texts(value)} - {""}
        # The longest first: one may be part of another.
        self._inside = sorted((text for text in self._whole if len(text) >= _LEAST_INSIDE), key=len, reverse=True)

    def hide(self, value: Any, path: str, paths: list[str]) -> Any:
        """The value without any of it; where something was taken out is added to `paths`."""
        if isinstance(value, dict):
            return self._hide_fields(value, path, paths)
        if isinstance(value, list | tuple):
            return [self.hide(each, f"{path}/{place}", paths) for place, each in enumerate(value)]
        if value is None or isinstance(value, bool):
            return value
        shown = self._text(str(value))
        if shown == str(value):
            return value
        paths.append(path)
        return shown

    def _hide_fields(self, value: dict[str, Any], path: str, paths: list[str]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, each in value.items():
            shown = self._text(name)
            while shown in made:
                # Two names that hide the same are still two things.
                shown += "'"
            where = f"{path}/{shown.replace('~', '~0').replace('/', '~1')}"
            if name in self._names or is_sensitive_name(name):
                paths.append(where)
                made[shown] = MARK
            else:
                made[shown] = self.hide(each, where, paths)
        return made

    def _text(self, text: str) -> str:
        if text in self._whole:
            return MARK
        for hidden in self._inside:
            text = text.replace(hidden, MARK)
        return text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
