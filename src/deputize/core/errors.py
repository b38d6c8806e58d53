"""Everything that can go wrong, once, with its faces for every kind of reader.

    Problem
    ├── Request      the call itself: form, size, keys, deadlines, the service            E30xx
    ├── Registry     the tool: unknown, retired, not admitted, not set up                 E31xx
    ├── Permission   the caller: tokens, scopes, capabilities, policy, approval           E32xx
    ├── Validation   the values: schemas, coercion, semantics, results                    E33xx
    ├── Execution    the tool while it runs: failures, timeouts, unknown outcomes         E34xx
    ├── Upstream     what the tool depends on                                             E35xx
    ├── Secrets      credentials that could not be had                                    E36xx
    ├── Asynchronous calls that outlive their request                                     E37xx
    └── Audit        proof that could not be written                                      E38xx

Each leaf carries one `Face`: a stable slug, the agent-facing code, the error class of the tool standard, the
E-number, retryability, and its HTTP, JSON-RPC and gRPC codes, with what a person should do next. Doors translate
faces and add nothing; `docs/reference/errors.md` is generated from them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from deputize.core.decision import Decision


class Code(StrEnum):
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
class Face:
    """How one kind of problem looks to agents, clients, operators and people."""

    slug: str
    code: Code
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

    `nothing_happened` says that no effect can have taken place, which is what lets a claim be released; some kinds
    say so by their nature.
    """

    face: ClassVar[Face]
    proves_nothing_happened: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_ms: int | None = None,
        advice: str | None = None,
        nothing_happened: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, Any] = details or {}
        self.retry_after_ms = retry_after_ms
        self.advice = advice or self.face.advice
        self.nothing_happened = nothing_happened or self.proves_nothing_happened
        self.attempts = 1
        # Whose rules said no, where rules did: the refusal's entry names them and the record they were decided from.
        self.decision: Decision | None = None


class Request(Problem):
    """The call itself could not be taken."""


class Registry(Problem):
    """The tool cannot be called as asked."""


class Permission(Problem):
    """The caller may not do this."""


class Validation(Problem):
    """The values do not fit the contract."""


class Execution(Problem):
    """The tool was started and did not end well."""


class Upstream(Problem):
    """Something the tool depends on failed."""


class Secrets(Problem):
    """A credential could not be had."""

    # What the server that refused said about how to get in (RFC 9110), as it came; read by nobody but us.
    challenge: str = ""
    # Whether it did not know the credential at all (401), rather than what was asked for with it (403).
    unknown: bool = False


class Asynchronous(Problem):
    """A call that outlives its request met a problem."""


class Audit(Problem):
    """The proof of a call could not be written, so the call was not made or not released."""


class Internal(Request):
    face = Face(
        slug="internal", code=Code.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3000, http=500,
        grpc="INTERNAL", jsonrpc=-32603, retryable=True, title="Internal error",
        advice="Try again; if it stays, give the trace id to whoever runs this gateway.",
    )  # fmt: skip


class Unavailable(Request):
    face = Face(
        slug="unavailable", code=Code.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3001, http=503,
        grpc="UNAVAILABLE", retryable=True, title="Service not available",
        advice="Wait and try again with the same idempotency key; /readyz says what is missing.",
    )  # fmt: skip


class DeadlineExceeded(Request):
    proves_nothing_happened = True
    face = Face(
        slug="deadline-exceeded", code=Code.DEADLINE_EXCEEDED, error_class="timeout", number=3002, http=504,
        grpc="DEADLINE_EXCEEDED", retryable=True, title="Deadline passed before the tool was started",
        advice="Give the call more time (deadline_ms), or try again when the service is less busy.",
    )  # fmt: skip


class RateLimited(Request):
    face = Face(
        slug="rate-limited", code=Code.RATE_LIMITED, error_class="rate_limited", number=3003, http=429,
        grpc="RESOURCE_EXHAUSTED", retryable=True, title="Too many calls",
        advice="Wait as long as retry_after_ms says, then try again.",
    )  # fmt: skip


class Malformed(Request):
    face = Face(
        slug="malformed", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3004, http=400,
        grpc="INVALID_ARGUMENT", jsonrpc=-32600, title="Request not understood",
        advice="Compare the request with the API document at /docs.",
    )  # fmt: skip


class TooLarge(Request):
    face = Face(
        slug="too-large", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3005, http=413,
        grpc="INVALID_ARGUMENT", title="Request too large",
        advice="Send less, or pass a reference to the data instead of the data.",
    )  # fmt: skip


class KeyRequired(Request):
    face = Face(
        slug="key-required", code=Code.PRECONDITION_FAILED, error_class="invalid_arguments", number=3006, http=400,
        grpc="FAILED_PRECONDITION", title="Idempotency key required",
        advice="Send an Idempotency-Key header (over JSON-RPC: idempotency_key); the SDK and the CLI do it for you.",
    )  # fmt: skip


