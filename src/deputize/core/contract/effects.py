"""Declare what a tool does to data: effects, changed resources, behaviours, compensation and previews."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from deputize.core.contract.parts import ContractPart, SparsePart, ToolRef

_VOLATILE = r"^/(changes/\*/(before|after|count)|preconditions/\*/detail|impact/[^/]+|guards/[^/]+)(/[^/]+)*$"
_SOURCE = r"^/(arguments|result|before)(/[^/]+)*$"

# Properties that tests can check: equal arguments give equal results; a repeated key has the effect of one call;
# nothing is removed; sums stay the same; the undo tool restores the state of before.
Behaviour = Literal["deterministic", "idempotent", "monotone", "conserving", "reversible"]
CompensationClass = Literal["full", "semantic", "partial", "irreversible"]


class MutationClass(StrEnum):
    """How a call changes data."""

    READ = "read"
    WRITE_REVERSIBLE = "write-reversible"
    WRITE_IRREVERSIBLE = "write-irreversible"


class Effects(StrEnum):
    """What a tool does to data. Undeclared counts as destructive, never as harmless."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"

    @property
    def mutation_class(self) -> MutationClass:
        return _CLASS_OF_EFFECT[self]


_CLASS_OF_EFFECT = {
    Effects.READ: MutationClass.READ,
    Effects.WRITE: MutationClass.WRITE_REVERSIBLE,
    Effects.DESTRUCTIVE: MutationClass.WRITE_IRREVERSIBLE,
}


class SideEffect(ContractPart):
    """One resource that a tool may change; `{argument}` in the scope is filled from the arguments of the call."""

    resource: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    op: Literal["create", "update", "delete"]
    scope: Annotated[str, StringConstraints(min_length=1, max_length=240)] = "*"


class Compensation(SparsePart):
    """How a call is taken back: by which tool, with which arguments, and until when.

    `full` restores the state of before, `semantic` its equivalent (an order is canceled), `partial` leaves traces (a
    message is retracted by another one), and `irreversible` says that nothing compensates it.
    """

    compensation_class: CompensationClass
    tool: ToolRef | None = None
    # Each argument of the tool as a pointer into this call, as in /result/order_id, /arguments/account or, for a tool
    # that reads its state, /before/address.
    bind: dict[str, Annotated[str, StringConstraints(pattern=_SOURCE, max_length=240)]] | None = None
    constants: dict[str, Any] | None = None
    within_seconds: Annotated[int, Field(ge=1, le=30 * 86_400)] | None = None

    @property
    def binds_state(self) -> bool:
        """True if an argument comes from the state before the call."""
        return any(each.split("/")[1] == "before" for each in (self.bind or {}).values())


class PreviewRules(ContractPart):
    """How long a tool's preview stays valid, and which of its parts may differ without invalidating an approval.

    `*` in a pointer stands for each element, since changes have no order. What would be changed, and how, is never
    volatile: that is what approvers decide on.
    """

    fresh_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    volatile: tuple[Annotated[str, StringConstraints(pattern=_VOLATILE, max_length=240)], ...] = ()
