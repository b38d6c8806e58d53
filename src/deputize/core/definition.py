"""A tool that lives in this process: its contract beside the functions that fulfil it.

Made by `catalog/importers/python.py`, run by `execute/drivers/python.py`; the two never meet but here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Self

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


class SecretClosed(RuntimeError):
    """A credential was asked for after the attempt it was lent to had ended."""


class Secret:
    """A credential lent to one attempt of one call. It shows itself only to `reveal()`, and only until it is closed.

    Whoever keeps what `reveal()` returned keeps it: Python cannot take a string back.
    """

    __slots__ = ("_value", "name")

    def __init__(self, value: str, *, name: str = "") -> None:
        self.name = name
        self._value: str | None = value

    def reveal(self) -> str:
        if self._value is None:
            raise SecretClosed("this credential was lent to one attempt of a call, which is over")
        return self._value

    def close(self) -> None:
        self._value = None

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"

    def __copy__(self) -> Self:
        """A copy is the same handle, and is closed with it."""
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a credential is not written down")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a running tool may know about its call. `key` is what to hand to an upstream that deduplicates;
    `credential` is what the contract's `auth` asks for, and open only while the tool runs.
    """

    call_id: str
    tenant: str
    user: str
    agent: str
    session: str | None
    key: str
    attempt: int
    seconds_left: float
    traceparent: str | None
    credential: Secret | None = None