class KeyReused(Request):
    face = Face(
        slug="key-reused", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3007, http=422,
        grpc="INVALID_ARGUMENT", title="Idempotency key was used for another request",
        advice="Use a new key for a new request; use the old key only to repeat exactly the same one.",
    )  # fmt: skip


class InFlight(Request):
    face = Face(
        slug="in-flight", code=Code.CONFLICT, error_class="execution_failed", number=3008, http=409,
        grpc="ABORTED", retryable=True, title="This call is still running",
        advice="Wait, then repeat it with the same key, or look at /v1/calls/{call_id}.",
    )  # fmt: skip


class NoSuchRoute(Request):
    face = Face(
        slug="no-such-route", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3009, http=404,
        grpc="UNIMPLEMENTED", jsonrpc=-32601, title="Nothing is served here",
        advice="See /docs for what is served.",
    )  # fmt: skip


class MethodNotAllowed(Request):
    face = Face(
        slug="method-not-allowed", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3010, http=405,
        grpc="UNIMPLEMENTED", title="Method not allowed here",
        advice="Use a method from the Allow header.",
    )  # fmt: skip


class UnsupportedMedia(Request):
    face = Face(
        slug="unsupported-media", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3011, http=415,
        grpc="INVALID_ARGUMENT", title="Only JSON is understood here",
        advice="Send the body as application/json.",
    )  # fmt: skip


class ParseFailed(Request):
    face = Face(
        slug="parse-failed", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3012, http=400,
        grpc="INVALID_ARGUMENT", jsonrpc=-32700, title="The body is not JSON",
        advice="Send one JSON value in UTF-8, without NUL characters, lone surrogates or numbers beyond 2^53.",
    )  # fmt: skip


class BudgetSpent(Request):
    proves_nothing_happened = True
    face = Face(
        slug="budget-spent", code=Code.RATE_LIMITED, error_class="rate_limited", number=3013, http=429,
        grpc="RESOURCE_EXHAUSTED", title="The budget for this is spent",
        advice="Wait until the budget in details begins anew, or ask its owner to raise it.",
    )  # fmt: skip


class TooManyAtOnce(Request):
    proves_nothing_happened = True
    face = Face(
        slug="too-many-at-once", code=Code.RATE_LIMITED, error_class="rate_limited", number=3014, http=429,
        grpc="RESOURCE_EXHAUSTED", retryable=True, title="Too many of these calls run at once",
        advice="Wait for one of them to end, then try again.",
    )  # fmt: skip


class Runaway(Request):
    proves_nothing_happened = True
    face = Face(
        slug="runaway", code=Code.RATE_LIMITED, error_class="rate_limited", number=3015, http=429,
        grpc="RESOURCE_EXHAUSTED", title="This looks like a loop that ran away",
        advice="The same call was made again and again, or costs rise steeply: stop, and look at what the agent does.",
    )  # fmt: skip


class LimitsUnavailable(Request):
    proves_nothing_happened = True
    face = Face(
        slug="limits-unavailable", code=Code.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3016,
        http=503, grpc="UNAVAILABLE", retryable=True, title="Limits cannot be counted now, so the answer is no",
        advice="Try again; the rule in details says what happens while its counters are away.",
    )  # fmt: skip


class ToolNotFound(Registry):
    face = Face(
        slug="tool-not-found", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3101, http=404,
        grpc="NOT_FOUND", title="No such tool",
        advice="List the tools you can call: deputize tool list, or GET /v1/tools.",
    )  # fmt: skip


class VersionNotFound(Registry):
    face = Face(
        slug="version-not-found", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3102, http=404,
        grpc="NOT_FOUND", title="No such version of this tool",
        advice="Ask for one of the versions listed in details.",
    )  # fmt: skip


class VersionConflict(Registry):
    face = Face(
        slug="version-conflict", code=Code.CONFLICT, error_class="invalid_arguments", number=3103, http=409,
        grpc="ALREADY_EXISTS", title="This version exists with another content, or the name is taken",
        advice="Raise the version: a registered version never changes.",
    )  # fmt: skip


class ToolRetired(Registry):
    face = Face(
        slug="tool-retired", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3104, http=410,
        grpc="NOT_FOUND", title="This version of the tool was retired",
        advice="Use the replacement named in details, or ask for the latest version.",
    )  # fmt: skip


class NotAdmitted(Registry):
    face = Face(
        slug="not-admitted", code=Code.INVALID_INPUT, error_class="schema_validation_failed", number=3105, http=422,
        grpc="INVALID_ARGUMENT", title="The tool cannot be registered as declared",
        advice="Mend every reason listed in details, then register it again.",
    )  # fmt: skip


