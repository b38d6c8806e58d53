"""Bind how a call is taken back: the tool that does it, and its arguments from what the call got, returned and found.

A contract says so in `compensation`. One that only names an `undo` tool leaves the arguments to their names: the tool
gets what it declares of the call's arguments and of what the call returned.
"""

from collections.abc import Mapping
from typing import Any, Final

from deputize.core.contract.contract import Contract
from deputize.core.contract.effects import CompensationClass
from deputize.core.json_pointer import MISSING, find_value, parse_pointer
from deputize.core.value_types import frozen

# Longer texts of a result are no names of what it made.
_MAX_NAMED_LENGTH: Final = 256


@frozen
class BoundCompensation:
    """The tool that takes a call back, with its arguments; `missing` are the pointers that led nowhere.

    With `is_by_name`, the arguments are all that have a name, of which the tool gets the ones that it declares.
    """

    tool: str
    arguments: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    is_by_name: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "arguments": dict(self.arguments),
            **({"missing": list(self.missing)} if self.missing else {}),
            **({"by_name": True} if self.is_by_name else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BoundCompensation":
        return cls(
            tool=document["tool"],
            arguments=document["arguments"],
            missing=tuple(document.get("missing", ())),
            is_by_name=document.get("by_name", False),
        )


def get_compensation_class(contract: Contract) -> CompensationClass:
    """Return how far a call can be taken back; an `undo` tool restores an equivalent, as nothing says that it is equal.

    Nothing declared counts as irreversible.
    """
    if contract.compensation is not None:
        return contract.compensation.compensation_class
    return "irreversible" if contract.undo is None else "semantic"


def bind_compensation(contract: Contract, values: Mapping[str, Any]) -> BoundCompensation | None:
    """Bind the arguments from `arguments`, `result` and `before`, as far as they are known; None if nothing helps."""
    compensation = contract.compensation
    if compensation is None:
        if contract.undo is None:
            return None
        return BoundCompensation(tool=contract.undo, arguments=_list_named_values(contract, values), is_by_name=True)
    if compensation.tool is None:
        return None
    arguments, missing = dict(compensation.constants or {}), []
    for name, pointer in (compensation.bind or {}).items():
        value = find_value(values, parse_pointer(pointer))
        if value is MISSING:
            missing.append(pointer)
        else:
            arguments[name] = value
    return BoundCompensation(tool=compensation.tool, arguments=arguments, missing=tuple(missing))


def _list_named_values(contract: Contract, values: Mapping[str, Any]) -> dict[str, Any]:
    """List the call's arguments, and the plain values of what it returned, such as the number of a new order.

    The tool's word counts more than the caller's, whose arguments that the tool does not declare count nothing: another
    person's authority takes the call back.
    """
    declared, result = contract.input_schema.get("properties", {}), values.get("result")
    plain = {
        name: value
        for name, value in (result.items() if isinstance(result, Mapping) else ())
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _MAX_NAMED_LENGTH)
    }
    return {name: value for name, value in values["arguments"].items() if name in declared} | plain
