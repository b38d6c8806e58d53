"""A call as a door hands it in: what is asked, in what words, with what key, and by when."""

from dataclasses import dataclass
from typing import Any, NewType

from deputize.core.frozen import frozen

CallId = NewType("CallId", str)

MAX_KEY_LENGTH = 255
MAX_SESSION_LENGTH = 200


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """One recorded change between the model's input and the call's: where, what kind, and who made it."""

    path: str
    source: str
    change: str