class SearchFailed(Registry):
    face = Face(
        slug="search-failed", code=Code.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3106, http=503,
        grpc="UNAVAILABLE", retryable=True, title="Search is not available",
        advice="Try again, or list the tools instead.",
    )  # fmt: skip


class ToolDisabled(Registry):
    face = Face(
        slug="tool-disabled", code=Code.PRECONDITION_FAILED, error_class="capability_gap", number=3107, http=409,
        grpc="FAILED_PRECONDITION", title="This tool cannot be called now",
        advice="Ask an administrator to make it available, or use another tool.",
    )  # fmt: skip


class RequiresSetup(Registry):
    face = Face(
        slug="requires-setup", code=Code.PRECONDITION_FAILED, error_class="setup_required", number=3108, http=424,
        grpc="FAILED_PRECONDITION", title="This tool needs setting up first",
        advice="Whoever runs this gateway must do what details say.",
    )  # fmt: skip


class ToolDrifted(Registry):
    proves_nothing_happened = True
    face = Face(
        slug="tool-drifted", code=Code.PRECONDITION_FAILED, error_class="policy_blocked", number=3109, http=409,
        grpc="FAILED_PRECONDITION", title="The server changed this tool since somebody agreed to it",
        advice="Ask an administrator to look at the change with deputize servers review.",
    )  # fmt: skip


class ServerNotFound(Registry):
    face = Face(
        slug="server-not-found", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3110, http=404,
        grpc="NOT_FOUND", title="There is no such server",
        advice="List the servers with deputize servers list; the settings name them.",
    )  # fmt: skip


class ChangeNotFound(Registry):
    face = Face(
        slug="change-not-found", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3111, http=404,
        grpc="NOT_FOUND", title="There is no such change waiting",
        advice="See what waits with deputize servers review SERVER; somebody may have decided it already.",
    )  # fmt: skip


class NotOffered(Registry):
    face = Face(
        slug="not-offered", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3112, http=404,
        grpc="NOT_FOUND", title="There is no such resource or prompt",
        advice="List what there is: resources/list, resources/templates/list and prompts/list show what you can have.",
    )  # fmt: skip


class TokenMissing(Permission):
    face = Face(
        slug="token-missing", code=Code.AUTHORIZATION_DENIED, error_class="credential_missing", number=3200, http=401,
        grpc="UNAUTHENTICATED", title="No bearer token",
        advice="Send Authorization: Bearer TOKEN; in development, deputize token prints one.",
    )  # fmt: skip


class TokenExpired(Permission):
    face = Face(
        slug="token-expired", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3201, http=401,
        grpc="UNAUTHENTICATED", title="The token has expired",
        advice="Get a new token from the issuer.",
    )  # fmt: skip


class TokenSignature(Permission):
    face = Face(
        slug="token-signature", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3202, http=401,
        grpc="UNAUTHENTICATED", title="The token's signature does not verify",
        advice="Get a token from an issuer this gateway trusts; check that the issuer's keys are current.",
    )  # fmt: skip


class TokenMalformed(Permission):
    face = Face(
        slug="token-malformed", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3203, http=401,
        grpc="UNAUTHENTICATED", title="This is not a token",
        advice="Send a JWT; a value with ${ in it was never expanded by the client.",
    )  # fmt: skip


class NotInCapability(Permission):
    face = Face(
        slug="not-in-capability", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3204,
        http=403, grpc="PERMISSION_DENIED", title="The token does not cover this version of the tool",
        advice="Ask for a version inside the token's range, or get a token that lists it.",
    )  # fmt: skip


class PolicyFailed(Permission):
    face = Face(
        slug="policy-failed", code=Code.AUTHORIZATION_DENIED, error_class="policy_blocked", number=3205, http=503,
        grpc="UNAVAILABLE", retryable=True, title="The policy could not be evaluated, so the answer is no",
        advice="Try again; whoever runs this gateway finds the reason under the trace id.",
    )  # fmt: skip


class PermissionDenied(Permission):
    face = Face(
        slug="permission-denied", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3206,
        http=403, grpc="PERMISSION_DENIED", title="Not allowed",
        advice="The rule in details says why; ask whoever owns it.",
    )  # fmt: skip


class SubjectUnknown(Permission):
    face = Face(
        slug="subject-unknown", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3207, http=403,
        grpc="PERMISSION_DENIED", title="The subject of this token is not known",
        advice="Register the subject, or use a token of one that is.",
    )  # fmt: skip


class TokenAudience(Permission):
    face = Face(
        slug="token-audience", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3208, http=401,
        grpc="UNAUTHENTICATED", title="The token is meant for somebody else",
        advice="Get a token whose audience is this gateway.",
    )  # fmt: skip


