"""Hooks: functions of the operator's own that stand around calls, and the few things they can say.

A hook sees a call as a copy and answers with values of this file; what they come to is for the lifecycle. It can make a
call stricter, never looser. Loaded by `catalog/importers/hooks.py`, run by `lifecycle/hooks.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from deputize.core.canonical import NotCanonical, canonical
from deputize.core.decision import Behavior, Environment, Verdict

Moment = Literal["before", "after", "failure"]
MOMENTS: Final[tuple[Moment, ...]] = ("before", "after", "failure")
ATTRIBUTE: Final = "__deputize_hook__"
MAX_CONTEXT_BYTES: Final = 16_384
MAX_TEXT: Final = 400
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class HookCall:
    """A call as a hook sees it. `arguments` are what the tool would get, as earlier hooks left them; it is a copy."""

    call_id: str
    tool: str
    version: str
    effects: str
    arguments: dict[str, Any]
    tenant: str
    user: str
    agents: tuple[str, ...]
    session: str | None
    environment: Environment
    # The call will not be made, only what it would do told.
    dry_run: bool = False
    # What the caller says to what the tool's server asked back, by the names of the questions.
    answers: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HookProblem:
    """What a call ended in, as a failure hook sees it; docs/reference/errors.md lists the slugs."""

    slug: str
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Update:
    """Other arguments for the tool: those named here, and without those in `drop`. Only from a `before` hook."""

    arguments: dict[str, Any]
    drop: list[str] | tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """Something the model should know beside the result: any JSON value. It never becomes part of the result."""

    value: Any


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence for people, among the warnings of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Permission:
    """What the hook thinks of the call. The strictest answer holds, the policy's included: `allow` overrules nobody."""

    behavior: Literal["allow", "ask", "deny", "passthrough"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """The call ends here, before anything happened."""

    reason: str


Answer = Update | Context | Message | Permission | Stop


def hook(moment: Moment) -> Callable[[Function], Function]:
    """Marks a function as a hook; `[[hooks]]` in deputize.toml puts it around tools.

    `before` takes a `HookCall`, `after` also the result, `failure` also a `HookProblem`. It may be async, and returns
    one answer, a list of them, or None.
    """

    def mark(function: Function) -> Function:
        setattr(function, ATTRIBUTE, moment)
        return function

    # Nothing is checked here: a mistake is told by whoever loads the file, and knows its name and who wanted it.
    return mark


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedHook:
    """A hook ready to run. `tools` is a glob over full names; records call it `hook:NAME`."""

    name: str
    moment: Moment
    function: Callable[..., Any]
    is_async: bool
    tools: str = "*"
    seconds: float = 1.0
    file: str = ""

    @property
    def source(self) -> str:
        return f"hook:{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooked:
    """What hooks did to one call. `did` goes on record, `context` and `messages` into the reply."""

    did: tuple[str, ...] = ()
    context: tuple[dict[str, Any], ...] = ()
    messages: tuple[str, ...] = ()
    permissions: tuple[Verdict, ...] = ()


NOTHING_SAID: Final = Hooked()


class Nonsense(ValueError):
    """A hook answered with something that is no answer; the message says what, and holds no value."""


def answers_of(said: Any, moment: Moment) -> tuple[Answer, ...]:
    """What a hook returned, as answers it may give at this moment."""
    given = () if said is None else tuple(said) if isinstance(said, list | tuple) else (said,)
    may = (Update, Context, Message, Permission, Stop) if moment == "before" else (Context, Message)
    for each in given:
        if not isinstance(each, may):
            names = ", ".join(kind.__name__ for kind in may)
            raise Nonsense(f"it answered with {type(each).__name__}; a hook {moment} a call may answer {names}")
        _require_sound(each)
    return given


def _require_sound(answer: Any) -> None:
    """The types above are only what a hook's author was asked for."""
    match answer:
        case Stop() | Permission():
            _require_text(answer.reason)
        case Message():
            _require_text(answer.text)
        case Context(value=value):
            if len(plain(value)) > MAX_CONTEXT_BYTES:
                raise Nonsense(f"its context is larger than {MAX_CONTEXT_BYTES} bytes")
        case Update(arguments=dict() as arguments, drop=list() | tuple() as drop):
            if not all(isinstance(name, str) for name in (*arguments, *drop)):
                raise Nonsense("its update does not name arguments")
            plain(arguments)
        case _:
            raise Nonsense("its update is not made of a dict of arguments and a list of names")
    if isinstance(answer, Permission) and answer.behavior not in tuple(Behavior):
        raise Nonsense("its permission is none of allow, ask, deny, passthrough")


def _require_text(text: Any) -> None:
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise Nonsense(f"its words are no text of at most {MAX_TEXT} characters")
    plain(text)


def plain(value: Any) -> bytes:
    """The canonical bytes of a value of JSON; two values with the same bytes are the same."""
    try:
        return canonical({"": value})
    except NotCanonical as error:
        raise Nonsense("it answered with a value that JSON cannot carry exactly") from error
