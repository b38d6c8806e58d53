"""The error tree has one face per leaf, and every face is complete."""

from http import HTTPStatus

import pytest

from deputize.core import errors
from deputize.core.errors import ErrorCode, InternalError, Problem, find_problem_type, list_problem_types
from tests.support.cases import check_each

pytestmark = pytest.mark.requirement("CON-6")

LEAVES = list(list_problem_types())
BRANCHES = Problem.__subclasses__()
GRPC = {
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
}
ERROR_CLASSES = {
    "unknown_tool",
    "invalid_arguments",
    "schema_validation_failed",
    "schema_not_loaded",
    "permission_denied",
    "approval_rejected",
    "policy_blocked",
    "hook_blocked",
    "capability_gap",
    "setup_required",
    "credential_missing",
    "sandbox_violation",
    "timeout",
    "rate_limited",
    "dependency_unavailable",
    "execution_failed",
    "partial_failure",
    "result_too_large",
    "result_redacted",
    "sibling_canceled",
    "streaming_fallback_discarded",
    "canceled",
}
ELEVEN = {
    "INVALID_INPUT",
    "AUTHORIZATION_DENIED",
    "TOOL_NOT_FOUND",
    "DEADLINE_EXCEEDED",
    "RATE_LIMITED",
    "UPSTREAM_FAILURE",
    "INTERNAL_TOOL_ERROR",
    "RESOURCE_EXHAUSTED",
    "PRECONDITION_FAILED",
    "CONFLICT",
    "APPROVAL_REQUIRED",
}
# JSON-RPC gives all wrong parameters one code.
SHARED_JSONRPC = {-32602: {"schema-violation", "round-token-rejected", "input-responses-invalid"}}
FAMILIES = {
    errors.RequestProblem: 30,
    errors.RegistryProblem: 31,
    errors.PermissionProblem: 32,
    errors.ValidationProblem: 33,
    errors.ExecutionProblem: 34,
    errors.UpstreamProblem: 35,
    errors.SecretsProblem: 36,
    errors.AsyncProblem: 37,
    errors.AuditProblem: 38,
}

each_leaf = check_each("leaf", LEAVES, label=lambda leaf: leaf.__name__)


@each_leaf
def test_every_error_spec_is_complete_and_uses_known_vocabularies(leaf: type[Problem]) -> None:
    face = leaf.spec
    assert HTTPStatus(face.http).value >= 400
    assert face.grpc in GRPC
    assert face.error_class in ERROR_CLASSES
    assert face.code in ErrorCode
    assert face.title.strip()
    assert not face.title.endswith(".")
    assert face.advice.strip().endswith(".")
    assert face.slug == face.slug.lower().strip("-")
    assert face.type_uri == f"urn:deputize:problem:{face.slug}"
    assert face.e_number == f"E{face.number}"


@each_leaf
def test_every_number_belongs_to_its_branch(leaf: type[Problem]) -> None:
    branch = next(branch for branch in BRANCHES if issubclass(leaf, branch))
    assert leaf.spec.number // 100 == FAMILIES[branch]


@each_leaf
def test_every_problem_can_be_found_again_by_the_slug_it_is_stored_under(leaf: type[Problem]) -> None:
    assert find_problem_type(leaf.spec.slug) is leaf


@each_leaf
def test_json_rpc_codes_are_the_specifications_or_lie_outside_its_reserved_range(leaf: type[Problem]) -> None:
    code = leaf.spec.jsonrpc_code
    assert code in {-32700, -32600, -32601, -32602, -32603} or not -32768 <= code <= -32000


def test_slugs_numbers_and_json_rpc_codes_are_unique_but_for_those_shared_on_purpose() -> None:
    faces = [leaf.spec for leaf in LEAVES]
    assert len({face.slug for face in faces}) == len(faces)
    assert len({face.number for face in faces}) == len(faces)
    by_code: dict[int, set[str]] = {}
    for face in faces:
        by_code.setdefault(face.jsonrpc_code, set()).add(face.slug)
    assert {code: slugs for code, slugs in by_code.items() if len(slugs) > 1} == SHARED_JSONRPC


def test_the_eleven_codes_are_exactly_these_and_all_in_use() -> None:
    assert {code.value for code in ErrorCode} == ELEVEN
    assert {leaf.spec.code.value for leaf in LEAVES} == ELEVEN


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn = {line.split()[1] for line in (errors.__doc__ or "").splitlines() if line.strip()[:1] in ("├", "└")}
    assert drawn == {branch.__name__ for branch in BRANCHES}
    assert set(FAMILIES) == set(BRANCHES)
    assert all(branch.__doc__ for branch in BRANCHES)


def test_a_slug_of_a_newer_release_reads_as_internal() -> None:
    assert find_problem_type("made-up-in-2031") is InternalError


def test_a_problem_has_its_own_facts_and_falls_back_to_the_advice_of_its_spec() -> None:
    plain = errors.RateLimited("too many", details={"limit": 3}, retry_after_ms=250)
    assert (plain.message, dict(plain.details), plain.retry_after_ms) == ("too many", {"limit": 3}, 250)
    assert plain.advice == errors.RateLimited.spec.advice
    assert errors.RateLimited("too many", advice="Come back.").advice == "Come back."


def test_only_what_proves_it_says_that_nothing_happened() -> None:
    assert not errors.ToolFailed("no").nothing_happened
    assert errors.ToolFailed("no", nothing_happened=True).nothing_happened
    proving = {leaf.spec.slug for leaf in LEAVES if leaf("x").nothing_happened}
    assert proving == {
        "deadline-exceeded", "semantic-violation", "tool-precondition", "tool-conflict",
        "upstream-rate-limited", "circuit-open", "budget-spent", "too-many-at-once", "runaway", "limits-unavailable",
        "did-not-happen", "precondition-failed", "tool-drifted", "round-token-rejected", "input-responses-invalid",
        "link-needed", "upstream-sign-in-failed", "service-busy", "queue-full",
    }  # fmt: skip


def test_a_replaced_problem_is_a_copy_with_its_cause_and_traceback() -> None:
    class OwnTimeout(errors.ToolTimeout):
        def __init__(self, message: str, seconds: float) -> None:
            super().__init__(message, details={"seconds": seconds})
            self.seconds = seconds

    cause = ValueError("late")
    try:
        raise OwnTimeout("took too long", 1.5) from cause
    except OwnTimeout as raised:
        problem = raised
    other = problem.replace(nothing_happened=True, attempts=3, advice="Wait.")
    assert (other.nothing_happened, other.attempts, other.advice) == (True, 3, "Wait.")
    assert (other.message, str(other), other.details, other.seconds) == (
        "took too long", "took too long", {"seconds": 1.5}, 1.5,
    )  # fmt: skip
    assert (other.__cause__, other.__traceback__) == (cause, problem.__traceback__)
    assert (problem.nothing_happened, problem.attempts) == (False, 1)


def test_nothing_that_may_have_acted_is_called_safe_to_repeat() -> None:
    for slug in ("outcome-unknown", "recording-pending", "tool-failed", "result-invalid"):
        assert not find_problem_type(slug).spec.retryable
