"""Flag what needs review in a definition: hidden text, look-alike names, shadowing and prompt injection.

A flag is not proof of an attack. It holds a definition until an administrator has reviewed it. The texts of a flag
contain visible characters only (`core/display_text.py`), so they are safe to print.

    hidden_text     characters, comments and whitespace that hide text from people       hidden_characters.py
    mixed_script    letters of one script that look like those of another                lookalike_names.py
    look_alike      a name that looks like another tool's name                           lookalike_names.py
    shadowing       a name or URI that another server has, or a mention of its tools     this module
    instruction     sentences addressed to the model                                     prompt_injection.py
    ambiguous       one name, declared twice with different content                      verdicts.py
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from deputize.catalog.drift.hidden_characters import find_hidden_text
from deputize.catalog.drift.hidden_text import reveal_hidden_text
from deputize.catalog.drift.lookalike_names import find_mixed_script, is_latin_lookalike, make_skeleton
from deputize.catalog.drift.prompt_injection import find_injections
from deputize.catalog.schemas import format_pointer
from deputize.core.display_text import to_display_text
from deputize.core.mcp.servers import Definition, DefinitionKind
from deputize.core.mcp.uri_templates import can_expand_to
from deputize.core.value_types import frozen

MOST_FLAGS: Final = 50
# The limit for one kind of flag in one text; a reviewer reads the whole text anyway.
_MAX_PER_KIND: Final = 5
_MAX_EXCERPT_LENGTH: Final = 200
_CONTEXT_CHARACTERS: Final = 30
# A name that is one plain word ("search") also occurs in ordinary sentences, so it does not count as a mention.
_COMPOUND_NAME = re.compile(r"[a-z0-9](?=[A-Z])|[a-zA-Z0-9][_.\-/][a-zA-Z0-9]")
_SHORTEST_MENTION: Final = 6
_NAME_PATTERN = re.compile(r"[A-Za-z][\w.\-/]{4,}\w")
Path = tuple[str | int, ...]


class FlagCode(StrEnum):
    """The kinds of flags; the module's docstring explains each."""

    HIDDEN_TEXT = "hidden_text"
    MIXED_SCRIPT = "mixed_script"
    LOOK_ALIKE = "look_alike"
    SHADOWING = "shadowing"
    INSTRUCTION = "instruction"
    AMBIGUOUS = "ambiguous"


@frozen
class Flag:
    """One finding: `where` is a JSON pointer into the declaration, `excerpt` the text with hidden characters made
    visible, `sentence` what is wrong with it.
    """

    code: FlagCode
    where: str
    excerpt: str
    sentence: str


@frozen
class KnownDefinition:
    """A tool that the tenant already has, by its name on its server or in its namespace; or a resource or resource
    template, by its URI.
    """

    server: str
    name: str
    kind: DefinitionKind = DefinitionKind.TOOL


class DefinitionIndex:
    """An index of known definitions, built once and queried for each definition."""

    def __init__(self, definitions: Collection[KnownDefinition]) -> None:
        self._by_skeleton: dict[str, list[KnownDefinition]] = {}
        self._by_qualified_name: dict[str, list[KnownDefinition]] = {}
        self._resources = [each for each in definitions if each.kind is DefinitionKind.RESOURCE]
        self._templates = [each for each in definitions if each.kind is DefinitionKind.TEMPLATE]
        self._by_address: dict[str, list[KnownDefinition]] = {}
        for each in (*self._resources, *self._templates):
            self._by_address.setdefault(each.name, []).append(each)
        for each in (each for each in definitions if each.kind is DefinitionKind.TOOL):
            full = f"{each.server}.{each.name}"
            for name_skeleton in {make_skeleton(each.name), make_skeleton(full)}:
                self._by_skeleton.setdefault(name_skeleton, []).append(each)
            for name in (full, f"{each.server}__{each.name}", f"{each.server}/{each.name}"):
                self._by_qualified_name.setdefault(name, []).append(each)
            if len(each.name) >= _SHORTEST_MENTION and _COMPOUND_NAME.search(each.name):
                self._by_qualified_name.setdefault(each.name, []).append(each)

    def find_lookalikes(self, name: str) -> list[KnownDefinition]:
        """Find tools whose name, with or without the server's name before it, looks like this one."""
        return self._by_skeleton.get(make_skeleton(name), [])

    def find_overlapping(self, definition: Definition) -> Iterator[KnownDefinition]:
        """Find resources and resource templates that share a URI with this definition."""
        yield from self._by_address.get(definition.name, ())
        for each in self._templates if definition.kind is DefinitionKind.RESOURCE else self._resources:
            if each.name != definition.name and (
                _is_template_match(each, definition) or _is_template_match(definition, each)
            ):
                yield each

    def find_mentions(self, text: str) -> Iterator[tuple[int, int, list[KnownDefinition]]]:
        """Find where a text mentions tools unambiguously."""
        for match in _NAME_PATTERN.finditer(text):
            tools = self._by_qualified_name.get(match[0])
            if tools:
                yield match.start(), match.end(), tools


