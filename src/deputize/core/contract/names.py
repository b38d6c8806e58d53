"""Convert names of tools between `namespace.name` and the spelling that model APIs accept."""

import re

_OUTWARD = re.compile(r"([a-z](?:_?[a-z0-9])*)__([a-z](?:_?[a-z0-9])*)")


def to_outward_name(full_name: str) -> str:
    """Write `namespace.name` as `namespace__name`."""
    return full_name.replace(".", "__", 1)


def to_full_name(name: str) -> str:
    """Return `namespace.name` for either spelling; words have only single underscores, so the split is unambiguous."""
    match = _OUTWARD.fullmatch(name)
    return f"{match[1]}.{match[2]}" if match else name
