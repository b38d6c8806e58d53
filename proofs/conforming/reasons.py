"""Scenarios of the suite that do not pass here, each with the reason, and nothing else in the product's favour.

The proof fails when one of these passes, and when any other does not. Where checks are named, exactly those fail; the
rest of the scenario passes. Above: `judge.py`.
"""

from dataclasses import dataclass
from typing import Final

from proofs.conforming.suite import Leg

NOBODY_WAITS: Final = (
    "Before 2026-07-28 a server asks in the middle of a call, which hangs until somebody answers. No call here waits "
    "for a person, so such a question is refused; since then it ends the call, and whoever answers makes the next."
)
TASKS_AT_ONCE: Final = (
    "A tool that may take minutes is a task from the first request on, and what its server asks is asked through the "
    "task; the scenario wants the first round to be none."
)
NOBODY_IS_TOLD: Final = (
    "No session is kept, so there is nobody to tell that a resource changed: it is read again, and cannot be "
    "subscribed to."
)
NO_LOGS: Final = "Log messages of servers are not passed on: what was done is in the audit log."
NO_SESSIONS: Final = (
    "No session is kept, in either era, so that any gateway answers any request; the scenario wants a session's id."
)
NEVER_REQUIRED: Final = (
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
class Expected:
    """A scenario that fails, for a reason. Without checks it fails in whichever way it does."""

    reason: str
    checks: frozenset[str] = frozenset()


def _all(reason: str, *scenarios: str) -> dict[str, Expected]:
    return dict.fromkeys(scenarios, Expected(reason=reason))


def _some(reason: str, *checks: str) -> Expected:
    return Expected(reason=reason, checks=frozenset(checks))


_SIGNED_IN_OTHERWISE: Final = {
    **_all(BEARER_ONLY, "auth/dpop", "auth/dpop-nonce"),
    **_all(NO_ID_TOKENS, "auth/enterprise-managed-authorization"),
    **_all(NO_WORKLOADS, "auth/wif-jwt-bearer"),
}

REASONS: Final[dict[tuple[Leg, str], dict[str, Expected]]] = {
    ("server", "2025-11-25"): {
        **_all(NOBODY_IS_TOLD, "resources-subscribe", "resources-unsubscribe"),
        **_all(NO_LOGS, "logging-set-level", "tools-call-with-logging"),
        **_all(NOBODY_WAITS, "tools-call-sampling", "tools-call-elicitation", "elicitation-sep1034-defaults"),
        **_all(NOBODY_WAITS, "elicitation-sep1330-enums"),
        **_all(NO_SESSIONS, "server-sse-multiple-streams", "server-sse-polling"),
    },
    ("server", "2026-07-28"): {
        **_all(TASKS_AT_ONCE, "tasks-mrtr-composition"),
        **_all(NEVER_REQUIRED, "tasks-required-task-error"),
    },
    ("client", "2025-11-25"): {
        **_all(NOBODY_WAITS, "elicitation-sep1034-client-defaults"),
        **_SIGNED_IN_OTHERWISE,
    },
    ("client", "2026-07-28"): {
        **_SIGNED_IN_OTHERWISE,
    },
}
