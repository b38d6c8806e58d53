"""Define the report of a call: what a development gateway shows in its terminal about each one."""

from collections.abc import Callable
from dataclasses import dataclass

from deputize.core.contract.contract import Contract
from deputize.core.decision import Behavior
from deputize.core.states import State


@dataclass(frozen=True, kw_only=True, slots=True)
class CallReport:
    """How one call ended, or where it waits. It holds neither arguments nor results."""

    call_id: str
    user: str
    agent: str
    # As it was requested, which may be a name that no tool has.
    tool: str
    # None if the call was refused before any rule was asked.
    behavior: Behavior | None
    rules: tuple[str, ...]
    state: State
    seconds: float
    error_number: str | None = None
    error_message: str = ""
    is_replay: bool = False
    # Nothing was executed.
    is_dry_run: bool = False


ReportCall = Callable[[CallReport], None]
# Takes the contract of the tool and the exception that its code raised.
ReportToolError = Callable[[Contract, BaseException], None]
