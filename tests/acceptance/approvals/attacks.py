"""The ways in which an agent with a shell tries to get its call approved, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.acceptance.approvals.scenario import PendingApproval, Scenario


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One way to try; `tries` is how many refusals to decide it leaves on record."""

    run: Callable[[Scenario, PendingApproval], None]
    refusals: int


ATTACKS: dict[str, Attack] = {}


def register_attack(
    refusals: int,
) -> Callable[[Callable[[Scenario, PendingApproval], None]], Callable[[Scenario, PendingApproval], None]]:
    def register(go: Callable[[Scenario, PendingApproval], None]) -> Callable[[Scenario, PendingApproval], None]:
        ATTACKS[go.__name__.replace("_", " ")] = Attack(run=go, refusals=refusals)
        return go

    return register


def require_refusal(answer: httpx2.Response, *slugs: str) -> dict[str, Any]:
    """Said no to, by one of our own refusals."""
    assert 400 <= answer.status_code < 500, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["slug"] in slugs, answer.text
    return error