class TokenIssuer(Permission):
    face = Face(
        slug="token-issuer", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3209, http=401,
        grpc="UNAUTHENTICATED", title="The token's issuer is not trusted here",
        advice="Get a token from an issuer in deputize.toml, or add the issuer there.",
    )  # fmt: skip


class Revoked(Permission):
    face = Face(
        slug="revoked", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3210, http=401,
        grpc="UNAUTHENTICATED", title="This authority was revoked",
        advice="Ask whoever revoked it; a new token for a revoked subject is refused as well.",
    )  # fmt: skip


class ScopeMissing(Permission):
    face = Face(
        slug="scope-missing", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3211, http=403,
        grpc="PERMISSION_DENIED", title="The token lacks a scope this needs",
        advice="Get a token that carries the scopes this needs.",
    )  # fmt: skip


class ApprovalRequired(Permission):
    face = Face(
        slug="approval-required", code=Code.APPROVAL_REQUIRED, error_class="policy_blocked", number=3212, http=403,
        grpc="FAILED_PRECONDITION", title="A human must approve this call",
        advice="Look at the ticket in details; the call goes on by itself once it is approved.",
    )  # fmt: skip


class ApprovalRejected(Permission):
    face = Face(
        slug="approval-rejected", code=Code.AUTHORIZATION_DENIED, error_class="approval_rejected", number=3213,
        http=403, grpc="PERMISSION_DENIED", title="A human said no",
        advice="Read the reason in details before asking again in another way.",
    )  # fmt: skip


class ApprovalExpired(Permission):
    face = Face(
        slug="approval-expired", code=Code.AUTHORIZATION_DENIED, error_class="approval_rejected", number=3226, http=403,
        grpc="PERMISSION_DENIED", title="Nobody decided in time, so the answer is no",
        advice="Make the call again with a new idempotency key if it is still wanted; people are then asked anew.",
    )  # fmt: skip


class ApprovalVoid(Permission):
    face = Face(
        slug="approval-void", code=Code.AUTHORIZATION_DENIED, error_class="approval_rejected", number=3227, http=403,
        grpc="PERMISSION_DENIED", title="What was approved is not what would happen now",
        advice="Make the call again with a new idempotency key; people are asked about it as it is now.",
    )  # fmt: skip


class NotAnApprover(Permission):
    face = Face(
        slug="not-an-approver", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3228, http=403,
        grpc="PERMISSION_DENIED", title="Somebody else must decide this",
        advice="The rule in details says why; the ticket shows who may decide.",
    )  # fmt: skip


class ApprovalChanged(Permission):
    face = Face(
        slug="approval-changed", code=Code.CONFLICT, error_class="approval_rejected", number=3229, http=409,
        grpc="ABORTED", title="The ticket is not the one that was seen",
        advice="Look at the ticket again, and decide about what it says now.",
    )  # fmt: skip


class SignInFailed(Permission):
    face = Face(
        slug="sign-in-failed", code=Code.AUTHORIZATION_DENIED, error_class="credential_missing", number=3230, http=401,
        grpc="UNAUTHENTICATED", title="Nobody is signed in",
        advice="Sign in again; if it stays, ask whoever runs this gateway.",
    )  # fmt: skip


class SwitchedOff(Permission):
    face = Face(
        slug="switched-off", code=Code.AUTHORIZATION_DENIED, error_class="policy_blocked", number=3214, http=403,
        grpc="PERMISSION_DENIED", title="Somebody switched this off",
        advice="Ask whoever switched it off; an administrator can turn it on again: deputize switch on.",
    )  # fmt: skip


class HookBlocked(Permission):
    face = Face(
        slug="hook-blocked", code=Code.AUTHORIZATION_DENIED, error_class="hook_blocked", number=3215, http=403,
        grpc="PERMISSION_DENIED", title="A hook stopped this call",
        advice="The hook in details says why; ask whoever runs this gateway.",
    )  # fmt: skip


class PolicyInvalid(Permission):
    face = Face(
        slug="policy-invalid", code=Code.INVALID_INPUT, error_class="schema_validation_failed", number=3216, http=422,
        grpc="INVALID_ARGUMENT", title="These policies cannot take force",
        advice="Mend what details list, by file and line; deputize policy check finds the same before you send them.",
    )  # fmt: skip


class ExchangeRefused(Permission):
    face = Face(
        slug="exchange-refused", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3217,
        http=400, grpc="INVALID_ARGUMENT", title="This token cannot be exchanged like that",
        advice="Ask for no more scopes, tools or time than the token in hand has.",
    )  # fmt: skip


class GrantEnded(Permission):
    face = Face(
        slug="grant-ended", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3218, http=401,
        grpc="UNAUTHENTICATED", title="The delegation behind this call has ended",
        advice="Ask the person it came from to delegate again.",
    )  # fmt: skip


