"""Judge calls made while a tool's code is saved again and again: each must be answered, by code that was saved."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"^Hello (\d+), Ana!$")


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    """One call: the saves that were in use when it was sent, those made until it was answered, and its answer."""

    used_number: int
    saved_number: int
    status: int
    answer: str


def find_lost_calls(records: Sequence[CallRecord]) -> list[str]:
    """Find calls that were not answered, or by code that was not saved yet or was replaced before they were sent."""
    lost = []
    for record in records:
        number = read_number(record.answer)
        if record.status != 200 or number is None:
            lost.append(f"answered with {record.status} {record.answer[:200]!r}")
        elif not record.used_number <= number <= record.saved_number:
            lost.append(f"answered by save {number}, between {record.used_number} and {record.saved_number}")
    return lost


def read_number(answer: str) -> int | None:
    """Read which save answered."""
    match = _NUMBER.match(answer)
    return None if match is None else int(match[1])
