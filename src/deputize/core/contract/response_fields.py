"""Keep only named fields of a response: JSON pointers into its body, with `*` for every item of a list."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Optional

from pydantic import StringConstraints

ResponseField = Annotated[str, StringConstraints(pattern=r"^(/([^~/]|~[01])+){1,20}$", max_length=400)]
EACH_ITEM: Final = "*"
# What is kept of an object by its name, or of every item of a list by `*`; None keeps all of it.
FieldTree = Mapping[str, Optional["FieldTree"]]


def build_field_tree(pointers: Iterable[str]) -> FieldTree:
    """Build the tree of fields to keep. A pointer to a whole value wins over those to parts of it."""
    tree: dict[str, Any] = {}
    for pointer in sorted(pointers, key=len, reverse=True):
        node = tree
        *holders, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]
        for step in holders:
            node = node.setdefault(step, {})
        node[last] = None
    return tree


def project_value(value: Any, tree: FieldTree | None) -> Any:
    """Keep the fields of a tree, or raise `ValueError` if the value has none because it is of another kind."""
    if tree is None or value is None:
        return value
    if isinstance(value, list) and EACH_ITEM in tree:
        return [project_value(each, tree[EACH_ITEM]) for each in value]
    if isinstance(value, dict):
        return {name: project_value(value[name], part) for name, part in tree.items() if name in value}
    raise ValueError(f"there is no {next(iter(tree))} in it")
