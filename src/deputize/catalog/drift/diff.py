"""What is different between two declarations, for people to read: by place, with everything hidden made visible.

Above: `judge.py`, and doors that show it. Below: `core/plain.py`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from deputize.core.frozen import frozen


@frozen
class Difference:
    """One place (a JSON pointer) and what stood and stands there, as text of visible characters; None is nothing."""

    where: str
    before: str | None
    after: str | None


def differences(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> tuple[Difference, ...]:
    """What differs in meaning between two declarations, in the order of the document. What is only written in another
    order is not told. Without a `before` everything is new, without an `after` everything is gone.
    """
    raise NotImplementedError


def lines(found: Iterable[Difference]) -> list[str]:
    """The differences as lines: the place, then what was (`- `) and what is (`+ `)."""
    raise NotImplementedError
