"""Compile every pattern that comes from outside with one engine whose matching takes linear time (RE2).

Tools and MCP servers send patterns in their schemas, and Python's `re` can take exponential time for one of them, with
the interpreter locked meanwhile. RE2 reads each character of a text once for each instruction of the compiled pattern;
`LinearPattern.cost` is their number, and callers limit the sum. A pattern that RE2 cannot express is refused.

JSON Schema uses the syntax of ECMA-262. What RE2 writes differently is translated; look-around and backreferences have
no linear equivalent. `tests/checks/test_patterns.py` keeps every other module from compiling patterns at run time.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

import re2

MAX_PATTERN_LENGTH: Final = 4_096
# The instructions of one compiled pattern. A class of all letters takes 1,200, a usual pattern less than 100.
MAX_PATTERN_COST: Final = 10_000
_MAX_MEMORY: Final = 2_097_152
_MAX_CODE_POINT: Final = 0x10FFFF

# Whitespace and line ends of ECMA-262; RE2 knows only those of ASCII.
_SPACES: Final = r"\t\n\v\f\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_DOT: Final = r"[^\n\r\x{2028}\x{2029}]"
_ANY: Final = r"(?s:.)"
_NONE: Final = r"[^\x00-\x{10ffff}]"
_UNANCHORED: Final = re2._Anchor.UNANCHORED
_NO_SPAN: Final = (-1, -1)
# Escapes with the same meaning in both syntaxes. `\A` and `\z` are not of ECMA-262, but validators know them.
_SAME_ESCAPES: Final = frozenset("dDwWnrtfv")
_SAME_ASSERTIONS: Final = frozenset("bBAz")
_LOOK_AROUND: Final = ("?=", "?!", "?<=", "?<!")
_CATEGORY_PREFIXES: Final = ("General_Category=", "gc=", "Script=", "sc=", "Script_Extensions=", "scx=")


class InvalidPattern(ValueError):
    """The pattern cannot be matched in linear time, or is not a pattern; the message completes "it …"."""


class LinearPattern:
    """A pattern whose matching takes time linear in the text. `cost` is the number of its instructions."""

    __slots__ = ("_regexp", "cost")

    def __init__(self, expression: str, *, ignore_case: bool = False) -> None:
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _MAX_MEMORY
        options.case_sensitive = not ignore_case
        try:
            self._regexp = re2.compile(expression, options)
        except re2.error as error:
            raise InvalidPattern(_describe_error(error)) from error
        except UnicodeEncodeError as error:
            raise InvalidPattern("contains half a surrogate pair") from error
        self.cost: int = self._regexp.programsize
        if self.cost > MAX_PATTERN_COST:
            raise InvalidPattern(f"takes {self.cost:,} steps for each character; the limit is {MAX_PATTERN_COST:,}")

    def matches_in(self, text: str) -> bool:
        """Tell whether the pattern matches somewhere in the text."""
        return self._regexp.search(_replace_surrogates(text)) is not None

    def matches_whole(self, text: str) -> bool:
        """Tell whether the pattern matches the whole text."""
        return self._regexp.fullmatch(_replace_surrogates(text)) is not None

    def replace_all(self, text: str, replacement: str) -> str:
        """Replace each match; `\\1` in the replacement is the first group of the match."""
        result: str = self._regexp.sub(replacement, _replace_surrogates(text))
        return result

    def replace_each(self, text: str, judge: Callable[[str, int, int], str | None]) -> str:
        """Replace each match by what `judge` returns for the text, the match's start and its end; None keeps it."""
        text = _replace_surrogates(text)
        pieces: list[str] = []
        end = 0
        for match in self._regexp.finditer(text):
            replacement = judge(text, match.start(), match.end())
            if replacement is not None:
                pieces += (text[end : match.start()], replacement)
                end = match.end()
        return "".join((*pieces, text[end:])) if pieces else text

    def matches_in_bytes(self, body: bytes) -> bool:
        """Tell whether the pattern matches somewhere in text that is already UTF-8."""
        # The wrapper's own `search` takes three times as long for a short text, and every call is searched.
        return bool(self._regexp._regexp.Match(_UNANCHORED, body, 0, len(body))[0] != _NO_SPAN)

    def find_first(self, text: str) -> tuple[int, int] | None:
        """Find where the pattern first matches: start and end."""
        match = self._regexp.search(_replace_surrogates(text))
        return None if match is None else (match.start(), match.end())


