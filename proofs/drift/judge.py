"""Judge what a gateway did with definitions that changed: held or not, flagged or not, called or not."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deputize.catalog.drift.flags import FlagCode
from proofs.drift.mutations import DefinitionMutation
from proofs.drift.tool_definitions import is_read
from proofs.kit.http_client import HttpResponse
from proofs.kit.report import Figure, Verdict

DRIFT_SLUG = "tool-drifted"


@dataclass(kw_only=True)
class DriftFindings:
    """What came of all rounds; anything but held, flagged and rewritten is a failure, and told by its kind."""

    change_count: int = 0
    held_count: int = 0
    flaggable_count: int = 0
    flagged_count: int = 0
    rewrite_count: int = 0
    held_rewrite_count: int = 0
    # Writes that reached a server though their definition was not the agreed one, and some that did not though it was.
    slipped_count: int = 0
    stopped_count: int = 0
    # The same of reads, once the gateway has seen the change.
    slipped_read_count: int = 0
    stopped_read_count: int = 0
    open_change_count: int = 0
    misses: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class MutationCase:
    """One change: the tool it is of, what is declared in its place, and the item that must wait for a review."""

    mutation: DefinitionMutation
    tool: str
    definitions: list[dict[str, Any]]
    item: str


def check_change(findings: DriftFindings, case: MutationCase, open_change: Mapping[str, Any] | None) -> None:
    """Count a change as held if it waits with its differences, and as flagged if its flag is there."""
    findings.change_count += 1
    if open_change is not None and open_change["differences"]:
        findings.held_count += 1
    else:
        findings.misses[case.mutation.name] += 1
    if case.mutation.expected_flag is not None:
        findings.flaggable_count += 1
        findings.flagged_count += _is_flagged(open_change, case.mutation.expected_flag)


def check_call_of_change(findings: DriftFindings, case: MutationCase, answer: HttpResponse, reach_count: int) -> None:
    """Count calls of a changed tool that were not stopped, and those that were although nothing changed for them."""
    if is_read(case.tool):
        if case.mutation.is_new_tool:
            findings.stopped_read_count += answer.status != 200 or not reach_count
        else:
            findings.slipped_read_count += bool(reach_count) or not _is_refused_for_drift(answer)
    elif case.mutation.is_new_tool:
        findings.stopped_count += answer.status != 200 or not reach_count
    elif reach_count or not _is_refused_for_drift(answer):
        findings.slipped_count += 1
        findings.misses[f"{case.mutation.name}: called"] += 1


def check_unreviewed_calls(findings: DriftFindings, new_names: Sequence[str], call_counts: Mapping[str, int]) -> None:
    """Count the calls of new tools that reached the server before anybody agreed to them."""
    findings.slipped_count += sum(call_counts.get(name, 0) for name in new_names)


def check_rewrite(
    findings: DriftFindings,
    tools: Sequence[Mapping[str, Any]],
    called_names: Sequence[str],
    call_counts: Mapping[str, int],
    open_changes: Collection[str],
) -> None:
    """Count what waits although it is only written otherwise, and the writes that were stopped for it."""
    findings.stopped_count += sum(not call_counts.get(name) for name in called_names)
    findings.rewrite_count += len(tools)
    findings.held_rewrite_count += len(open_changes)


def check_call_of_instructions(findings: DriftFindings, tool: str, answer: HttpResponse, reach_count: int) -> None:
    """Count calls that were not stopped while the instructions of their server are others."""
    has_slipped = bool(reach_count) or not _is_refused_for_drift(answer)
    if is_read(tool):
        findings.slipped_read_count += has_slipped
    else:
        findings.slipped_count += has_slipped


def check_instructions(
    findings: DriftFindings, open_changes: Mapping[str, Mapping[str, Any]], *, is_hidden: bool
) -> None:
    """Count changed instructions as held if they and nothing else wait, and as flagged if they hide something."""
    findings.change_count += 1
    findings.held_count += list(open_changes) == ["instructions"]
    if is_hidden:
        findings.flaggable_count += 1
        findings.flagged_count += _is_flagged(open_changes.get("instructions"), FlagCode.HIDDEN_TEXT)


def build_verdict(findings: DriftFindings, tool_count: int, controls: dict[str, bool]) -> Verdict:
    figures: dict[str, Figure] = {
        "changed": findings.change_count,
        "held_share": findings.held_count / findings.change_count,
        "flagged_share": findings.flagged_count / findings.flaggable_count,
        "rewritten": findings.rewrite_count,
        "rewritten_held": findings.held_rewrite_count,
        "writes_slipped": findings.slipped_count,
        "writes_stopped": findings.stopped_count,
        "reads_slipped": findings.slipped_read_count,
        "reads_stopped": findings.stopped_read_count,
        "not_closed": findings.open_change_count,
        "tools_agreed": tool_count,
    }
    notes = [f"{number} not held: {kind}" for kind, number in sorted(findings.misses.items())]
    return Verdict(figures=figures, controls=controls, notes=notes)


def _is_flagged(open_change: Mapping[str, Any] | None, code: FlagCode) -> bool:
    return open_change is not None and code in {flag["code"] for flag in open_change["flags"]}


def _is_refused_for_drift(answer: HttpResponse) -> bool:
    return DRIFT_SLUG in answer.json().get("type", "")
