"""List the ten tools that are generated, honest as they stand here: five that read and five that write."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from proofs.contract_violations.module_source import FILE, MEMORY, SQLITE

Behaviour = Literal["deterministic", "idempotent", "reversible"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseTool:
    """One tool without a fault. `new_value` is what it answers with, or stores."""

    name: str
    description: str
    storage: str
    behaviours: Sequence[Behaviour]
    new_value: str
    is_interactive: bool = False
    effect: str = ""
    result: str = '{"item": item, "value": new_value}'
    answer: str = "Answer"
    undo: dict[str, str] = field(default_factory=dict)
    """The arguments of `restore` that reverse a call, as templates of a test plan."""

    @property
    def is_read(self) -> bool:
        return not self.effect

    @property
    def options(self) -> str:
        """The arguments of `@tool` that differ between the tools."""
        timeout = "interactive" if self.is_interactive else "standard"
        common = f'behaviours={list(self.behaviours)!r}, timeout="{timeout}", '
        if self.is_read:
            return f'{common}effects="read"'
        idempotency = "idempotent" if "idempotent" in self.behaviours else "cannot"
        return (
            f'{common}effects="write", undo="$namespace.restore", resources=["update things/{{item}}"], '
            f'scopes=["proof:write"], idempotency="{idempotency}"'
        )


def _make_read(name: str, description: str, storage: str, new_value: str, *, is_interactive: bool = False) -> BaseTool:
    return BaseTool(
        name=name,
        description=description,
        storage=storage,
        behaviours=("deterministic",),
        new_value=new_value,
        is_interactive=is_interactive,
    )


def _make_setter(
    name: str, description: str, storage: str, new_value: str, *, is_interactive: bool = False
) -> BaseTool:
    """Make a write that has the effect of one call however often it is made."""
    return BaseTool(
        name=name,
        description=description,
        storage=storage,
        behaviours=("idempotent",),
        new_value=new_value,
        is_interactive=is_interactive,
        effect="store_value(item, new_value)",
    )


def _make_changer(
    name: str, description: str, storage: str, new_value: str, *, is_interactive: bool = False
) -> BaseTool:
    """Make a write that adds to what is there, and says what was there before."""
    return BaseTool(
        name=name,
        description=description,
        storage=storage,
        behaviours=("reversible",),
        new_value=new_value,
        is_interactive=is_interactive,
        effect="store_value(item, new_value)",
        result='{"item": item, "value": new_value, "before": value}',
        answer="Change",
        undo={"item": "{item}", "value": "{result.before}"},
    )


BASE_TOOLS = (
    _make_read("get_stock", "Return how much of an item is there.", MEMORY, "value", is_interactive=True),
    _make_read("quote_price", "Return the price of an amount of an item.", FILE, "value * amount", is_interactive=True),
    _make_read("count_boxes", "Return how many boxes of this size an item fills.", SQLITE, "value // amount"),
    _make_read("get_total", "Return the total with this amount added.", SQLITE, "sum(load_values().values()) + amount"),
    _make_read("find_rest", "Return what is left of an item in the last box.", FILE, "value % amount"),
    _make_setter("set_stock", "Set how much of an item is there.", SQLITE, "amount"),
    _make_setter("set_level", "Set the level at which an item is ordered.", MEMORY, "10 * amount", is_interactive=True),
    _make_setter("close_shelf", "Close the shelf of an item at this level.", FILE, "1_000 + amount"),
    _make_changer("add_stock", "Add an amount to an item.", FILE, "value + amount", is_interactive=True),
    _make_changer("take_stock", "Take an amount of an item away.", SQLITE, "value - amount"),
)
