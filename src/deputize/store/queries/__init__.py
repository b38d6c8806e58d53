"""Load named SQL: each file has the statements of one topic, each below a line `-- name: what_it_does`."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

_FOLDER = Path(__file__).parent
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@lru_cache(maxsize=64)
def load_statements(topic: str) -> Mapping[str, str]:
    """Load the statements of one file by their names."""
    _, *parts = _NAME.split((_FOLDER / f"{topic}.sql").read_text(encoding="utf-8"))
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{topic}.sql has two statements of the same name")
    return MappingProxyType(dict(zip(names, (body.strip() for body in bodies), strict=True)))