class GrantNotFound(Permission):
    face = Face(
        slug="grant-not-found", code=Code.PRECONDITION_FAILED, error_class="invalid_arguments", number=3219, http=404,
        grpc="NOT_FOUND", title="No such delegation",
        advice="List your delegations: deputize grants list, or GET /v1/grants.",
    )  # fmt: skip


class CallbackRefused(Permission):
    face = Face(
        slug="callback-refused", code=Code.AUTHORIZATION_DENIED, error_class="permission_denied", number=3225, http=403,
        grpc="PERMISSION_DENIED", title="Nothing may be told to this address",
        advice="Use an https address, or have whoever runs this gateway add the host to webhooks.hosts.",
    )  # fmt: skip


class SchemaViolation(Validation):
    face = Face(
        slug="schema-violation", code=Code.INVALID_INPUT, error_class="schema_validation_failed", number=3301,
        http=400, grpc="INVALID_ARGUMENT", jsonrpc=-32602, title="The arguments do not fit the tool's schema",
        advice="Mend the arguments at the paths in details; the example there shows a valid call.",
    )  # fmt: skip


class CoercionFailed(Validation):
    face = Face(
        slug="coercion-failed", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3302, http=400,
        grpc="INVALID_ARGUMENT", jsonrpc=-32602, title="A value cannot be read as its declared type",
        advice="Send the value in the type the schema names.",
    )  # fmt: skip


class ResultInvalid(Validation):
    face = Face(
        slug="result-invalid", code=Code.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3303, http=502,
        grpc="INTERNAL", title="The tool's result does not fit its schema",
        advice="The tool is at fault, not the call; tell its author. If it changes things, it may have changed them.",
    )  # fmt: skip


class RedactionFailed(Validation):
    face = Face(
        slug="redaction-failed", code=Code.INTERNAL_TOOL_ERROR, error_class="result_redacted", number=3304, http=500,
        grpc="INTERNAL", title="The call could not be recorded without sensitive values, so it was not made",
        advice="Tell whoever runs this gateway; the trace id helps.",
    )  # fmt: skip


class InjectionDetected(Validation):
    face = Face(
        slug="injection-detected", code=Code.INVALID_INPUT, error_class="policy_blocked", number=3305, http=400,
        grpc="INVALID_ARGUMENT", title="The arguments look like an attack",
        advice="Remove what details point at; input is never rewritten for you.",
    )  # fmt: skip


class SemanticViolation(Validation):
    proves_nothing_happened = True
    face = Face(
        slug="semantic-violation", code=Code.PRECONDITION_FAILED, error_class="invalid_arguments", number=3306,
        http=422, grpc="FAILED_PRECONDITION", title="The tool cannot act on these values",
        advice="The message says which value makes no sense to the tool and why; nothing was done.",
    )  # fmt: skip


class PredicateFailed(Validation):
    face = Face(
        slug="predicate-failed", code=Code.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3307, http=502,
        grpc="INTERNAL", title="The tool's result fails a sanity check",
        advice="Do not rely on the result; if the tool changes things, look at what it changed.",
    )  # fmt: skip


class PreconditionFailed(Validation):
    proves_nothing_happened = True
    face = Face(
        slug="precondition-failed", code=Code.PRECONDITION_FAILED, error_class="invalid_arguments", number=3308,
        http=412, grpc="FAILED_PRECONDITION", title="The tool's preview says that the call would fail",
        advice="Bring about the preconditions in details that do not hold, then call again.",
    )  # fmt: skip


class RoundRefused(Validation):
    proves_nothing_happened = True
    face = Face(
        slug="round-refused", code=Code.INVALID_INPUT, error_class="invalid_arguments", number=3320, http=400,
        grpc="INVALID_ARGUMENT", jsonrpc=-32602, title="These answers belong to no question that was asked here",
        advice="Give the round back as it came, with the same tool and arguments, within the hour; else call anew.",
    )  # fmt: skip


class AnswersInvalid(Validation):
    proves_nothing_happened = True
    face = Face(
        slug="answers-invalid", code=Code.INVALID_INPUT, error_class="schema_validation_failed", number=3321, http=400,
        grpc="INVALID_ARGUMENT", jsonrpc=-32602, title="An answer does not fit its question",
        advice="Mend the answers that details name, and send them with the same round.",
    )  # fmt: skip


class ToolFailed(Execution):
    face = Face(
        slug="tool-failed", code=Code.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3401, http=502,
        grpc="INTERNAL", title="The tool failed",
        advice="Read the tool's message; the same arguments will fail again.",
    )  # fmt: skip


class ToolTimeout(Execution):
    face = Face(
        slug="tool-timeout", code=Code.DEADLINE_EXCEEDED, error_class="timeout", number=3402, http=504,
        grpc="DEADLINE_EXCEEDED", retryable=True, title="The tool took longer than its deadline",
        advice="Try again with more time, or ask for less at once.",
    )  # fmt: skip