def find_flags(
    definition: Definition, *, server: str, index: DefinitionIndex, most: int = MOST_FLAGS
) -> tuple[Flag, ...]:
    """Find the flags of one definition of `server`, compared with all known definitions."""
    flags: list[Flag] = []
    for each in _iter_flags(definition, server, index):
        if each not in flags:
            flags.append(each)
        if len(flags) >= most:
            break
    return tuple(flags)


def find_instruction_flags(text: str, *, server: str, index: DefinitionIndex) -> tuple[Flag, ...]:
    """Find the flags of a server's instructions."""
    return tuple(_check_text(text, ("instructions",), server, index))[:MOST_FLAGS]


def _iter_flags(definition: Definition, server: str, index: DefinitionIndex) -> Iterator[Flag]:
    if definition.kind is DefinitionKind.TOOL:
        yield from _check_name(definition.name, server, index)
    elif definition.kind in (DefinitionKind.RESOURCE, DefinitionKind.TEMPLATE):
        yield from _check_address(definition, server, index)
    for path, text, is_name in _iter_texts(definition.declaration, ()):
        if is_name and is_latin_lookalike(text) and not any(find_mixed_script(text)):
            sentence = "looks like Latin letters but uses letters of another script"
            yield _make_flag(FlagCode.MIXED_SCRIPT, path, text, sentence)
        yield from _check_text(text, path, server, index)


def _check_name(name: str, server: str, index: DefinitionIndex) -> Iterator[Flag]:
    for other in index.find_lookalikes(name):
        if other.server != server and other.name == name:
            sentence = f"is also the name of a tool of {to_display_text(other.server)}; models may confuse them"
            yield _make_flag(FlagCode.SHADOWING, ("name",), name, sentence)
        elif other.name != name:
            sentence = f"looks like the tool {to_display_text(other.name)} of {to_display_text(other.server)}"
            yield _make_flag(FlagCode.LOOK_ALIKE, ("name",), name, sentence)


def _check_address(definition: Definition, server: str, index: DefinitionIndex) -> Iterator[Flag]:
    where = "uri" if definition.kind is DefinitionKind.RESOURCE else "uriTemplate"
    for other in index.find_overlapping(definition):
        if other.server != server:
            sentence = f"is also a URI of {to_display_text(other.server)}: {to_display_text(other.name)}"
            yield _make_flag(FlagCode.SHADOWING, (where,), definition.name, sentence)


def _is_template_match(template: KnownDefinition | Definition, resource: KnownDefinition | Definition) -> bool:
    if template.kind is not DefinitionKind.TEMPLATE or resource.kind is not DefinitionKind.RESOURCE:
        return False
    return can_expand_to(template.name, resource.name)


def _check_text(text: str, path: Path, server: str, index: DefinitionIndex) -> Iterator[Flag]:
    counts: Counter[str] = Counter()
    for start, end, what in find_hidden_text(text):
        counts[what] += 1
        if counts[what] <= _MAX_PER_KIND:
            yield _make_flag(FlagCode.HIDDEN_TEXT, path, _cut_excerpt(text, start, end), f"contains {what}")
    for start, end in islice(find_mixed_script(text), _MAX_PER_KIND):
        sentence = "mixes Latin letters with others that look like them"
        yield _make_flag(FlagCode.MIXED_SCRIPT, path, _cut_excerpt(text, start, end), sentence)
    for excerpt, what in find_injections(text):
        yield _make_flag(FlagCode.INSTRUCTION, path, excerpt, what)
    if path != ("name",):
        yield from islice(_check_mentions(text, path, server, index), _MAX_PER_KIND)


def _check_mentions(text: str, path: Path, server: str, index: DefinitionIndex) -> Iterator[Flag]:
    for start, end, tools in index.find_mentions(text):
        if all(each.server != server for each in tools):
            sentence = f"mentions {to_display_text(tools[0].name)}, a tool of {to_display_text(tools[0].server)}"
            yield _make_flag(FlagCode.SHADOWING, path, _cut_excerpt(text, start, end), sentence)


def _iter_texts(value: Any, path: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yield every text of a definition, including property names, with its path and whether it is a name."""
    stack: list[tuple[Any, Path]] = [(value, path)]
    while stack:
        each, place = stack.pop()
        if isinstance(each, str):
            yield place, each, place == ("name",)
        elif isinstance(each, dict):
            yield from (((*place, key), key, True) for key in each)
            stack.extend((inside, (*place, key)) for key, inside in reversed(each.items()))
        elif isinstance(each, list):
            stack.extend((inside, (*place, index)) for index, inside in reversed(list(enumerate(each))))


def _cut_excerpt(text: str, start: int, end: int) -> str:
    return text[max(0, start - _CONTEXT_CHARACTERS) : min(end, start + _MAX_EXCERPT_LENGTH) + _CONTEXT_CHARACTERS]


def _make_flag(code: FlagCode, path: Path, excerpt: str, sentence: str) -> Flag:
    escape_non_ascii = code in (FlagCode.MIXED_SCRIPT, FlagCode.LOOK_ALIKE)
    visible = reveal_hidden_text(excerpt[:_MAX_EXCERPT_LENGTH], escape_non_ascii=escape_non_ascii)
    return Flag(code=code, where=to_display_text(format_pointer(path)), excerpt=visible, sentence=sentence)
