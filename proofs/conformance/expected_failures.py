"""Scenarios of the suite that do not pass here, each with the reason, and nothing else in the product's favour.

The proof fails when one of these passes, and when any other does not. Exactly the checks that are named fail; the rest
of the scenario passes.
"""

from dataclasses import dataclass
from typing import Final

from proofs.conformance.suite import Leg

NO_BLOCKING_ELICITATION: Final = (
    "Before 2026-07-28 a server asks in the middle of a call, which hangs until somebody answers. No call here waits "
    "for a person, so such a question is refused; since then it ends the call, and whoever answers makes the next."
)
TASK_FROM_FIRST_REQUEST: Final = (
    "A tool that may take minutes is a task from the first request on, and what its server asks is asked through the "
    "task; the scenario wants the first round to be none."
)
NO_SUBSCRIPTIONS: Final = (
    "No session is kept, so there is nobody to tell that a resource changed: it is read again, and cannot be "
    "subscribed to."
)
NO_LOGS: Final = "Log messages of servers are not passed on: what was done is in the audit log."
NO_SESSIONS: Final = (
    "No session is kept, in either era, so that any gateway answers any request; the scenario wants a session's id."
)
TASKS_OPTIONAL: Final = (
    "No tool here requires the tasks extension: a client without it is told the call's id and asks calls_get."
)
BEARER_ONLY: Final = (
    "Tokens that are bound to a key (DPoP) are not asked for: servers are sent bearer tokens, over TLS, and each "
    "server only those that were made for it."
)
NO_ID_TOKENS: Final = (
    "What people signed in to this gateway with is kept by nobody, so it cannot be exchanged for a grant at another "
    "server: they link their account there once, or the gateway mints a token in their name."
)
NO_WORKLOADS: Final = (
    "The gateway signs in as itself with a secret or a key from the vault, not with a token of its workload."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedFailure:
    """A scenario in which exactly these checks fail, for a reason."""

    reason: str
    checks: frozenset[str]


def _expect_checks(reason: str, *checks: str) -> ExpectedFailure:
    return ExpectedFailure(reason=reason, checks=frozenset(checks))


def _expect_namesakes(reason: str, *scenarios: str) -> dict[str, ExpectedFailure]:
    """Expect that the check fails that has the name of its scenario."""
    return {name: _expect_checks(reason, name) for name in scenarios}


_DPOP_CHECKS: Final = (
    "sep-1932-client-dpop-auth-scheme",
    "sep-1932-client-fresh-proof",
    "sep-1932-client-token-request-proof",
)
_CLIENT_DEFAULTS: Final = tuple(
    f"client-elicitation-sep1034-{kind}"
    for kind in ("general", "boolean-default", "enum-default", "integer-default", "number-default", "string-default")
)
_UNSUPPORTED_SIGN_INS: Final = {
    "auth/dpop": _expect_checks(BEARER_ONLY, *_DPOP_CHECKS),
    "auth/dpop-nonce": _expect_checks(
        BEARER_ONLY, *_DPOP_CHECKS, "sep-1932-client-as-nonce", "sep-1932-client-rs-nonce"
    ),
    "auth/enterprise-managed-authorization": _expect_checks(
        NO_ID_TOKENS, "complete-flow-jwt-bearer", "complete-flow-token-exchange"
    ),
    "auth/wif-jwt-bearer": _expect_checks(NO_WORKLOADS, "wif-grant-type"),
}

EXPECTED_FAILURES: Final[dict[tuple[Leg, str], dict[str, ExpectedFailure]]] = {
    ("server", "2025-11-25"): {
        **_expect_namesakes(NO_SUBSCRIPTIONS, "resources-subscribe", "resources-unsubscribe"),
        **_expect_namesakes(NO_LOGS, "logging-set-level", "tools-call-with-logging"),
        **_expect_namesakes(NO_BLOCKING_ELICITATION, "tools-call-sampling", "tools-call-elicitation"),
        "elicitation-sep1034-defaults": _expect_checks(NO_BLOCKING_ELICITATION, "elicitation-sep1034-general"),
        "elicitation-sep1330-enums": _expect_checks(NO_BLOCKING_ELICITATION, "elicitation-sep1330-general"),
        "server-sse-multiple-streams": _expect_checks(NO_SESSIONS, "server-sse-multiple-streams-session"),
        "server-sse-polling": _expect_checks(NO_SESSIONS, "server-sse-polling-session"),
    },
    ("server", "2026-07-28"): {
        "tasks-mrtr-composition": _expect_checks(
            TASK_FROM_FIRST_REQUEST, "sep-2663-mrtr-synchronous-before-task-creation"
        ),
        "tasks-required-task-error": _expect_checks(
            TASKS_OPTIONAL, "sep-2663-server-returns-missing-capability-when-required"
        ),
    },
    ("client", "2025-11-25"): {
        "elicitation-sep1034-client-defaults": _expect_checks(NO_BLOCKING_ELICITATION, *_CLIENT_DEFAULTS),
        **_UNSUPPORTED_SIGN_INS,
    },
    ("client", "2026-07-28"): {
        **_UNSUPPORTED_SIGN_INS,
    },
}