class OutOfMemory(Execution):
    face = Face(
        slug="out-of-memory", code=Code.RESOURCE_EXHAUSTED, error_class="execution_failed", number=3403, http=500,
        grpc="RESOURCE_EXHAUSTED", title="The tool ran out of memory",
        advice="Ask for less at once, or raise the tool's memory limit.",
    )  # fmt: skip


class Crashed(Execution):
    face = Face(
        slug="crashed", code=Code.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3404, http=502,
        grpc="INTERNAL", title="The tool's process ended by itself",
        advice="Tell the tool's author; the trace id helps.",
    )  # fmt: skip


class SandboxFailed(Execution):
    face = Face(
        slug="sandbox-failed", code=Code.INTERNAL_TOOL_ERROR, error_class="sandbox_violation", number=3405, http=503,
        grpc="UNAVAILABLE", retryable=True, title="No sandbox could be made for the tool",
        advice="Try again; whoever runs this gateway should look at deputize doctor.",
    )  # fmt: skip


class EgressDenied(Execution):
    face = Face(
        slug="egress-denied", code=Code.AUTHORIZATION_DENIED, error_class="sandbox_violation", number=3406, http=403,
        grpc="PERMISSION_DENIED", title="The tool tried to reach a place it may not",
        advice="Add the host to the tool's network policy, if it belongs there.",
    )  # fmt: skip


class ResourceLimit(Execution):
    face = Face(
        slug="resource-limit", code=Code.RESOURCE_EXHAUSTED, error_class="execution_failed", number=3407, http=429,
        grpc="RESOURCE_EXHAUSTED", title="The tool used more than it may",
        advice="Ask for less at once, or raise the tool's limits.",
    )  # fmt: skip


class OutcomeUnknown(Execution):
    face = Face(
        slug="outcome-unknown", code=Code.CONFLICT, error_class="partial_failure", number=3408, http=504,
        grpc="UNKNOWN", title="Whether the tool acted is not known",
        advice="Do not repeat it blindly: look at the system it acts on, or wait for reconciliation of this call.",
    )  # fmt: skip


class RecordingPending(Execution):
    face = Face(
        slug="recording-pending", code=Code.CONFLICT, error_class="partial_failure", number=3409, http=504,
        grpc="UNKNOWN", title="The tool acted, but its outcome is not stored yet",
        advice="Look at /v1/calls/{call_id} in a moment; repeating with the same key is safe.",
    )  # fmt: skip


class ToolPrecondition(Execution):
    proves_nothing_happened = True
    face = Face(
        slug="tool-precondition", code=Code.PRECONDITION_FAILED, error_class="execution_failed", number=3411, http=409,
        grpc="FAILED_PRECONDITION", title="The tool found its preconditions not met",
        advice="Bring about what the tool's message asks for, then call again.",
    )  # fmt: skip


class ToolConflict(Execution):
    proves_nothing_happened = True
    face = Face(
        slug="tool-conflict", code=Code.CONFLICT, error_class="execution_failed", number=3412, http=409,
        grpc="ABORTED", retryable=True, title="Somebody changed the same thing at the same time",
        advice="Read the current state, then call again with a new key.",
    )  # fmt: skip


class DidNotHappen(Execution):
    proves_nothing_happened = True
    face = Face(
        slug="did-not-happen", code=Code.UPSTREAM_FAILURE, error_class="execution_failed", number=3413, http=502,
        grpc="ABORTED", retryable=True, title="It was not known what became of this call; it did not happen",
        advice="Call again if it is still wanted; the same key is free again.",
    )  # fmt: skip


class ServerAsksBack(Execution):
    face = Face(
        slug="server-asks-back", code=Code.PRECONDITION_FAILED, error_class="policy_blocked", number=3420, http=409,
        grpc="FAILED_PRECONDITION", title="The tool's server asks something back that it may not ask",
        advice="Ask whoever runs this gateway to allow it in servers.asks; then call with a new idempotency key.",
    )  # fmt: skip


class CallerCannotAnswer(Execution):
    face = Face(
        slug="caller-cannot-answer", code=Code.PRECONDITION_FAILED, error_class="capability_gap", number=3421,
        http=409, grpc="FAILED_PRECONDITION", title="The tool's server asks what this caller cannot answer",
        advice="Call from a client that declares what details name; through REST, name it in can_answer.",
    )  # fmt: skip


class QuestionRefused(Execution):
    face = Face(
        slug="question-refused", code=Code.UPSTREAM_FAILURE, error_class="policy_blocked", number=3422, http=502,
        grpc="FAILED_PRECONDITION", title="What the tool's server asks back is not passed on",
        advice="Tell whoever runs that server what details say; nobody was asked anything.",
    )  # fmt: skip


