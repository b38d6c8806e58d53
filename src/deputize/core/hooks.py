"""Define hooks: the operator's functions around calls, and the answers they can give.

A hook gets a copy of the call and answers with values of this module; the lifecycle applies them. It can make a call
stricter, never looser. `catalog/importers/hooks.py` loads hooks, `lifecycle/hooks.py` runs them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.decision import Behavior, Environment, Verdict

HookMoment = Literal["before", "after", "failure"]
HOOK_MOMENTS: Final[tuple[HookMoment, ...]] = ("before", "after", "failure")
HOOK_ATTRIBUTE: Final = "__deputize_hook__"
MAX_CONTEXT_BYTES: Final = 16_384
MAX_TEXT: Final = 400
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class HookCall:
    """A copy of the call, for a hook. `arguments` are what the tool would get, with the updates of earlier hooks."""

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
    # True if the call only reports what it would do.
    dry_run: bool = False
    # The caller's input responses, by the names of the server's input requests.
    input_responses: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HookProblem:
    """The error of a call, for a failure hook; docs/reference/errors.md lists the slugs."""

    slug: str
    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Update:
    """Change the arguments: set those given here, and remove those in `drop`. Only for `before` hooks."""

    arguments: dict[str, Any]
    drop: list[str] | tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """Give the model a JSON value beside the result. It never becomes part of the result."""

    value: Any


@dataclass(frozen=True, slots=True)
class Message:
    """Add a sentence for people to the warnings of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Permission:
    """Vote on the call. The strictest answer wins, including the policies': `allow` overrules none."""

    behavior: Literal["allow", "ask", "deny", "passthrough"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the call before it has any effect."""

    reason: str


HookAnswer = Update | Context | Message | Permission | Stop


def hook(moment: HookMoment) -> Callable[[Function], Function]:
    """Mark a function as a hook; `[[hooks]]` in deputize.toml activates it.

    `before` takes a `HookCall`, `after` also the result, `failure` also a `HookProblem`. It may be async, and returns
    one answer, a list of them, or None.
    """

    def mark(function: Function) -> Function:
        setattr(function, HOOK_ATTRIBUTE, moment)
        return function

    # Nothing is checked here: the loader reports mistakes, because it knows the file and the setting.
    return mark


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedHook:
    """A hook that is ready to run. `tools` is a glob over full names; audit entries name it `hook:NAME`."""

    name: str
    moment: HookMoment
    function: Callable[..., Any]
    is_async: bool
    tools: str = "*"
    seconds: float = 1.0
    file: str = ""

    @property
    def source(self) -> str:
        return f"hook:{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class HookEffects:
    """What hooks did to one call. `actions` go into the audit entry, `context` and `messages` into the reply."""

    actions: tuple[str, ...] = ()
    context: tuple[dict[str, Any], ...] = ()
    messages: tuple[str, ...] = ()
    permissions: tuple[Verdict, ...] = ()
    # True if a hook failed after the tool, where its failure changes only the reply.
    has_failure: bool = False


NO_HOOK_EFFECTS: Final = HookEffects()


class InvalidHookAnswer(ValueError):
    """A hook returned something that is not an answer. The message contains no values."""


def parse_hook_answers(returned_value: Any, moment: HookMoment) -> tuple[HookAnswer, ...]:
    """Parse what a hook returned as answers that are allowed at this moment."""
    answers = (
        ()
        if returned_value is None
        else tuple(returned_value)
        if isinstance(returned_value, list | tuple)
        else (returned_value,)
    )
    allowed_types = (Update, Context, Message, Permission, Stop) if moment == "before" else (Context, Message)
    for each in answers:
        if not isinstance(each, allowed_types):
            names = ", ".join(kind.__name__ for kind in allowed_types)
            raise InvalidHookAnswer(f"it returned {type(each).__name__}; {moment} hooks may return {names}")
        _check_answer(each)
    return answers


def _check_answer(answer: Any) -> None:
    """Check the values of an answer, since type annotations are not enforced at run time."""
    match answer:
        case Stop() | Permission():
            _check_text(answer.reason)
        case Message():
            _check_text(answer.text)
        case Context(value=value):
            if len(canonicalize_value(value)) > MAX_CONTEXT_BYTES:
                raise InvalidHookAnswer(f"its Context is larger than {MAX_CONTEXT_BYTES} bytes")
        case Update(arguments=dict() as arguments, drop=list() | tuple() as drop):
            if not all(isinstance(name, str) for name in (*arguments, *drop)):
                raise InvalidHookAnswer("the names in its Update must be strings")
            canonicalize_value(arguments)
        case _:
            raise InvalidHookAnswer("its Update needs a dict of arguments and a list of names to drop")
    if isinstance(answer, Permission) and answer.behavior not in tuple(Behavior):
        raise InvalidHookAnswer("its Permission must be allow, ask, deny or passthrough")


def _check_text(text: Any) -> None:
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise InvalidHookAnswer(f"its reason or message must be a string of at most {MAX_TEXT} characters")
    canonicalize_value(text)


def canonicalize_value(value: Any) -> bytes:
    """Write a JSON value in canonical form; equal values have equal bytes."""
    try:
        return canonicalize({"": value})
    except NotCanonical as error:
        raise InvalidHookAnswer("it returned a value that JSON cannot represent exactly") from error
