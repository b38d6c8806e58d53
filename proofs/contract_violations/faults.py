"""List the faults that make a tool violate its contract, and the oddities of tools that do not.

A fault is other text for one slot of a tool's function; `{effect}` and `{result}` stand for the tool's own. Each shows
with every call, with the first, or with arguments that the schemas of the tool suggest: at a limit, or of an item that
is not there. A fault that shows by chance or after many calls is not promised to be caught.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proofs.contract_violations.base_tools import BASE_TOOLS, BaseTool
from proofs.contract_violations.kinds import ViolationKind

REFUSE = 'raise ToolPrecondition(f"there is no {item}", details={"items": sorted(load_values())})'
_COUNT = 'store_value("zzzz", load_values().get("zzzz", 0) + 1)'


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Other text for one slot."""

    slot: str
    text: str


def _list_faults(slot: str, *texts: str) -> tuple[Fault, ...]:
    return tuple(Fault(slot=slot, text=text) for text in texts)


FAULTS: Mapping[ViolationKind, Sequence[Fault]] = {
    ViolationKind.READ_THAT_WRITES: (
        *_list_faults("trace", "store_value(item, value + 1)", _COUNT, 'drop_value("figs")'),
        *_list_faults("refuse", f"{_COUNT}; {REFUSE}"),
    ),
    ViolationKind.WRITE_WITHOUT_EFFECT: _list_faults(
        "effect", "pass", "store_value(item, value)", "_notes[item] = new_value"
    ),
    ViolationKind.NOT_IDEMPOTENT: (
        *_list_faults("effect", f"{{effect}}; {_COUNT}", "store_value(item, value + amount)"),
        *_list_faults("result", '{**{result}, "value": new_value + next(_numbers)}'),
    ),
    ViolationKind.NOT_REVERSIBLE: (
        *_list_faults("effect", f"{{effect}}; {_COUNT}", '{effect}; store_value("figs", load_values()["figs"] - 1)'),
        *_list_faults("result", '{**{result}, "before": value + 1}'),
    ),
    ViolationKind.NOT_DETERMINISTIC: _list_faults(
        "result",
        '{**{result}, "value": new_value + next(_numbers)}',
        '{**{result}, "value": new_value + next(_numbers) % 2}',
        '{**{result}, "value": time.monotonic_ns() % 10**12}',
    ),
    ViolationKind.WRONG_OUTPUT: _list_faults(
        "result",
        '{**{result}, "value": str(new_value)}',
        '{**{result}, "value": -1}',
        '{**{result}, "note": "new"}',
        '{"item": item}',
        '{result} if amount < 100 else {"item": item}',
        "[{result}] if amount == 1 else {result}",
    ),
    ViolationKind.WRONG_ERROR: _list_faults(
        "refuse",
        'raise ToolPrecondition(f"there is no {item}")',
        'raise ToolPrecondition(f"there is no {item}", details={"items": "none"})',
        'raise ToolPrecondition(f"there is no {item}", details={"items": [], "code": 17})',
        "raise KeyError(item)",
    ),
    ViolationKind.TOO_SLOW: (
        *_list_faults("pause", "await asyncio.sleep(0.8)", "await asyncio.to_thread(time.sleep, 0.8)"),
        *_list_faults("trace", "await asyncio.sleep(0.8)"),
    ),
}

# What honest tools do beside their work: nothing of it is a part of the state, of the answer, or long.
ODDITIES: Sequence[Fault] = (
    Fault(slot="trace", text=""),
    Fault(slot="trace", text="_notes[item] = next(_numbers)"),
    Fault(slot="trace", text="store_value(item, load_values()[item])"),
    Fault(slot="pause", text="await asyncio.sleep(0.02)"),
    Fault(slot="pause", text="_notes.clear()"),
)


def can_violate(tool: BaseTool, kind: ViolationKind) -> bool:
    """Tell whether the contract of a tool promises what violations of this kind break."""
    match kind:
        case ViolationKind.READ_THAT_WRITES:
            return tool.is_read
        case ViolationKind.WRITE_WITHOUT_EFFECT:
            return not tool.is_read
        case ViolationKind.NOT_IDEMPOTENT:
            return "idempotent" in tool.behaviours
        case ViolationKind.NOT_REVERSIBLE:
            return "reversible" in tool.behaviours
        case ViolationKind.NOT_DETERMINISTIC:
            return "deterministic" in tool.behaviours
        case ViolationKind.TOO_SLOW:
            return tool.is_interactive
        case ViolationKind.WRONG_OUTPUT | ViolationKind.WRONG_ERROR:
            return True


PAIRS = tuple((kind, tool) for kind in ViolationKind for tool in BASE_TOOLS if can_violate(tool, kind))
"""Each kind with each tool that can violate it."""
