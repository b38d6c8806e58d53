"""Change one member of a JSON text, and leave every other character as it is: comments, order, spaces.

Every step takes time linear in the text.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.client_configs import strip_comments

_BLANK = re.compile(r"\s+|//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"[^\s,\]}/]+")
# What can open or close a value, and what can hide such a character.
_TOKEN = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_INDENT = re.compile(r"\n([ \t]+)\"")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """Place of a member of an object."""

    key: str
    start: int
    value_start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Object:
    """Place of an object: after its opening brace, and at its closing one."""

    start: int
    end: int
    members: tuple[_Member, ...]

    def find(self, key: str) -> _Member | None:
        """Find a member; of members with one name, the last counts, as for every reader of JSON."""
        return next((each for each in reversed(self.members) if each.key == key), None)


def parse_json_text(text: str) -> dict[str, Any]:
    """Parse a text with comments and trailing commas; raise `ConfigError` for what is not an object."""
    try:
        document = json.loads(strip_comments(text)) if text.strip() else {}
    except (ValueError, RecursionError):
        raise ConfigError("it is not valid JSON") from None
    if not isinstance(document, dict):
        raise ConfigError("it is not a JSON object")
    return document


def set_json_member(text: str, section: str, name: str, value: Mapping[str, Any]) -> str:
    """Set a member of a section; create the section if it is missing."""
    remainder = remove_json_member(text, section, name)
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = _INDENT.search(text)
    unit = indent[1] if indent else "  "
    if not remainder.strip():
        return json.dumps({section: {name: value}}, indent=2, ensure_ascii=False) + "\n"
    root = _scan_object(remainder, _skip_blank(remainder, 0))
    holder = root.find(section)
    if holder is None:
        return _insert_member(remainder, root, section, {name: value}, unit, 1, newline)
    return _insert_member(remainder, _scan_object(remainder, holder.value_start), name, value, unit, 2, newline)


def remove_json_member(text: str, section: str, name: str) -> str:
    """Remove a member of a section, if it is there."""
    document = parse_json_text(text)
    entries = document.get(section, {})
    if not isinstance(entries, dict):
        raise ConfigError(f"its {section} is not a JSON object")
    if name not in entries:
        return text
    holder = _scan_object(text, _skip_blank(text, 0)).find(section)
    place = None if holder is None else _scan_object(text, holder.value_start)
    member = None if place is None else place.find(name)
    return text if place is None or member is None else _cut_member(text, place, member)


def _insert_member(
    text: str, place: _Object, key: str, value: Mapping[str, Any], unit: str, depth: int, newline: str
) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    value_text = (newline + unit * depth).join(lines)
    has_comma = bool(place.members) and text[_skip_blank(text, place.members[-1].end)] == ","
    member = f"{newline}{unit * depth}{json.dumps(key, ensure_ascii=False)}: {value_text}{',' if has_comma else ''}"
    rest_start = place.start + len(text[place.start : place.end].rstrip())
    rest = text[rest_start : place.end]
    if "\n" not in rest:
        rest = newline + unit * (depth - 1)
    if place.members:
        last = place.members[-1].end
        head = text[:last] + ("" if has_comma else ",") + text[last:rest_start]
    else:
        head = text[:rest_start]
    return head + member + rest + text[place.end :]


def _cut_member(text: str, place: _Object, member: _Member) -> str:
    index = place.members.index(member)
    start, end = len(text[: member.start].rstrip()), member.end
    comma = _skip_blank(text, end)
    if text[comma] == ",":
        return text[:start] + text[end:comma] + text[comma + 1 :]
    if index == 0:
        rest = text[end : place.end]
        return text[:start] + ("" if not rest.strip() and text[start - 1] == "{" else rest) + text[place.end :]
    comma = _skip_blank(text, place.members[index - 1].end)
    return text[:comma] + text[comma + 1 : start] + text[end:]


def _scan_object(text: str, start: int) -> _Object:
    """Scan the members of the object that opens here; the text was parsed before, so it is well-formed."""
    members: list[_Member] = []
    at = _skip_blank(text, start + 1)
    while text[at] != "}":
        key_end = _skip_value(text, at)
        value_start = _skip_blank(text, _skip_blank(text, key_end) + 1)
        end = _skip_value(text, value_start)
        members.append(_Member(key=json.loads(text[at:key_end]), start=at, value_start=value_start, end=end))
        at = _skip_blank(text, end)
        if text[at] == ",":
            at = _skip_blank(text, at + 1)
    return _Object(start=start + 1, end=at, members=tuple(members))


def _skip_blank(text: str, at: int) -> int:
    while match := _BLANK.match(text, at):
        at = match.end()
    return at


def _skip_value(text: str, at: int) -> int:
    if text[at] not in "{[":
        match = (_STRING if text[at] == '"' else _SCALAR).match(text, at)
        return match.end() if match else len(text)
    depth = 0
    for token in _TOKEN.finditer(text, at):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return len(text)
