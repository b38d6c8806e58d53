"""Bind how a call is taken back: the tool that does it, and its arguments from what the call got, returned and found.

A contract says so in `compensation`. One that only names an `undo` tool leaves the arguments to their names: the tool
gets what it declares of the call's arguments and of what the call returned.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal, cast

from deputize.core.contract.contract import Contract
from deputize.core.contract.effects import CompensationClass
from deputize.core.json_pointer import MISSING, find_value, parse_pointer
from deputize.core.value_types import frozen

# Where a value is from: the call's own arguments, its result, the state before it, or a constant of its contract.
Origin = Literal["arguments", "result", "before", "contract"]
# Longer texts of a result are no names of what it made.
_MAX_NAMED_LENGTH: Final = 256


@frozen
class BoundCompensation:
    """The tool that takes a call back, with its arguments; `missing` are the pointers that led nowhere.

    With `is_by_name`, the arguments are all that have a name, of which the tool gets the ones that it declares.
    `origins` says where each argument is from; what an earlier release kept does not.
    """

    tool: str
    arguments: Mapping[str, Any]
    missing: tuple[str, ...] = ()
    is_by_name: bool = False
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "arguments": dict(self.arguments),
            **({"missing": list(self.missing)} if self.missing else {}),
            **({"by_name": True} if self.is_by_name else {}),
            **({"origins": dict(self.origins)} if self.origins else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BoundCompensation":
        return cls(
            tool=document["tool"],
            arguments=document["arguments"],
            missing=tuple(document.get("missing", ())),
            is_by_name=document.get("by_name", False),
            origins=document.get("origins", {}),
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
        return _bind_by_name(contract, contract.undo, values)
    if compensation.tool is None:
        return None
    arguments, missing = dict(compensation.constants or {}), []
    origins: dict[str, Origin] = dict.fromkeys(arguments, "contract")
    for name, pointer in (compensation.bind or {}).items():
        steps = parse_pointer(pointer)
        value = find_value(values, steps)
        if value is MISSING:
            missing.append(pointer)
        else:
            arguments[name] = value
            origins[name] = cast(Origin, steps[0])
    return BoundCompensation(tool=compensation.tool, arguments=arguments, missing=tuple(missing), origins=origins)


def _bind_by_name(contract: Contract, tool: str, values: Mapping[str, Any]) -> BoundCompensation:
    """Bind the call's arguments, and the plain values of what it returned, such as the number of a new order.

    The tool's word counts more than the caller's, whose arguments that the tool does not declare count nothing: another
    person's authority takes the call back.
    """
    declared, result = contract.input_schema.get("properties", {}), values.get("result")
    plain = {
        name: value
        for name, value in (result.items() if isinstance(result, Mapping) else ())
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _MAX_NAMED_LENGTH)
    }
    own = {name: value for name, value in values["arguments"].items() if name in declared}
    origins: dict[str, Origin] = {**dict.fromkeys(own, "arguments"), **dict.fromkeys(plain, "result")}
    return BoundCompensation(tool=tool, arguments=own | plain, is_by_name=True, origins=origins)
