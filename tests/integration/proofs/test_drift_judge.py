"""The judge of the drift proof finds one planted fault of each category, in that category and in no other."""

from collections.abc import Callable
from typing import Any

import pytest

from deputize.catalog.drift.flags import FlagCode
from proofs.drift.judge import (
    DRIFT_SLUG,
    DriftFindings,
    MutationCase,
    build_verdict,
    check_call_of_change,
    check_call_of_instructions,
    check_change,
    check_instructions,
    check_rewrite,
    check_unreviewed_calls,
)
from proofs.drift.mutations import DefinitionMutation
from proofs.kit.http_client import HttpResponse
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

READ, WRITE = "get_order", "cancel_order"
HIDDEN_TEXT = DefinitionMutation(name="hidden text", mutate=lambda *_: [], expected_flag=FlagCode.HIDDEN_TEXT)
NEW_TOOL = DefinitionMutation(name="a new tool", mutate=lambda *_: [], is_new_tool=True)
DONE = HttpResponse(status=200, headers={}, body=b"{}")
HELD = HttpResponse(status=409, headers={}, body=f'{{"type": "urn:deputize:problem:{DRIFT_SLUG}"}}'.encode())
OTHER_REFUSAL = HttpResponse(status=403, headers={}, body=b'{"type": "urn:deputize:problem:permission-denied"}')
FLAGGED = {"differences": ["/description"], "flags": [{"code": FlagCode.HIDDEN_TEXT}]}
UNFLAGGED: dict[str, Any] = {**FLAGGED, "flags": []}
Check = Callable[[DriftFindings], None]


def make_case(mutation: DefinitionMutation = HIDDEN_TEXT, tool: str = WRITE) -> MutationCase:
    return MutationCase(mutation=mutation, tool=tool, definitions=[], item=f"tool:{tool}")


def list_missed(check: Check) -> set[str]:
    """Judge what a check found, after one change that was held and flagged."""
    findings = DriftFindings()
    check_change(findings, make_case(), FLAGGED)
    check(findings)
    return list_missed_bars("drift", build_verdict(findings, 1, {}).figures)


CASES: list[tuple[Check, set[str]]] = [
    (lambda found: check_change(found, make_case(), None), {"held_share", "flagged_share"}),
    (lambda found: check_change(found, make_case(), {**FLAGGED, "differences": []}), {"held_share"}),
    (lambda found: check_change(found, make_case(), UNFLAGGED), {"flagged_share"}),
    (lambda found: check_change(found, make_case(NEW_TOOL), UNFLAGGED), set()),
    (lambda found: check_call_of_change(found, make_case(), HELD, 0), set()),
    (lambda found: check_call_of_change(found, make_case(), HELD, 1), {"writes_slipped"}),
    (lambda found: check_call_of_change(found, make_case(), DONE, 0), {"writes_slipped"}),
    (lambda found: check_call_of_change(found, make_case(), OTHER_REFUSAL, 0), {"writes_slipped"}),
    (lambda found: check_call_of_change(found, make_case(NEW_TOOL), DONE, 1), set()),
    (lambda found: check_call_of_change(found, make_case(NEW_TOOL), HELD, 0), {"writes_stopped"}),
    (lambda found: check_call_of_change(found, make_case(NEW_TOOL), DONE, 0), {"writes_stopped"}),
    (lambda found: check_call_of_change(found, make_case(tool=READ), HELD, 0), set()),
    (lambda found: check_call_of_change(found, make_case(tool=READ), DONE, 1), {"reads_slipped"}),
    (lambda found: check_call_of_change(found, make_case(NEW_TOOL, tool=READ), DONE, 1), set()),
    (lambda found: check_call_of_change(found, make_case(NEW_TOOL, tool=READ), HELD, 0), {"reads_stopped"}),
    (lambda found: check_unreviewed_calls(found, ["new"], {WRITE: 1}), set()),
    (lambda found: check_unreviewed_calls(found, ["new"], {"new": 1}), {"writes_slipped"}),
    (lambda found: check_rewrite(found, [{}], [WRITE], {WRITE: 1}, []), set()),
    (lambda found: check_rewrite(found, [{}], [WRITE], {}, []), {"writes_stopped"}),
    (lambda found: check_rewrite(found, [{}], [WRITE], {WRITE: 1}, ["tool:x"]), {"rewritten_held"}),
    (lambda found: check_call_of_instructions(found, WRITE, HELD, 0), set()),
    (lambda found: check_call_of_instructions(found, WRITE, HELD, 1), {"writes_slipped"}),
    (lambda found: check_call_of_instructions(found, WRITE, OTHER_REFUSAL, 0), {"writes_slipped"}),
    (lambda found: check_call_of_instructions(found, READ, HELD, 0), set()),
    (lambda found: check_call_of_instructions(found, READ, DONE, 1), {"reads_slipped"}),
    (lambda found: check_instructions(found, {"instructions": FLAGGED}, is_hidden=True), set()),
    (lambda found: check_instructions(found, {"instructions": UNFLAGGED}, is_hidden=False), set()),
    (lambda found: check_instructions(found, {}, is_hidden=False), {"held_share"}),
    (lambda found: check_instructions(found, {"instructions": FLAGGED, "x": FLAGGED}, is_hidden=True), {"held_share"}),
    (lambda found: check_instructions(found, {"instructions": UNFLAGGED}, is_hidden=True), {"flagged_share"}),
    (lambda found: setattr(found, "open_change_count", 1), {"not_closed"}),
]  # fmt: skip


@pytest.mark.parametrize(("check", "missed"), CASES)
def test_a_fault_is_found_in_its_category(check: Check, missed: set[str]) -> None:
    assert list_missed(check) == missed


def test_every_exact_bar_has_a_planted_fault() -> None:
    figures = build_verdict(DriftFindings(change_count=1, flaggable_count=1), 1, {}).figures
    assert list_exact_bars("drift", among=figures) == set().union(*(missed for _, missed in CASES))
