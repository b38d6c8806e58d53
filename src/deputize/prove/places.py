"""The places of a document as its JSON Schema describes them, for `prove/redact.py` to walk.

A place is what one schema says of one spot. References become edges, so that a schema which contains itself is
described at every depth; branches (`anyOf`, `allOf`, `then`, ...) stand beside each other, and what any of them says
counts. Wherever a keyword is more exact than this, the survey errs towards calling a value sensitive or unknown.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

_SENSITIVE_LEVELS = frozenset({"pii", "secret"})
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_REST = ("items", "additionalItems", "unevaluatedItems")
# A value that must fit one of these is described there.
_DESCRIBED_BY = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const")
_NO_PLACES: Final[tuple["Place", ...]] = ()


@dataclass(slots=True, eq=False)
class Place:
    """One spot. `open` means: something may stand here that no schema names."""

    redact: bool = False
    open: bool = False
    matters: bool = False
    fields: dict[str, "Place"] = field(default_factory=dict)
    patterns: list[tuple[re.Pattern[str], "Place"]] = field(default_factory=list)
    others: list["Place"] = field(default_factory=list)
    prefix: list["Place"] = field(default_factory=list)
    rest: list["Place"] = field(default_factory=list)
    contains: list["Place"] = field(default_factory=list)
    beside: list["Place"] = field(default_factory=list)
    all: tuple["Place", ...] = ()

    def of_field(self, name: str) -> tuple["Place", ...]:
        found = [place for pattern, place in self.patterns if pattern.search(name)] if self.patterns else []
        named = self.fields.get(name)
        if named is not None:
            return _together([named, *found]) if found else named.all
        return _together(found or self.others)

    def of_item(self, number: int) -> tuple["Place", ...]:
        return self.prefix[number].all if number < len(self.prefix) else _together(self.rest)

    @property
    def each(self) -> tuple["Place", ...]:
        return _together(self.contains)

    def below(self) -> Iterable["Place"]:
        yield from self.fields.values()
        yield from (place for _, place in self.patterns)
        yield from (*self.others, *self.prefix, *self.rest, *self.contains)


def _together(places: list[Place]) -> tuple[Place, ...]:
    return tuple(each for place in places for each in place.all) if places else _NO_PLACES


def survey(schema: Any, is_sensitive_name: Callable[[str], bool]) -> tuple[Place, ...]:
    """The places where a document of this schema begins."""
    surveyor = _Surveyor(schema, is_sensitive_name)
    root = surveyor.place(schema)
    surveyor.finish()
    return root.all


def hidden_names(root: tuple[Place, ...]) -> frozenset[str]:
    """Names of fields, anywhere below, whose values are not to be read."""
    found: set[str] = set()
    seen: set[Place] = set()
    waiting = list(root)
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        for name, field_place in place.fields.items():
            if any(each.redact for each in field_place.all):
                found.add(name)
        waiting += [each for below in place.below() for each in below.all]
    return frozenset(found)


class _Surveyor:
    def __init__(self, root: Any, is_sensitive_name: Callable[[str], bool]) -> None:
        self._root = root
        self._is_sensitive_name = is_sensitive_name
        self._referred: dict[str, Place] = {}
        self._places: list[Place] = []

    def place(self, schema: Any) -> Place:
        made = Place()
        self._places.append(made)
        self._describe(made, schema)
        return made

    def _describe(self, place: Place, schema: Any) -> None:
        if not isinstance(schema, dict):
            place.open = schema is not False
            return
        if schema.get("x-sensitivity") in _SENSITIVE_LEVELS or schema.get("writeOnly") is True:
            place.redact = True
            return
        place.open = _leaves_room(schema)
        self._describe_object(place, schema)
        self._describe_array(place, schema)
        for key in _LISTS:
            place.beside += map(self.place, schema.get(key, ()))
        place.beside += [self.place(schema[key]) for key in _SINGLES if key in schema]
        for key in _MAPS:
            place.beside += [self.place(each) for each in schema.get(key, {}).values() if isinstance(each, dict)]
        if "$ref" in schema:
            place.beside.append(self._follow(schema["$ref"]))

    def _describe_object(self, place: Place, schema: dict[str, Any]) -> None:
        for name, child in schema.get("properties", {}).items():
            place.fields[name] = self._hidden() if self._is_sensitive_name(name) else self.place(child)
        for pattern, child in schema.get("patternProperties", {}).items():
            place.patterns.append((_compiled(pattern), self.place(child)))
        place.others += [self.place(schema[key]) for key in _OTHERS if isinstance(schema.get(key), dict)]

    def _describe_array(self, place: Place, schema: dict[str, Any]) -> None:
        ahead = schema.get("prefixItems", ())
        if isinstance(schema.get("items"), list):
            ahead = schema["items"]
        place.prefix += map(self.place, ahead)
        place.rest += [self.place(schema[key]) for key in _REST if isinstance(schema.get(key), dict)]
        if isinstance(schema.get("contains"), dict):
            place.contains.append(self.place(schema["contains"]))

    def _hidden(self) -> Place:
        made = Place(redact=True)
        self._places.append(made)
        return made

    def _follow(self, ref: Any) -> Place:
        """A place known by its reference is described once, however often (or within itself) it is referred to."""
        if ref not in self._referred:
            made = self._referred[ref] = Place()
            self._places.append(made)
            self._describe(made, _resolve(self._root, ref))
        return self._referred[ref]

    def finish(self) -> None:
        """Once all places are known: who stands beside whom, and below which of them something matters at all."""
        for place in self._places:
            place.all = _beside(place)
            # A schema that says only that it is like itself says nothing.
            place.open = place.open or any(place in each.beside for each in place.all)
        for place in self._places:
            place.matters = place.redact or place.open
        changed = True
        while changed:
            changed = False
            for place in self._places:
                if not place.matters and any(each.matters for below in place.below() for each in below.all):
                    place.matters = changed = True


def _beside(place: Place) -> tuple[Place, ...]:
    found: dict[Place, None] = {}
    waiting = [place]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = None
            waiting += each.beside
    return tuple(found)


def _leaves_room(schema: dict[str, Any]) -> bool:
    """Whether a document of this schema, looked at alone, may hold something it does not describe."""
    if "$dynamicRef" in schema or "$recursiveRef" in schema:
        return True
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is None and any(key in schema for key in _DESCRIBED_BY):
        kinds = ["object"] if "properties" in schema else []
    elif kind is None:
        kinds = ["object", "array"]
    if "object" in kinds and not any(schema.get(key) is False for key in _OTHERS):
        return not any(key in schema for key in _DESCRIBED_BY) or "properties" in schema
    return "array" in kinds and not any(isinstance(schema.get(key), dict) or schema.get(key) is False for key in _REST)


def _compiled(pattern: str) -> re.Pattern[str]:
    """What Python cannot read is taken to match everything."""
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile("")


def _resolve(root: Any, ref: Any) -> Any:
    """What a reference within the schema leads to; None, and so unknown, for any other."""
    if ref == "#":
        return root
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return None
    target = root
    for part in ref[2:].split("/"):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(key)
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target
