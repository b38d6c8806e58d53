"""What in a definition should make somebody look before it is served: things hidden, passed off, or said to the model.

A flag proves nothing and forbids nothing by itself: it keeps a definition waiting until an administrator has seen it.
Texts of a flag are visible characters only (`core/plain.py`), safe to print.

    hidden_text     characters, comments and emptiness that hide what a model reads      hidden.py
    mixed_script    letters of one script that pass for those of another                 names.py
    look_alike      a name that is taken for another one                                 names.py
    shadowing       a name or an address that another server has, or talk of its tools   here
    instruction     sentences that speak to the model                                    phrases.py
    ambiguous       one name, declared twice in different ways                           judge.py

Above: `judge.py`, which asks. Below: `core/`.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from deputize.catalog.drift.hidden import hidden
from deputize.catalog.drift.names import mixed, poses_as_latin, skeleton
from deputize.catalog.drift.phrases import orders
from deputize.catalog.drift.shown import shown
from deputize.catalog.schemas import pointer
from deputize.core.frozen import frozen
from deputize.core.plain import plain
from deputize.core.servers import Definition, Kind
from deputize.core.uris import matches

MOST_FLAGS: Final = 50
# Of one kind in one text: who is shown these looks at all of it.
_MOST_ALIKE: Final = 5
_LONGEST_EXCERPT: Final = 200
_AROUND: Final = 30
# Names of one plain word ("search") are words of the language too; talk of them is no talk of a tool.
_COMPOUND = re.compile(r"[a-z0-9](?=[A-Z])|[a-zA-Z0-9][_.\-/][a-zA-Z0-9]")
_SHORTEST_MENTION: Final = 6
_NAMES = re.compile(r"[A-Za-z][\w.\-/]{4,}\w")
Path = tuple[str | int, ...]


class FlagCode(StrEnum):
    HIDDEN_TEXT = "hidden_text"
    MIXED_SCRIPT = "mixed_script"
    LOOK_ALIKE = "look_alike"
    SHADOWING = "shadowing"
    INSTRUCTION = "instruction"
    AMBIGUOUS = "ambiguous"


@frozen
class Flag:
    """One finding: `where` is a JSON pointer into what was declared, `excerpt` the place itself with everything hidden
    made visible, `sentence` what is the matter with it.
    """

    code: FlagCode
    where: str
    excerpt: str
    sentence: str


@frozen
class Known:
    """A tool that callers of the tenant know already, under the name its own server (or namespace) gives it; or a
    resource, or a template of such, by its address.
    """

    server: str
    name: str
    kind: Kind = Kind.TOOL


class Neighbours:
    """All that is known, sorted once for the questions that are asked of each definition."""

    def __init__(self, known: Collection[Known]) -> None:
        self._alike: dict[str, list[Known]] = {}
        self._called: dict[str, list[Known]] = {}
        self._resources = [each for each in known if each.kind is Kind.RESOURCE]
        self._templates = [each for each in known if each.kind is Kind.TEMPLATE]
        self._at: dict[str, list[Known]] = {}
        for each in (*self._resources, *self._templates):
            self._at.setdefault(each.name, []).append(each)
        for each in (each for each in known if each.kind is Kind.TOOL):
            full = f"{each.server}.{each.name}"
            for looks in {skeleton(each.name), skeleton(full)}:
                self._alike.setdefault(looks, []).append(each)
            for name in (full, f"{each.server}__{each.name}", f"{each.server}/{each.name}"):
                self._called.setdefault(name, []).append(each)
            if len(each.name) >= _SHORTEST_MENTION and _COMPOUND.search(each.name):
                self._called.setdefault(each.name, []).append(each)

    def alike(self, name: str) -> list[Known]:
        """Tools whose name, or name with its server's before it, looks like this one."""
        return self._alike.get(skeleton(name), [])

    def at(self, definition: Definition) -> Iterator[Known]:
        """Resources and templates that an address of this definition could be taken for."""
        yield from self._at.get(definition.name, ())
        for each in self._templates if definition.kind is Kind.RESOURCE else self._resources:
            if each.name != definition.name and (_stands_for(each, definition) or _stands_for(definition, each)):
                yield each

    def mentioned(self, text: str) -> Iterator[tuple[int, int, list[Known]]]:
        """Where a text names tools so that nothing else can be meant."""
        for found in _NAMES.finditer(text):
            called = self._called.get(found[0])
            if called:
                yield found.start(), found.end(), called


