"""Define every error once, for all interfaces: one module per branch of the tree.

    Problem
    ├── RequestProblem    the request: form, size, keys, deadlines, limits, the service     E30xx  request.py
    ├── RegistryProblem   the tool or server: unknown, retired, not set up                  E31xx  registry.py
    ├── PermissionProblem the caller: tokens, scopes, policies, approvals                   E32xx  permission.py
    ├── ValidationProblem the values: arguments, results, answers                           E33xx  validation.py
    ├── ExecutionProblem  the tool while it runs: failures, timeouts, unknown outcomes      E34xx  execution.py
    ├── UpstreamProblem   the services a tool depends on                                    E35xx  upstream.py
    ├── SecretsProblem    credentials and sealed values                                     E36xx  secrets.py
    ├── AsyncProblem      calls that outlive their request                                  E37xx  asynchronous.py
    └── AuditProblem      the audit trail                                                   E38xx  audit.py

Each leaf has one `ErrorSpec`: a stable slug, the code an agent branches on, the error class of the tool standard, the
E-number, whether a retry can help, its HTTP, JSON-RPC and gRPC codes, and what to do next. Interfaces translate specs
and add nothing; `docs/reference/errors.md` is generated from them.
"""

from collections.abc import Iterator

from deputize.core.errors.asynchronous import (
    AsyncProblem,
    CallNotFound,
    Canceled,
    CheckpointNotFound,
    DeliveryNotFound,
    HumanTaskClosed,
    HumanTaskNotFound,
    NotCancelable,
    NotRetryable,
    RunOwnershipLost,
    TooManyTakeovers,
)
from deputize.core.errors.audit import (
    AuditProblem,
    AuditUnavailable,
    DatabaseWentBack,
)
from deputize.core.errors.base import (
    ErrorCode,
    ErrorSpec,
    Problem,
)
from deputize.core.errors.execution import (
    ClientCapabilityMissing,
    EffectDidNotHappen,
    EgressDenied,
    ExecutionProblem,
    InputRequestNotAllowed,
    InputRequestRejected,
    MutationClassViolated,
    OutcomeUnknown,
    RecordingPending,
    ResourceLimitExceeded,
    SourcesDisagree,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    ToolTimeout,
)
from deputize.core.errors.permission import (
    ApprovalExpired,
    ApprovalRejected,
    ApprovalRequestChanged,
    ApprovalRequired,
    ApprovalVoid,
    AuthorityRevoked,
    CallbackRefused,
    DisabledByKillSwitch,
    ErasureNotFound,
    ExchangeRefused,
    GrantEnded,
    GrantNotFound,
    HookBlocked,
    NotAnApprover,
    OperatorConfirmationRequired,
    PermissionDenied,
    PermissionProblem,
    PolicyFailed,
    PolicyInvalid,
    ScopeMissing,
    SignInFailed,
    TokenAudienceMismatch,
    TokenExpired,
    TokenIssuerUntrusted,
    TokenMalformed,
    TokenMissing,
    TokenSignatureInvalid,
    VersionNotInCapability,
)
from deputize.core.errors.registry import (
    RegistryProblem,
    ResourceNotFound,
    ServerChangeNotFound,
    ServerNotFound,
    ToolDisabled,
    ToolDrifted,
    ToolNotAdmitted,
    ToolNotFound,
    ToolRequiresSetup,
    ToolRetired,
    VersionConflict,
    VersionInUse,
    VersionNotFound,
)
from deputize.core.errors.request import (
    BudgetExhausted,
    CallInFlight,
    ConcurrencyLimitReached,
    DeadlineExceeded,
    IdempotencyKeyRequired,
    IdempotencyKeyReused,
    InternalError,
    LimitsUnavailable,
    MalformedRequest,
    MethodNotAllowed,
    NoSuchRoute,
    ParseFailed,
    RateLimited,
    RequestProblem,
    RequestTooLarge,
    RestoredSince,
    RunawayLoop,
    Unavailable,
    UnsupportedMedia,
)
from deputize.core.errors.secrets import (
    CredentialExpired,
    CredentialInResult,
    CredentialMissing,
    ExternalVaultInUse,
    LinkedAccountRequired,
    SecretsProblem,
    UnsealFailed,
    UpstreamSignInFailed,
    VaultUnavailable,
)
from deputize.core.errors.upstream import (
    UpstreamProblem,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.core.errors.validation import (
    InputResponsesInvalid,
    PreconditionFailed,
    PredicateFailed,
    ResultInvalid,
    RoundTokenRejected,
    SchemaViolation,
    SemanticViolation,
    ValidationProblem,
)

__all__ = [
    "ApprovalExpired",
    "ApprovalRejected",
    "ApprovalRequestChanged",
    "ApprovalRequired",
    "ApprovalVoid",
    "AsyncProblem",
    "AuditProblem",
    "AuditUnavailable",
    "AuthorityRevoked",
    "BudgetExhausted",
    "CallInFlight",
    "CallNotFound",
    "CallbackRefused",
    "Canceled",
    "CheckpointNotFound",
    "ClientCapabilityMissing",
    "ConcurrencyLimitReached",
    "CredentialExpired",
    "CredentialInResult",
    "CredentialMissing",
    "DatabaseWentBack",
    "DeadlineExceeded",
    "DeliveryNotFound",
    "DisabledByKillSwitch",
    "EffectDidNotHappen",
    "EgressDenied",
    "ErasureNotFound",
    "ErrorCode",
    "ErrorSpec",
    "ExchangeRefused",
    "ExecutionProblem",
    "ExternalVaultInUse",
    "GrantEnded",
    "GrantNotFound",
    "HookBlocked",
    "HumanTaskClosed",
    "HumanTaskNotFound",
    "IdempotencyKeyRequired",
    "IdempotencyKeyReused",
    "InputRequestNotAllowed",
    "InputRequestRejected",
    "InputResponsesInvalid",
    "InternalError",
    "LimitsUnavailable",
    "LinkedAccountRequired",
    "MalformedRequest",
    "MethodNotAllowed",
    "MutationClassViolated",
    "NoSuchRoute",
    "NotAnApprover",
    "NotCancelable",
    "NotRetryable",
    "OperatorConfirmationRequired",
    "OutcomeUnknown",
    "ParseFailed",
    "PermissionDenied",
    "PermissionProblem",
    "PolicyFailed",
    "PolicyInvalid",
    "PreconditionFailed",
    "PredicateFailed",
    "Problem",
    "RateLimited",
    "RecordingPending",
    "RegistryProblem",
    "RequestProblem",
    "RequestTooLarge",
    "ResourceLimitExceeded",
    "ResourceNotFound",
    "RestoredSince",
    "ResultInvalid",
    "RoundTokenRejected",
    "RunOwnershipLost",
    "RunawayLoop",
    "SchemaViolation",
    "ScopeMissing",
    "SecretsProblem",
    "SemanticViolation",
    "ServerChangeNotFound",
    "ServerNotFound",
    "SignInFailed",
    "SourcesDisagree",
    "TokenAudienceMismatch",
    "TokenExpired",
    "TokenIssuerUntrusted",
    "TokenMalformed",
    "TokenMissing",
    "TokenSignatureInvalid",
    "TooManyTakeovers",
    "ToolConflict",
    "ToolDisabled",
    "ToolDrifted",
    "ToolFailed",
    "ToolNotAdmitted",
    "ToolNotFound",
    "ToolPrecondition",
    "ToolRequiresSetup",
    "ToolRetired",
    "ToolTimeout",
    "Unavailable",
    "UnsealFailed",
    "UnsupportedMedia",
    "UpstreamProblem",
    "UpstreamRateLimited",
    "UpstreamSignInFailed",
    "UpstreamTimeout",
    "UpstreamUnavailable",
    "ValidationProblem",
    "VaultUnavailable",
    "VersionConflict",
    "VersionInUse",
    "VersionNotFound",
    "VersionNotInCapability",
    "find_problem_type",
    "list_problem_types",
]


def list_problem_types() -> Iterator[type[Problem]]:
    """List all leaves of the tree by their numbers."""
    return iter(_LEAVES)


def find_problem_type(slug: str) -> type[Problem]:
    """Find the problem that a stored outcome names; a slug of a newer release reads as `internal`."""
    return _BY_SLUG.get(slug, InternalError)


_LEAVES = sorted(
    (leaf for branch in Problem.__subclasses__() for leaf in branch.__subclasses__()), key=lambda leaf: leaf.spec.number
)
_BY_SLUG = {leaf.spec.slug: leaf for leaf in _LEAVES}
