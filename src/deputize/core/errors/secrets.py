"""Define the errors of credentials and sealed values (E36xx)."""

from typing import Any

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class SecretsProblem(Problem):
    """A credential is missing, expired or cannot be read.

    `challenge` is the `WWW-Authenticate` header (RFC 9110) of the server that refused, never shown to callers.
    `is_unknown` is True if the server did not recognize the credential (401), False if it forbids the request (403).
    """

    def __init__(self, message: str, *, challenge: str = "", is_unknown: bool = False, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.challenge = challenge
        self.is_unknown = is_unknown


class VaultUnavailable(SecretsProblem):
    spec = ErrorSpec(
        slug="vault-unavailable", code=ErrorCode.UPSTREAM_FAILURE, error_class="credential_missing", number=3601,
        http=503, grpc="UNAVAILABLE", retryable=True,
        title="The vault is unavailable",
        advice="Retry. If the error persists, ask the operator to check the vault.",
    )  # fmt: skip


class CredentialMissing(SecretsProblem):
    spec = ErrorSpec(
        slug="credential-missing", code=ErrorCode.PRECONDITION_FAILED, error_class="credential_missing", number=3602,
        http=424, grpc="FAILED_PRECONDITION",
        title="The tool's credential is missing",
        advice="Store the credential named in details: deputize secrets set NAME.",
    )  # fmt: skip


class CredentialExpired(SecretsProblem):
    spec = ErrorSpec(
        slug="credential-expired", code=ErrorCode.AUTHORIZATION_DENIED, error_class="credential_missing", number=3603,
        http=424, grpc="FAILED_PRECONDITION",
        title="The tool's credential has expired or was refused",
        advice="Renew the credential named in details.",
    )  # fmt: skip


class UnsealFailed(SecretsProblem):
    spec = ErrorSpec(
        slug="seal-broken", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="execution_failed", number=3604, http=500,
        grpc="DATA_LOSS",
        title="An encrypted value cannot be decrypted",
        advice="Ask the operator to restore the key that it was encrypted with.",
    )  # fmt: skip


class CredentialInResult(SecretsProblem):
    spec = ErrorSpec(
        slug="credential-quoted", code=ErrorCode.INTERNAL_TOOL_ERROR, error_class="result_redacted", number=3605,
        http=502, grpc="INTERNAL",
        title="The result contains the tool's credential and was withheld",
        advice="Report this to the tool's author, and replace the credential. A tool that changes data may have "
        "changed it.",
    )  # fmt: skip


class ExternalVaultInUse(SecretsProblem):
    spec = ErrorSpec(
        slug="secrets-elsewhere", code=ErrorCode.PRECONDITION_FAILED, error_class="capability_gap", number=3606,
        http=409, grpc="FAILED_PRECONDITION",
        title="This gateway does not store secrets",
        advice="Store the secret in the vault named in details; the gateway only reads it.",
    )  # fmt: skip


class LinkedAccountRequired(SecretsProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="link-needed", code=ErrorCode.PRECONDITION_FAILED, error_class="credential_missing", number=3607, http=424,
        grpc="FAILED_PRECONDITION",
        title="The user has not linked their account",
        advice="Have the user open the URL in details, sign in, and link their account.",
    )  # fmt: skip


class UpstreamSignInFailed(SecretsProblem):
    """`is_final` is True if the authorization server would refuse again."""

    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="upstream-sign-in-failed", code=ErrorCode.UPSTREAM_FAILURE, error_class="credential_missing", number=3608,
        http=502, grpc="FAILED_PRECONDITION",
        title="Sign-in to the tool's server failed",
        advice="Retry. If the error persists, ask the operator of this gateway.",
    )  # fmt: skip

    def __init__(self, message: str, *, is_final: bool = False, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.is_final = is_final
