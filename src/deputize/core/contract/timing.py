"""Declare how long calls of a tool may take, and how long a result stays fresh."""

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from deputize.core.contract.parts import ContractPart, SparsePart


class TimeoutClass(StrEnum):
    """How long calls of a tool may take."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    LONG_RUNNING = "long-running"
    ASYNC = "async"

    @property
    def seconds(self) -> float:
        """The longest duration of a call of this class; the contract bounds an async one instead."""
        return _CLASS_SECONDS[self]


_CLASS_SECONDS = {
    TimeoutClass.INTERACTIVE: 0.5,
    TimeoutClass.STANDARD: 5.0,
    TimeoutClass.LONG_RUNNING: 300.0,
    TimeoutClass.ASYNC: 86_400.0,
}


class Timeout(ContractPart):
    """How long a call may take."""

    timeout_class: TimeoutClass = TimeoutClass.STANDARD
    seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    max_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None

    @cached_property
    def effective_seconds(self) -> float:
        return min(each for each in (self.timeout_class.seconds, self.seconds, self.max_seconds) if each is not None)


class Freshness(SparsePart):
    """How long the result of a read may be given again instead of reading anew, and to whom."""

    max_age_seconds: Annotated[int, Field(ge=1, le=30 * 86_400)]
    # "tenant": every caller of the tenant sees the same, so that one result serves all of them.
    shared_by: Literal["caller", "tenant"] = "caller"
