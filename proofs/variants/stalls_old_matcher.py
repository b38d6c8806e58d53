"""A gateway that matches patterns from outside with Python's backtracking engine, as 0.1.0 did."""

import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from deputize.core import patterns
from proofs.kit.gateway_variant import serve_variant
from proofs.stalls.probed_gateway import add_probe


class BacktrackingPattern:
    """A pattern whose matching may take exponential time."""

    def __init__(self, expression: str, *, ignore_case: bool = False) -> None:
        self._regexp = re.compile(expression, re.IGNORECASE if ignore_case else 0)
        self.cost = 1

    def matches_in(self, text: str) -> bool:
        return self._regexp.search(text) is not None

    def matches_whole(self, text: str) -> bool:
        return self._regexp.fullmatch(text) is not None

    def find_first(self, text: str) -> tuple[int, int] | None:
        match = self._regexp.search(text)
        return None if match is None else match.span()


def keep_pattern(translator: Any) -> Iterator[str]:
    yield translator._pattern


def use_old_matcher() -> None:
    """Match every pattern from outside with Python's engine from now on."""
    patch.object(patterns, "LinearPattern", BacktrackingPattern).start()
    patch.object(patterns._Translator, "translate", keep_pattern).start()


if __name__ == "__main__":
    use_old_matcher()
    serve_variant(add_probe)