class CircuitOpen(Upstream):
    proves_nothing_happened = True
    face = Face(
        slug="circuit-open", code=Code.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3501, http=503,
        grpc="UNAVAILABLE", retryable=True, title="The service behind the tool is being given a rest",
        advice="Wait as long as retry_after_ms says.",
    )  # fmt: skip


class UpstreamUnavailable(Upstream):
    face = Face(
        slug="upstream-unavailable", code=Code.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3502,
        http=503, grpc="UNAVAILABLE", retryable=True, title="The service behind the tool does not answer",
        advice="Try again later with the same key.",
    )  # fmt: skip


class UpstreamTimeout(Upstream):
    face = Face(
        slug="upstream-timeout", code=Code.UPSTREAM_FAILURE, error_class="timeout", number=3503, http=504,
        grpc="DEADLINE_EXCEEDED", retryable=True, title="The service behind the tool took too long",
        advice="Try again later with the same key.",
    )  # fmt: skip


class UpstreamRateLimited(Upstream):
    proves_nothing_happened = True
    face = Face(
        slug="upstream-rate-limited", code=Code.RATE_LIMITED, error_class="rate_limited", number=3504, http=429,
        grpc="RESOURCE_EXHAUSTED", retryable=True, title="The service behind the tool asks for fewer calls",
        advice="Wait as long as retry_after_ms says.",
    )  # fmt: skip


class VaultUnavailable(Secrets):
    face = Face(
        slug="vault-unavailable", code=Code.UPSTREAM_FAILURE, error_class="credential_missing", number=3601, http=503,
        grpc="UNAVAILABLE", retryable=True, title="The vault does not answer",
        advice="Try again; whoever runs this gateway should look at the vault.",
    )  # fmt: skip


class CredentialMissing(Secrets):
    face = Face(
        slug="credential-missing", code=Code.PRECONDITION_FAILED, error_class="credential_missing", number=3602,
        http=424, grpc="FAILED_PRECONDITION", title="The credential this tool needs is not in the vault",
        advice="Put the credential named in details into the vault.",
    )  # fmt: skip


class CredentialExpired(Secrets):
    face = Face(
        slug="credential-expired", code=Code.AUTHORIZATION_DENIED, error_class="credential_missing", number=3603,
        http=424, grpc="FAILED_PRECONDITION", title="The credential this tool needs has expired",
        advice="Renew the credential named in details.",
    )  # fmt: skip


class SealBroken(Secrets):
    face = Face(
        slug="seal-broken", code=Code.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3604, http=500,
        grpc="DATA_LOSS", title="A sealed value cannot be opened",
        advice="Whoever runs this gateway must restore the key it was sealed with.",
    )  # fmt: skip


class CredentialQuoted(Secrets):
    face = Face(
        slug="credential-quoted", code=Code.INTERNAL_TOOL_ERROR, error_class="result_redacted", number=3605, http=502,
        grpc="INTERNAL", title="The tool's answer quotes its credential, so it is held back",
        advice="Tell the tool's author and replace the credential. If the tool changes things, it may have done so.",
    )  # fmt: skip


class SecretsElsewhere(Secrets):
    face = Face(
        slug="secrets-elsewhere", code=Code.PRECONDITION_FAILED, error_class="capability_gap", number=3606, http=409,
        grpc="FAILED_PRECONDITION", title="This gateway keeps no secrets itself",
        advice="Put the secret into the vault named in details; the gateway only reads there.",
    )  # fmt: skip


class LinkNeeded(Secrets):
    proves_nothing_happened = True
    face = Face(
        slug="link-needed", code=Code.PRECONDITION_FAILED, error_class="credential_missing", number=3607, http=424,
        grpc="FAILED_PRECONDITION", title="The person this is for has not linked their account",
        advice="Have the person open the address in details, sign in there, and link their account.",
    )  # fmt: skip


class UpstreamSignInFailed(Secrets):
    proves_nothing_happened = True
    # The authorization server says no, and would say so again.
    final: bool = False
    face = Face(
        slug="upstream-sign-in-failed", code=Code.UPSTREAM_FAILURE, error_class="credential_missing", number=3608,
        http=502, grpc="FAILED_PRECONDITION", title="Signing in to the server did not work",
        advice="Try again; if it stays, ask whoever runs this gateway.",
    )  # fmt: skip


class QueueFull(Asynchronous):
    face = Face(
        slug="queue-full", code=Code.RESOURCE_EXHAUSTED, error_class="rate_limited", number=3701, http=503,
        grpc="RESOURCE_EXHAUSTED", retryable=True, title="Too much is waiting already",
        advice="Wait as long as retry_after_ms says.",
    )  # fmt: skip


class CallNotFound(Asynchronous):
    face = Face(
        slug="call-not-found", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3702, http=404,
        grpc="NOT_FOUND", title="No such call",
        advice="Check the id; you see only calls you made.",
    )  # fmt: skip


