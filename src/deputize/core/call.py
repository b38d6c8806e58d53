"""A call as a door hands it in: what is asked, in what words, with what key, and by when."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NewType

from deputize.core.definition import Told
from deputize.core.frozen import frozen
from deputize.core.questions import NONE, Ability, Answers

CallId = NewType("CallId", str)

MAX_KEY_LENGTH = 255
MAX_SESSION_LENGTH = 200


@frozen
class Callback:
    """Where the caller wants to hear of the end, signed with which of the tenant's keys, and with the result or not."""

    url: str
    secret: str = "default"
    include_result: bool = False


@frozen
class CallRequest:
    """`arguments` are the model's own words and are never changed; what is derived from them is kept beside them."""

    tool: str
    arguments: dict[str, Any]
    version: str = "latest"
    idempotency_key: str | None = None
    session: str | None = None
    step: str | None = None
    deadline_ms: int | None = None
    traceparent: str | None = None
    # "async" is answered at once and looked for later; None leaves it to the contract.
    mode: Literal["sync", "async"] | None = None
    priority: int | None = None
    # Whether a call whose time is over may go on as a run, where that can do no harm.
    may_continue: bool = False
    callback: Callback | None = None
    # Everything but the effect: the answer is what it would do.
    dry_run: bool = False
    # What its caller can be asked back, and what it says to questions that the same call came to before.
    can_answer: frozenset[Ability] = NONE
    answers: Answers | None = None
    # Set by no door: the run this asks to try again.
    retry_of: str | None = None
    # Who hears how far the tool is while the call is answered in its own request; of a run, whoever looks does.
    tell: Callable[[Told], None] | None = None

    def told_to(self, tell: Callable[[Told], None]) -> "CallRequest":
        return replace(self, tell=tell)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """One recorded change between the model's input and the call's: where, what kind, and who made it."""

    path: str
    source: str
    change: str
