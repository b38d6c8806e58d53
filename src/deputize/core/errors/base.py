"""Define what every error is: a `Problem` raised in the code, described once by an `ErrorSpec`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from deputize.core.decision import Decision
from deputize.core.sensitive.known_paths import KnownPaths


class ErrorCode(StrEnum):
    """The eleven codes an agent branches on."""

    INVALID_INPUT = "INVALID_INPUT"
    AUTHORIZATION_DENIED = "AUTHORIZATION_DENIED"
    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    RATE_LIMITED = "RATE_LIMITED"
    UPSTREAM_FAILURE = "UPSTREAM_FAILURE"
    INTERNAL_TOOL_ERROR = "INTERNAL_TOOL_ERROR"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    PRECONDITION_FAILED = "PRECONDITION_FAILED"
    CONFLICT = "CONFLICT"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorSpec:
    """How one kind of problem looks to agents, clients, operators and people."""

    slug: str
    code: ErrorCode
    error_class: str
    number: int
    http: int
    grpc: str
    title: str
    advice: str
    retryable: bool = False
    jsonrpc: int = 0

    @property
    def e_number(self) -> str:
        return f"E{self.number}"

    @property
    def jsonrpc_code(self) -> int:
        """A code of the JSON-RPC specification where one fits, else our own below its reserved range."""
        return self.jsonrpc or -(30_000 + self.number)

    @property
    def type_uri(self) -> str:
        return f"urn:deputize:problem:{self.slug}"


class Problem(Exception):
    """A refusal or failure that a caller may see. The message holds no secret, no path and no stack.

    `nothing_happened` is True if the call had no effect, so that its idempotency key can be released. Some kinds prove
    it by themselves (`proves_nothing_happened`).
    """

    spec: ClassVar[ErrorSpec]
    proves_nothing_happened: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_ms: int | None = None,
        advice: str | None = None,
        nothing_happened: bool = False,
        decision: Decision | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, Any] = details or {}
        self.retry_after_ms = retry_after_ms
        self.advice = advice or self.spec.advice
        self._nothing_happened = nothing_happened or self.proves_nothing_happened
        self._attempts = 1
        self._decision = decision
        self._is_recorded = False
        self._is_redacted = False
        self._known_paths: KnownPaths | None = None

    @property
    def nothing_happened(self) -> bool:
        """True if the call is known to have had no effect."""
        return self._nothing_happened

    @property
    def attempts(self) -> int:
        """How many attempts were made before this was raised."""
        return self._attempts

    @property
    def decision(self) -> Decision | None:
        """The decision behind a refusal by policy; the audit entry names its rules and its record."""
        return self._decision

    @property
    def is_recorded(self) -> bool:
        """True if an audit entry of the call was committed before this was raised."""
        return self._is_recorded

    @property
    def is_redacted(self) -> bool:
        """True if something was hidden in its texts or details."""
        return self._is_redacted

    @property
    def known_paths(self) -> KnownPaths | None:
        """The paths in its texts that a driver left, because whoever reads the error knows them."""
        return self._known_paths

    def replace(
        self,
        *,
        nothing_happened: bool | None = None,
        attempts: int | None = None,
        decision: Decision | None = None,
        advice: str | None = None,
        message: str | None = None,
        details: Mapping[str, Any] | None = None,
        is_recorded: bool | None = None,
        is_redacted: bool | None = None,
        known_paths: KnownPaths | None = None,
    ) -> Self:
        """Copy this problem with other facts. Cause and traceback stay.

        One object can be raised to several calls at once, for example when they wait for the same server to start. So
        what is learned about one call is never written into a problem in place.
        """
        # Not by its constructor: authors of tools may subclass a problem with parameters of their own.
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.__cause__, other.__context__ = self.__cause__, self.__context__
        other.__suppress_context__ = self.__suppress_context__
        if nothing_happened is not None:
            other._nothing_happened = nothing_happened
        if attempts is not None:
            other._attempts = attempts
        if decision is not None:
            other._decision = decision
        if advice is not None:
            other.advice = advice
        if message is not None:
            other.message, other.args = message, (message,)
        if details is not None:
            other.details = details
        if is_recorded is not None:
            other._is_recorded = is_recorded
        if is_redacted is not None:
            other._is_redacted = is_redacted
        if known_paths is not None:
            other._known_paths = known_paths
        return other.with_traceback(self.__traceback__)
