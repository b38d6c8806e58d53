"""Named SQL: each file holds the statements of one topic, each under a line `-- name: what_it_does`."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

_FOLDER = Path(__file__).parent
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load(topic: str) -> Mapping[str, str]:
    """The statements of one file by their names."""
    _, *named = _NAME.split((_FOLDER / f"{topic}.sql").read_text(encoding="utf-8"))
    names, bodies = named[::2], named[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{topic}.sql gives one name to two statements")
    return MappingProxyType(dict(zip(names, (body.strip() for body in bodies), strict=True)))