class Canceled(Asynchronous):
    face = Face(
        slug="canceled", code=Code.CONFLICT, error_class="canceled", number=3703, http=409,
        grpc="CANCELLED", title="The call was canceled",
        advice="Call again if it is still wanted.",
    )  # fmt: skip


class WebhookFailed(Asynchronous):
    face = Face(
        slug="webhook-failed", code=Code.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3704, http=502,
        grpc="UNAVAILABLE", retryable=True, title="The webhook could not be delivered",
        advice="Check the receiving end; the call itself is not affected.",
    )  # fmt: skip


class NotCancelable(Asynchronous):
    face = Face(
        slug="not-cancelable", code=Code.CONFLICT, error_class="capability_gap", number=3705, http=409,
        grpc="FAILED_PRECONDITION", title="This call cannot be canceled any more",
        advice="The request to cancel is recorded; wait for the outcome.",
    )  # fmt: skip


class GivenUp(Asynchronous):
    face = Face(
        slug="given-up", code=Code.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3706, http=500,
        grpc="ABORTED", title="Too many workers died while they carried this call",
        advice="Look at what the tool does to its process before asking again; details tell how often it was tried.",
    )  # fmt: skip


class TakenOver(Asynchronous):
    face = Face(
        slug="taken-over", code=Code.CONFLICT, error_class="canceled", number=3711, http=409,
        grpc="ABORTED", title="Another worker carries this call now",
        advice="Nothing to do: the tool stops here, and whoever took the call over says how it ends.",
    )  # fmt: skip


class CheckpointNotFound(Asynchronous):
    face = Face(
        slug="checkpoint-not-found", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3712, http=404,
        grpc="NOT_FOUND", title="This run has no such checkpoint that can be read",
        advice="Name one of the checkpoints listed in details.",
    )  # fmt: skip


class TicketNotFound(Asynchronous):
    face = Face(
        slug="ticket-not-found", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3713, http=404,
        grpc="NOT_FOUND", title="No such ticket",
        advice="List the open ones: deputize approvals list for what waits for a yes, deputize tickets list else.",
    )  # fmt: skip


class TicketClosed(Asynchronous):
    face = Face(
        slug="ticket-closed", code=Code.CONFLICT, error_class="execution_failed", number=3714, http=409,
        grpc="FAILED_PRECONDITION", title="This ticket needs no answer any more",
        advice="Look at the call it is about: it was settled in another way.",
    )  # fmt: skip


class NotRetryable(Asynchronous):
    face = Face(
        slug="not-retryable", code=Code.CONFLICT, error_class="capability_gap", number=3707, http=409,
        grpc="FAILED_PRECONDITION", title="This call cannot be tried again as it is",
        advice="Make a new call if it is still wanted; details say why this one is not repeated.",
    )  # fmt: skip


class DeliveryNotFound(Asynchronous):
    face = Face(
        slug="delivery-not-found", code=Code.TOOL_NOT_FOUND, error_class="unknown_tool", number=3708, http=404,
        grpc="NOT_FOUND", title="No such delivery among those that were given up",
        advice="List them: deputize webhooks deadletters, or GET /v1/webhooks/deadletters.",
    )  # fmt: skip


class StreamUnavailable(Audit):
    face = Face(
        slug="stream-unavailable", code=Code.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3801,
        http=503, grpc="UNAVAILABLE", retryable=True, title="The event stream is not available",
        advice="Try again; events are kept and delivered later.",
    )  # fmt: skip


class AuditBackpressure(Audit):
    face = Face(
        slug="audit-backpressure", code=Code.RESOURCE_EXHAUSTED, error_class="rate_limited", number=3803, http=503,
        grpc="RESOURCE_EXHAUSTED", retryable=True, title="More calls than can be recorded",
        advice="Wait a moment and try again.",
    )  # fmt: skip


class AuditUnavailable(Audit):
    face = Face(
        slug="audit-unavailable", code=Code.UPSTREAM_FAILURE, error_class="dependency_unavailable", number=3804,
        http=503, grpc="UNAVAILABLE", retryable=True, title="The call could not be recorded, so nothing is released",
        advice="Try again with the same key; /readyz says what is missing.",
    )  # fmt: skip


def every_problem() -> Iterator[type[Problem]]:
    """All leaves of the tree, in the order of their numbers."""
    leaves = (leaf for branch in Problem.__subclasses__() for leaf in branch.__subclasses__())
    return iter(sorted(leaves, key=lambda leaf: leaf.face.number))


def by_slug(slug: str) -> type[Problem]:
    """The problem a stored outcome names; unknown slugs (written by a newer release) read as `internal`."""
    return next((problem for problem in every_problem() if problem.face.slug == slug), Internal)
