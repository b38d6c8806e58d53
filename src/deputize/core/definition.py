"""A tool that lives in this process: its contract beside the functions that fulfil it.

Made by `catalog/importers/python.py`, run by `execute/drivers/python.py`; the two never meet but here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deputize.core.contract import Contract


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonTool:
    """`run` takes the arguments as keywords (and `context` if it asks for one); it may be async.

    `validate(**arguments)` raises `Refuse` before any effect; `verify(arguments, output)` raises after a bad one.
    """

    contract: Contract
    run: Callable[..., Any]
    is_async: bool
    takes_context: bool = False
    validate: Callable[..., Any] | None = None
    verify: Callable[..., Any] | None = None

    @property
    def target(self) -> str:
        return self.contract.handler.target


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a running tool may know about its call. `key` is what to hand to an upstream that deduplicates."""

    call_id: str
    tenant: str
    user: str
    agent: str
    session: str | None
    key: str
    attempt: int
    seconds_left: float
    traceparent: str | None