def flags_of(definition: Definition, *, server: str, among: Neighbours, most: int = MOST_FLAGS) -> tuple[Flag, ...]:
    """What there is to look at in one definition of `server`, beside all others, of other servers and its own."""
    found: list[Flag] = []
    for each in _all_flags(definition, server, among):
        if each not in found:
            found.append(each)
        if len(found) >= most:
            break
    return tuple(found)


def flags_of_instructions(text: str, *, server: str, among: Neighbours) -> tuple[Flag, ...]:
    """The same for what a server says about how to use it as a whole."""
    return tuple(_text_flags(text, ("instructions",), server, among))[:MOST_FLAGS]


def _all_flags(definition: Definition, server: str, among: Neighbours) -> Iterator[Flag]:
    if definition.kind is Kind.TOOL:
        yield from _name_flags(definition.name, server, among)
    elif definition.kind in (Kind.RESOURCE, Kind.TEMPLATE):
        yield from _address_flags(definition, server, among)
    for path, text, is_name in _texts(definition.said, ()):
        if is_name and poses_as_latin(text) and not any(mixed(text)):
            yield _flag(FlagCode.MIXED_SCRIPT, path, text, "reads as Latin letters and is of others")
        yield from _text_flags(text, path, server, among)


def _name_flags(name: str, server: str, among: Neighbours) -> Iterator[Flag]:
    for other in among.alike(name):
        if other.server != server and other.name == name:
            sentence = f"is the name of a tool of {plain(other.server)}, which may be called by mistake for it"
            yield _flag(FlagCode.SHADOWING, ("name",), name, sentence)
        elif other.name != name:
            sentence = f"looks like {plain(other.name)} of {plain(other.server)}"
            yield _flag(FlagCode.LOOK_ALIKE, ("name",), name, sentence)


def _address_flags(definition: Definition, server: str, among: Neighbours) -> Iterator[Flag]:
    where = "uri" if definition.kind is Kind.RESOURCE else "uriTemplate"
    for other in among.at(definition):
        if other.server != server:
            sentence = f"is an address of {plain(other.server)}, too: {plain(other.name)}"
            yield _flag(FlagCode.SHADOWING, (where,), definition.name, sentence)


def _stands_for(template: Known | Definition, resource: Known | Definition) -> bool:
    if template.kind is not Kind.TEMPLATE or resource.kind is not Kind.RESOURCE:
        return False
    return matches(template.name, resource.name)


def _text_flags(text: str, path: Path, server: str, among: Neighbours) -> Iterator[Flag]:
    seen: Counter[str] = Counter()
    for start, end, what in hidden(text):
        seen[what] += 1
        if seen[what] <= _MOST_ALIKE:
            yield _flag(FlagCode.HIDDEN_TEXT, path, _around(text, start, end), f"holds {what}")
    for start, end in islice(mixed(text), _MOST_ALIKE):
        sentence = "mixes Latin letters with others that look like them"
        yield _flag(FlagCode.MIXED_SCRIPT, path, _around(text, start, end), sentence)
    for excerpt, what in orders(text):
        yield _flag(FlagCode.INSTRUCTION, path, excerpt, what)
    if path != ("name",):
        yield from islice(_talk_of_others(text, path, server, among), _MOST_ALIKE)


def _talk_of_others(text: str, path: Path, server: str, among: Neighbours) -> Iterator[Flag]:
    for start, end, tools in among.mentioned(text):
        if all(each.server != server for each in tools):
            sentence = f"speaks of {plain(tools[0].name)}, a tool of {plain(tools[0].server)}"
            yield _flag(FlagCode.SHADOWING, path, _around(text, start, end), sentence)


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str, bool]]:
    """Every text of a definition, the names of its members included, and whether it is a name."""
    waiting: list[tuple[Any, Path]] = [(value, path)]
    while waiting:
        each, place = waiting.pop()
        if isinstance(each, str):
            yield place, each, place == ("name",)
        elif isinstance(each, dict):
            yield from (((*place, key), key, True) for key in each)
            waiting.extend((inside, (*place, key)) for key, inside in reversed(each.items()))
        elif isinstance(each, list):
            waiting.extend((inside, (*place, index)) for index, inside in reversed(list(enumerate(each))))


def _around(text: str, start: int, end: int) -> str:
    return text[max(0, start - _AROUND) : min(end, start + _LONGEST_EXCERPT) + _AROUND]


def _flag(code: FlagCode, path: Path, excerpt: str, sentence: str) -> Flag:
    letters = code in (FlagCode.MIXED_SCRIPT, FlagCode.LOOK_ALIKE)
    visible = shown(excerpt[:_LONGEST_EXCERPT], letters=letters)
    return Flag(code=code, where=plain(pointer(path)), excerpt=visible, sentence=sentence)
