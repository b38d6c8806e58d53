"""What outsiders depend on changes only on purpose: with the baseline, and with a line in CHANGELOG.md."""

import json

from deputize.core.errors import list_problem_types
from tests.checks.public_interface import BASELINE, list_public_names

# Errors that were documented and never returned. Their numbers are not used again.
RESERVED_NUMBERS = {
    "audit-backpressure": "E3803",
    "circuit-open": "E3501",
    "coercion-failed": "E3302",
    "crashed": "E3404",
    "injection-detected": "E3305",
    "out-of-memory": "E3403",
    "queue-full": "E3701",
    "redaction-failed": "E3304",
    "sandbox-failed": "E3405",
    "search-failed": "E3106",
    "stream-unavailable": "E3801",
    "subject-unknown": "E3207",
    "webhook-failed": "E3704",
}


def test_routes_errors_metrics_and_commands_are_those_of_the_baseline() -> None:
    assert list_public_names() == json.loads(BASELINE.read_text(encoding="utf-8"))


def test_numbers_of_removed_errors_are_not_used_again() -> None:
    used = {problem.spec.e_number: problem.spec.slug for problem in list_problem_types()}
    assert {number: used[number] for slug, number in RESERVED_NUMBERS.items() if used.get(number, slug) != slug} == {}
