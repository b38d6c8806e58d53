"""Redaction, planned once per schema: which values never reach a log, an entry or a hash.

A strict schema names every field it can hold, so most tools need no look at the data at all. Where a schema leaves
room for fields it does not name, names are checked as they come. In doubt a value is taken for sensitive: what a
schema says of it in any branch counts. The survey of schemas is in `prove/places.py`.
"""

from typing import Any, Final

from deputize.core.sensitive import is_sensitive_name
from deputize.prove.places import Place, hidden_names, survey

MARK: Final = "[redacted]"


class RedactionPlan:
    """What to redact in documents of one schema. `trivial` plans never touch a document."""

    __slots__ = ("_root", "names", "trivial")

    def __init__(self, schema: Any) -> None:
        self._root = survey(schema, is_sensitive_name)
        self.trivial = not any(place.matters for place in self._root)
        # What the schema hides, by name, at whatever depth.
        self.names = hidden_names(self._root)

    def apply(self, document: Any) -> tuple[Any, tuple[str, ...]]:
        """The document with sensitive values replaced, and the paths of those; the original is left as it was."""
        if self.trivial:
            return document, ()
        paths: list[str] = []
        return _redact(document, self._root, False, "", paths), tuple(paths)

    def hidden(self, document: Any) -> list[Any]:
        """The values that `apply` takes out."""
        found: list[Any] = []
        _compare(document, self.apply(document)[0], found)
        return found


def _compare(value: Any, redacted: Any, found: list[Any]) -> None:
    """Both have one shape, down to where the one was replaced."""
    if value is redacted:
        return
    if isinstance(value, dict) and isinstance(redacted, dict):
        for name, each in value.items():
            _compare(each, redacted[name], found)
    elif isinstance(value, list) and isinstance(redacted, list):
        for each, shown in zip(value, redacted, strict=True):
            _compare(each, shown, found)
    elif redacted == MARK:
        found.append(value)


def _redact(value: Any, places: tuple[Place, ...], unknown: bool, path: str, paths: list[str]) -> Any:
    """`unknown` means that no schema describes this value, so that only names can tell."""
    if any(place.redact for place in places):
        paths.append(path or "/")
        return MARK
    if not unknown and not any(place.matters for place in places):
        return value
    if isinstance(value, dict):
        by_name = unknown or any(place.open for place in places)
        return {name: _field(name, child, places, (unknown, by_name), path, paths) for name, child in value.items()}
    if isinstance(value, list):
        return [_item(number, child, places, unknown, path, paths) for number, child in enumerate(value)]
    return value


def _field(
    name: str, child: Any, places: tuple[Place, ...], doubt: tuple[bool, bool], path: str, paths: list[str]
) -> Any:
    unknown, by_name = doubt
    where = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
    if by_name and is_sensitive_name(name):
        paths.append(where)
        return MARK
    below: list[Place] = []
    for place in places:
        known = place.of_field(name)
        below += known
        unknown = unknown or (place.open and not known)
    return _redact(child, tuple(below), unknown, where, paths)


def _item(number: int, child: Any, places: tuple[Place, ...], unknown: bool, path: str, paths: list[str]) -> Any:
    below: list[Place] = []
    for place in places:
        known = place.of_item(number)
        below += known
        below += place.each
        unknown = unknown or (place.open and not known)
    return _redact(child, tuple(below), unknown, f"{path}/{number}", paths)
