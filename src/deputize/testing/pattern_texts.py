"""Generate texts that match a regular expression of a JSON Schema, for the constructs that such patterns use.

Literals, escapes, classes, groups, alternatives, anchors and bounded repetition are understood; for anything else
there is no text, and the caller falls back to the author's examples. The schema's validator has the last word.
"""

import random
import string
from typing import Final

_MAX_EXTRA_REPEATS: Final = 3
_MAX_REPEATS: Final = 300
_MAX_DEPTH: Final = 20
_CLASSES: Final = {"d": string.digits, "w": string.ascii_lowercase + string.digits + "_", "s": " "}
_CONTROL: Final = {"n": "\n", "t": "\t", "r": "\r"}
_ANY: Final = string.ascii_lowercase + string.digits


class UnsupportedPattern(ValueError):
    """The pattern uses a construct that no text is generated for."""


def generate_matching_text(pattern: str, rng: random.Random) -> str:
    """Generate a text that matches the whole pattern; raise `UnsupportedPattern` if it cannot be understood."""
    parser = _PatternSampler(pattern, rng)
    text = parser.sample_alternatives(0)
    if parser.place != len(pattern):
        raise UnsupportedPattern(pattern)
    return text


class _PatternSampler:
    """Reads a pattern once from left to right and samples a text of each part as it is read."""

    def __init__(self, pattern: str, rng: random.Random) -> None:
        self._pattern = pattern
        self._rng = rng
        self.place = 0

    def sample_alternatives(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise UnsupportedPattern(self._pattern)
        texts = [self._sample_sequence(depth)]
        while self._peek() == "|":
            self.place += 1
            texts.append(self._sample_sequence(depth))
        return self._rng.choice(texts)

    def _sample_sequence(self, depth: int) -> str:
        parts: list[str] = []
        while self._peek() not in ("", "|", ")"):
            start = self.place
            text = self._sample_atom(depth)
            end = self.place
            count = self._rng.randint(*self._read_quantifier())
            parts += [self._sample_again(start, end, depth) if number else text for number in range(count)]
        return "".join(parts)

    def _sample_again(self, start: int, end: int, depth: int) -> str:
        """Sample the same atom once more, with other choices."""
        after, self.place = self.place, start
        text = self._sample_atom(depth)
        if self.place != end:
            raise UnsupportedPattern(self._pattern)
        self.place = after
        return text

    def _sample_atom(self, depth: int) -> str:
        character = self._take()
        if character in "^$":
            return ""
        if character == ".":
            return self._rng.choice(_ANY)
        if character == "[":
            return self._rng.choice(self._read_class())
        if character == "(":
            return self._sample_group(depth)
        if character == "\\":
            return self._rng.choice(self._read_escape())
        if character in "*+?{}":
            raise UnsupportedPattern(self._pattern)
        return character

    def _sample_group(self, depth: int) -> str:
        if self._peek() == "?":
            if self._pattern[self.place : self.place + 2] != "?:":
                raise UnsupportedPattern(self._pattern)
            self.place += 2
        text = self.sample_alternatives(depth + 1)
        if self._take() != ")":
            raise UnsupportedPattern(self._pattern)
        return text

    def _read_class(self) -> str:
        if self._peek() == "^":
            raise UnsupportedPattern(self._pattern)
        characters: list[str] = []
        while self._peek() != "]":
            first = self._take()
            if first == "\\":
                characters += self._read_escape()
            elif self._peek() == "-" and self._pattern[self.place + 1 : self.place + 2] not in ("", "]"):
                self.place += 1
                last = self._take()
                if last == "\\" or ord(last) < ord(first) or ord(last) - ord(first) > 0x300:
                    raise UnsupportedPattern(self._pattern)
                characters += (chr(code) for code in range(ord(first), ord(last) + 1))
            else:
                characters.append(first)
        self.place += 1
        if not characters:
            raise UnsupportedPattern(self._pattern)
        return "".join(characters)

    def _read_escape(self) -> str:
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _CONTROL:
            return _CONTROL[character]
        if character.isalnum():
            raise UnsupportedPattern(self._pattern)
        return character

    def _read_quantifier(self) -> tuple[int, int]:
        character = self._peek()
        least, most = 1, 1
        if character == "?":
            least, most = 0, 1
        elif character == "*":
            least, most = 0, _MAX_EXTRA_REPEATS
        elif character == "+":
            least, most = 1, 1 + _MAX_EXTRA_REPEATS
        elif character == "{":
            return self._read_bounds()
        if (least, most) != (1, 1):
            self.place += 1
        return least, most

    def _read_bounds(self) -> tuple[int, int]:
        end = self._pattern.find("}", self.place)
        first, comma, last = self._pattern[self.place + 1 : max(end, self.place)].partition(",")
        if end < 0 or not first.isdecimal() or (last and not last.isdecimal()):
            raise UnsupportedPattern(self._pattern)
        self.place = end + 1
        least = int(first)
        most = least if not comma else int(last) if last else least + _MAX_EXTRA_REPEATS
        if least > _MAX_REPEATS:
            raise UnsupportedPattern(self._pattern)
        return least, max(least, min(most, least + _MAX_EXTRA_REPEATS))

    def _peek(self) -> str:
        return self._pattern[self.place : self.place + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise UnsupportedPattern(self._pattern)
        self.place += 1
        return character
