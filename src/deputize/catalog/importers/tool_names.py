"""Name the tools of others: MCP servers, OpenAPI and gRPC services, and documents of the tool standard."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from deputize.catalog.registration_rules import LONGEST_OUTWARD

_MAX_NAME_LENGTH: Final = 48
_CAMEL_CASE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")


def assign_names(
    namespace: str,
    names: Collection[str],
    existing_names: Mapping[str, str],
    shorter_names: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Assign each of a server's tool names the name it is registered under.

    `existing_names` has the assignments made before, which never change. If several tools would get the same name, all
    but one get a number; which one does not depend on the order in which the server lists them. A name in
    `shorter_names` is assigned unless another tool has it already.
    """
    names_by_tool = {name: existing_names[name] for name in names if name in existing_names}
    names_in_use = set(existing_names.values())
    max_length = min(_MAX_NAME_LENGTH, LONGEST_OUTWARD - len("__") - len(namespace))
    new = sorted(
        (name for name in set(names) if name not in existing_names),
        key=lambda name: (normalize_name(name, max_length) != name, name),
    )
    for name in new:
        candidate, number = normalize_name((shorter_names or {}).get(name, name), max_length), 1
        if candidate in names_in_use:
            candidate = normalize_name(name, max_length)
        while candidate in names_in_use:
            number += 1
            candidate = normalize_name(name, max_length - len(f"_{number}")) + f"_{number}"
        names_by_tool[name] = candidate
        names_in_use.add(candidate)
    return names_by_tool


def normalize_name(name: str, max_length: int = _MAX_NAME_LENGTH) -> str:
    """Normalize a name to snake_case: `getUser`, `get-user` and `issues/get` become words joined by underscores."""
    normal_name = _SEPARATORS.sub("_", _CAMEL_CASE.sub("_", name).lower()).strip("_")
    if not normal_name[:1].isalpha():
        normal_name = f"tool_{normal_name}".strip("_")
    return normal_name[:max_length].strip("_")