@lru_cache(maxsize=2048)
def compile_pattern(pattern: str) -> LinearPattern:
    """Compile a pattern of a JSON Schema (ECMA-262); raise `InvalidPattern` if it has no linear equivalent."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise InvalidPattern(f"has {len(pattern):,} characters; the limit is {MAX_PATTERN_LENGTH:,}")
    return LinearPattern("".join(_Translator(pattern).translate()))


@lru_cache(maxsize=2048)
def compile_glob(glob: str) -> LinearPattern:
    """Compile a glob, with `*`, `?` and `[…]` as in `fnmatch`; use it with `matches_whole`."""
    try:
        return LinearPattern("".join(_translate_glob(glob)))
    except InvalidPattern:
        # A reversed range such as [b-a] matches nothing, as in `fnmatch`.
        return LinearPattern(_NONE)


def matches_glob(text: str, glob: str) -> bool:
    """Tell whether a glob matches the whole text, with regard to case."""
    return compile_glob(glob).matches_whole(text)


def _replace_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which have no UTF-8 form, by one character each."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _describe_error(error: Exception) -> str:
    reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
    if reason.startswith("invalid repetition size"):
        return "repeats a part more than 1,000 times; limit the length with maxLength instead"
    if reason.startswith("pattern too large"):
        return "is too large when it is compiled; use shorter repetitions"
    return f"cannot be matched in linear time: {reason[:200]}"


class _Translator:
    """Translates one pattern from ECMA-262 to RE2."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0

    def translate(self) -> Iterator[str]:
        while self._place < len(self._pattern):
            character = self._take(1)
            if character == "\\":
                yield self._translate_escape(in_class=False)
            elif character == "[":
                yield self._translate_class()
            elif character == ".":
                yield _DOT
            elif character == "(":
                if self._pattern.startswith(_LOOK_AROUND, self._place):
                    raise InvalidPattern("uses look-around, which cannot be matched in linear time")
                yield character
            else:
                yield character

    def _take(self, count: int) -> str:
        characters = self._pattern[self._place : self._place + count]
        if len(characters) < count:
            raise InvalidPattern("ends too early")
        self._place += count
        return characters

    def _translate_escape(self, *, in_class: bool) -> str:
        character = self._take(1)
        if character in _SAME_ESCAPES or (character in _SAME_ASSERTIONS and not in_class):
            return "\\" + character
        match character:
            case "s":
                return _SPACES if in_class else f"[{_SPACES}]"
            case "S":
                return "\\S" if in_class else f"[^{_SPACES}]"
            case "b":
                return r"\x08"
            case "0":
                return r"\x00"
            case "x":
                return _format_code(self._take_hex(2))
            case "u":
                return _format_code(self._take_unicode())
            case "c":
                return _format_code(ord(self._take(1)) % 32)
            case "p" | "P":
                return self._translate_category(character)
            case _:
                return self._translate_other_escape(character)

    def _translate_other_escape(self, character: str) -> str:
        if character == "k" or character.isdigit():
            raise InvalidPattern("uses a backreference, which cannot be matched in linear time")
        if character.isascii() and character.isalpha():
            raise InvalidPattern(f"uses the unknown escape \\{character}")
        return _format_code(ord(character))

    def _translate_category(self, kind: str) -> str:
        if self._take(1) != "{":
            raise InvalidPattern(f"uses \\{kind} without {{…}}")
        end = self._pattern.find("}", self._place)
        name = self._take(max(end - self._place, 0) + 1)[:-1]
        for prefix in _CATEGORY_PREFIXES:
            name = name.removeprefix(prefix)
        return f"\\{kind}{{{name}}}"

    def _take_hex(self, count: int) -> int:
        digits = self._take(count)
        try:
            return int(digits, 16)
        except ValueError:
            raise InvalidPattern(f"uses an escape with {digits!r}, which is not hexadecimal") from None

    def _take_unicode(self) -> int:
        if self._pattern.startswith("{", self._place):
            end = self._pattern.find("}", self._place)
            self._place += 1
            code = self._take_hex(max(end - self._place, 1))
            self._take(1)
        else:
            code = self._take_hex(4)
            if 0xD800 <= code < 0xDC00 and self._pattern.startswith("\\u", self._place):
                self._take(2)
                code = 0x10000 + ((code - 0xD800) << 10) + (self._take_hex(4) - 0xDC00)
        if not 0 <= code <= _MAX_CODE_POINT or 0xD800 <= code < 0xE000:
            raise InvalidPattern("uses an escape that is no character")
        return code

    def _translate_class(self) -> str:
        is_negated = self._pattern.startswith("^", self._place)
        self._place += is_negated
        parts: list[str] = []
        while (character := self._take(1)) != "]":
            if character == "\\":
                parts.append(self._translate_escape(in_class=True))
            else:
                parts.append("\\" + character if character in "[^&~" else character)
        if not parts:
            return _ANY if is_negated else _NONE
        return f"[{'^' if is_negated else ''}{''.join(parts)}]"


def _format_code(code: int) -> str:
    return f"\\x{{{code:x}}}"


def _translate_glob(glob: str) -> Iterator[str]:
    place = 0
    while place < len(glob):
        character = glob[place]
        place += 1
        end = glob.find("]", place + 1 + glob.startswith("!", place)) if character == "[" else -1
        if character in "*?":
            yield _ANY + ("*" if character == "*" else "")
        elif end >= 0:
            inside = glob[place:end].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
            is_negated, is_caret = inside.startswith("!"), inside.startswith("^")
            prefix = "^" if is_negated else "\\" if is_caret else ""
            yield f"[{prefix}{inside[is_negated:]}]"
            place = end + 1
        else:
            yield re2.escape(character)
