"""Define the errors of callers: tokens, scopes, policies and approvals (E32xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class PermissionProblem(Problem):
    """The caller is not allowed to do this."""


class TokenMissing(PermissionProblem):
    spec = ErrorSpec(
        slug="token-missing", code=ErrorCode.AUTHORIZATION_DENIED, error_class="credential_missing", number=3200,
        http=401, grpc="UNAUTHENTICATED",
        title="Bearer token missing",
        advice="Send Authorization: Bearer TOKEN. In development, deputize token prints a token.",
    )  # fmt: skip


class TokenExpired(PermissionProblem):
    spec = ErrorSpec(
        slug="token-expired", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3201,
        http=401, grpc="UNAUTHENTICATED",
        title="The token has expired",
        advice="Get a new token from its issuer.",
    )  # fmt: skip


class TokenSignatureInvalid(PermissionProblem):
    spec = ErrorSpec(
        slug="token-signature", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3202,
        http=401, grpc="UNAUTHENTICATED",
        title="The token's signature is invalid",
        advice="Get a token from a trusted issuer, and check that the issuer's keys are current.",
    )  # fmt: skip


class TokenMalformed(PermissionProblem):
    spec = ErrorSpec(
        slug="token-malformed", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3203,
        http=401, grpc="UNAUTHENTICATED",
        title="The bearer token is not a valid JWT",
        advice="Send a JWT. If the value contains ${, the client did not expand a variable.",
    )  # fmt: skip


class VersionNotInCapability(PermissionProblem):
    spec = ErrorSpec(
        slug="not-in-capability", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3204,
        http=403, grpc="PERMISSION_DENIED",
        title="The token does not cover this version of the tool",
        advice="Use a version inside the token's range, or get a token that covers this one.",
    )  # fmt: skip


class PolicyFailed(PermissionProblem):
    spec = ErrorSpec(
        slug="policy-failed", code=ErrorCode.AUTHORIZATION_DENIED, error_class="policy_blocked", number=3205, http=503,
        grpc="UNAVAILABLE", retryable=True,
        title="The policies could not be evaluated, so the call is denied",
        advice="Retry. If the error persists, give the trace id to the operator of this gateway.",
    )  # fmt: skip


class PermissionDenied(PermissionProblem):
    spec = ErrorSpec(
        slug="permission-denied", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3206,
        http=403, grpc="PERMISSION_DENIED",
        title="Permission denied",
        advice="Read the rule in details, and ask its owner for permission.",
    )  # fmt: skip


class TokenAudienceMismatch(PermissionProblem):
    spec = ErrorSpec(
        slug="token-audience", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3208,
        http=401, grpc="UNAUTHENTICATED",
        title="The token is for another audience",
        advice="Get a token whose aud is this gateway.",
    )  # fmt: skip


class TokenIssuerUntrusted(PermissionProblem):
    spec = ErrorSpec(
        slug="token-issuer", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3209,
        http=401, grpc="UNAUTHENTICATED",
        title="The token's issuer is not trusted",
        advice="Get a token from an issuer in deputize.toml, or add the issuer there.",
    )  # fmt: skip


class AuthorityRevoked(PermissionProblem):
    spec = ErrorSpec(
        slug="revoked", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3210, http=401,
        grpc="UNAUTHENTICATED",
        title="The token, or the authority behind it, was revoked",
        advice="Ask an administrator. New tokens of a revoked user or agent are refused as well.",
    )  # fmt: skip


class ScopeMissing(PermissionProblem):
    spec = ErrorSpec(
        slug="scope-missing", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3211,
        http=403, grpc="PERMISSION_DENIED",
        title="A required scope is missing",
        advice="Get a token with the scopes in details.",
    )  # fmt: skip


class ApprovalRequired(PermissionProblem):
    spec = ErrorSpec(
        slug="approval-required", code=ErrorCode.APPROVAL_REQUIRED, error_class="policy_blocked", number=3212, http=403,
        grpc="FAILED_PRECONDITION",
        title="This call needs a person's approval",
        advice="Follow the approval request in details. The call continues by itself once it is approved.",
    )  # fmt: skip


class ApprovalRejected(PermissionProblem):
    spec = ErrorSpec(
        slug="approval-rejected", code=ErrorCode.AUTHORIZATION_DENIED, error_class="approval_rejected", number=3213,
        http=403, grpc="PERMISSION_DENIED",
        title="An approver denied this call",
        advice="Read the reason in details before you make another call.",
    )  # fmt: skip


class DisabledByKillSwitch(PermissionProblem):
    spec = ErrorSpec(
        slug="switched-off", code=ErrorCode.AUTHORIZATION_DENIED, error_class="policy_blocked", number=3214, http=403,
        grpc="PERMISSION_DENIED",
        title="Disabled by a kill switch",
        advice="Ask an administrator to enable it again: deputize switch on.",
    )  # fmt: skip


class HookBlocked(PermissionProblem):
    spec = ErrorSpec(
        slug="hook-blocked", code=ErrorCode.AUTHORIZATION_DENIED, error_class="hook_blocked", number=3215, http=403,
        grpc="PERMISSION_DENIED",
        title="A hook stopped this call",
        advice="Read the hook's reason in details, or ask the operator of this gateway.",
    )  # fmt: skip


class PolicyInvalid(PermissionProblem):
    spec = ErrorSpec(
        slug="policy-invalid", code=ErrorCode.INVALID_INPUT, error_class="schema_validation_failed", number=3216,
        http=422, grpc="INVALID_ARGUMENT",
        title="The policies are invalid; the previous version stays active",
        advice="Fix the errors in details, by file and line. deputize policy check finds the same errors offline.",
    )  # fmt: skip


class ExchangeRefused(PermissionProblem):
    spec = ErrorSpec(
        slug="exchange-refused", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3217,
        http=400, grpc="INVALID_ARGUMENT",
        title="Token exchange refused",
        advice="Request no more scopes, tools or time than your token has.",
    )  # fmt: skip


class GrantEnded(PermissionProblem):
    spec = ErrorSpec(
        slug="grant-ended", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3218, http=401,
        grpc="UNAUTHENTICATED",
        title="The delegation behind this call has ended",
        advice="Ask the person who delegated to delegate again.",
    )  # fmt: skip


class AgentUnknown(PermissionProblem):
    spec = ErrorSpec(
        slug="agent-unknown", code=ErrorCode.PRECONDITION_FAILED, error_class="invalid_arguments", number=3220,
        http=404, grpc="NOT_FOUND",
        title="No agent has this name",
        advice=(
            "Correct the name: deputize agents lists them. To switch off an agent before it acts for the first time, "
            "add --unknown, or `unknown` over REST."
        ),
    )  # fmt: skip


class GrantNotFound(PermissionProblem):
    spec = ErrorSpec(
        slug="grant-not-found", code=ErrorCode.PRECONDITION_FAILED, error_class="invalid_arguments", number=3219,
        http=404, grpc="NOT_FOUND",
        title="Delegation not found",
        advice="List your delegations: deputize grants list, or GET /v1/grants.",
    )  # fmt: skip


class CallbackRefused(PermissionProblem):
    spec = ErrorSpec(
        slug="callback-refused", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3225,
        http=403, grpc="PERMISSION_DENIED",
        title="Callbacks to this address are not allowed",
        advice="Use an https address, or ask the operator to add the host to webhooks.hosts.",
    )  # fmt: skip


class ApprovalExpired(PermissionProblem):
    spec = ErrorSpec(
        slug="approval-expired", code=ErrorCode.AUTHORIZATION_DENIED, error_class="approval_rejected", number=3226,
        http=403, grpc="PERMISSION_DENIED",
        title="Not approved in time, so the call is denied",
        advice="If the call is still needed, make it again with a new idempotency key. Approvers are then notified "
        "again.",
    )  # fmt: skip


class ApprovalVoid(PermissionProblem):
    spec = ErrorSpec(
        slug="approval-void", code=ErrorCode.AUTHORIZATION_DENIED, error_class="approval_rejected", number=3227,
        http=403, grpc="PERMISSION_DENIED",
        title="The call is not what was approved",
        advice="Make the call again with a new idempotency key, to request approval of it as it is now.",
    )  # fmt: skip


class NotAnApprover(PermissionProblem):
    spec = ErrorSpec(
        slug="not-an-approver", code=ErrorCode.AUTHORIZATION_DENIED, error_class="permission_denied", number=3228,
        http=403, grpc="PERMISSION_DENIED",
        title="You may not decide this approval request",
        advice="Read the rule in details. The approval request shows who may decide.",
    )  # fmt: skip


class ApprovalRequestChanged(PermissionProblem):
    spec = ErrorSpec(
        slug="approval-changed", code=ErrorCode.CONFLICT, error_class="approval_rejected", number=3229, http=409,
        grpc="ABORTED",
        title="The approval request has changed",
        advice="Read the approval request again, and decide on its current content.",
    )  # fmt: skip


class SignInFailed(PermissionProblem):
    spec = ErrorSpec(
        slug="sign-in-failed", code=ErrorCode.AUTHORIZATION_DENIED, error_class="credential_missing", number=3230,
        http=401, grpc="UNAUTHENTICATED",
        title="Not signed in",
        advice="Sign in again. If the error persists, ask the operator of this gateway.",
    )  # fmt: skip


class OperatorConfirmationRequired(PermissionProblem):
    spec = ErrorSpec(
        slug="operator-confirmation-required", code=ErrorCode.APPROVAL_REQUIRED, error_class="policy_blocked",
        number=3231, http=403, grpc="FAILED_PRECONDITION",
        title="This act needs an operator's confirmation",
        advice="Read the rule in details. Confirm with the code in the terminal of deputize dev, or sign in again as "
        "an operator.",
    )  # fmt: skip


class ErasureNotFound(PermissionProblem):
    spec = ErrorSpec(
        slug="erasure-not-found", code=ErrorCode.PRECONDITION_FAILED, error_class="invalid_arguments", number=3236,
        http=404, grpc="NOT_FOUND",
        title="Erasure not found",
        advice="Use the id that deputize erase printed.",
    )  # fmt: skip
