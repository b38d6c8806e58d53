"""One trace per call with a span for each phase it passed, and no value in any of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deputize import ToolContext
from deputize.core.call import CallRequest
from deputize.core.errors import UpstreamUnavailable
from deputize.core.outcome import Outcome
from deputize.core.telemetry import Attribute, Span
from deputize.evidence.tracing import CallTraceIds, Tracing
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.run import Lifecycle
from tests.support.approval_lab import open_approval_lab
from tests.support.gateway_lab import GatewayLab, parse_body
from tests.support.scripted_tools import raise_error, set_behaviour

pytestmark = pytest.mark.requirement("OBS-1")
PHASES = [Span.VALIDATE, Span.AUTHORIZE, Span.EXECUTE, Span.VERIFY, Span.REPLY]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def _make_lifecycle(lab: GatewayLab, exporter: InMemorySpanExporter, sample: float) -> Lifecycle:
    provider = TracerProvider(id_generator=CallTraceIds())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Lifecycle(replace(lab.runtime, tracing=Tracing(sample=sample, tracer=provider.get_tracer("test"))))


async def _run_traced(
    lab: GatewayLab, tool: str, tag: str, *, sample: float = 1.0, **request: Any
) -> tuple[Outcome, list[ReadableSpan]]:
    exporter = InMemorySpanExporter()
    asked = CallRequest(tool=f"lab.{tool}", arguments={"tag": tag}, **request)
    outcome = await _make_lifecycle(lab, exporter, sample).run(await lab.make_caller(), asked)
    return outcome, list(exporter.get_finished_spans())


async def _resume_traced(lab: GatewayLab, call_id: str, sample: float) -> list[ReadableSpan]:
    """Resume a call as another process does, which would record this share of calls by itself."""
    exporter = InMemorySpanExporter()
    await _make_lifecycle(lab, exporter, sample).resume_run("dev", call_id, ActiveRuns(lab.runtime))
    return list(exporter.get_finished_spans())


def _draw_tree(spans: list[ReadableSpan], parent_id: int | None) -> list[Any]:
    """Draw spans as names, each with the tree of what is inside it, by their begin."""
    children = [span for span in spans if (None if span.parent is None else span.parent.span_id) == parent_id]
    children.sort(key=lambda span: span.start_time or 0)
    return [(span.name, _draw_tree(spans, span.context.span_id)) for span in children]


@pytest.mark.parametrize("tool", ["look", "note"])
async def test_a_call_has_a_span_for_each_phase_under_one_root(lab: GatewayLab, tool: str) -> None:
    outcome, spans = await _run_traced(lab, tool, "traced")
    root = spans[-1]
    inside: list[Any] = [(phase, [(Span.ATTEMPT, [])] if phase is Span.EXECUTE else []) for phase in PHASES]
    assert _draw_tree(spans, None) == [(Span.CALL, inside)]
    assert {f"{span.context.trace_id:032x}" for span in spans} == {parse_body(outcome)["trace_id"]}
    envelope = parse_body(outcome)
    attributes = dict(root.attributes or {})
    assert attributes.pop(Attribute.CONVERSATION, None) == (await lab.make_caller()).session
    assert attributes == {
        Attribute.OPERATION: "execute_tool", Attribute.TOOL: f"lab.{tool}", Attribute.TOOL_CALL: outcome.call_id,
        Attribute.CALL_ID: outcome.call_id, Attribute.STATE: "succeeded", Attribute.SIZE: len(outcome.body),
        Attribute.LATENCY: envelope["execution"]["duration_ms"], Attribute.COST: envelope["execution"]["cost"],
    }  # fmt: skip


async def test_a_refusal_ends_its_trace_where_it_was_refused(lab: GatewayLab) -> None:
    _, spans = await _run_traced(lab, "nobody", "traced")
    assert [span.name for span in spans] == [Span.VALIDATE, Span.CALL]
    assert {(span.attributes or {})[Attribute.ERROR] for span in spans} == {"tool-not-found"}


async def test_a_sampled_parent_is_followed_and_passed_on_to_what_the_tool_calls(lab: GatewayLab) -> None:
    seen: list[str | None] = []

    def behave(context: ToolContext) -> dict[str, str]:
        seen.append(context.traceparent)
        return {"value": "ok"}

    set_behaviour("upstream", behave)
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    _, spans = await _run_traced(lab, "look", "upstream", sample=0.0, traceparent=parent)
    attempt = next(span for span in spans if span.name == Span.ATTEMPT)
    assert spans[-1].parent is not None
    assert f"{spans[-1].parent.span_id:016x}" == "00f067aa0ba902b7"
    assert seen == [f"00-{TRACE}-{attempt.context.span_id:016x}-01"]


async def test_a_parent_that_is_not_sampled_leaves_no_spans_but_keeps_its_trace(lab: GatewayLab) -> None:
    outcome, spans = await _run_traced(lab, "look", "quiet", traceparent=f"00-{TRACE}-00f067aa0ba902b7-00")
    assert spans == []
    assert parse_body(outcome)["trace_id"] == TRACE


async def test_a_queued_call_stays_in_its_callers_trace(lab: GatewayLab) -> None:
    request: dict[str, Any] = {"mode": "async", "idempotency_key": "queued-trace"}
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    outcome, spans = await _run_traced(lab, "note", "queued-trace", sample=0.0, traceparent=parent, **request)
    spans += await _resume_traced(lab, outcome.call_id, sample=0.0)
    run: Any = (
        Span.RUN,
        [(Span.AUTHORIZE, []), (Span.EXECUTE, [(Span.ATTEMPT, [])]), (Span.VERIFY, []), (Span.REPLY, [])],
    )
    assert _draw_tree(spans, 0x00F067AA0BA902B7) == [(Span.CALL, [(Span.VALIDATE, []), (Span.AUTHORIZE, []), run])]
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    calls = [dict(span.attributes or {}) for span in spans if span.name in (Span.CALL, Span.RUN)]
    assert [(each[Attribute.CALL_ID], each[Attribute.STATE]) for each in calls] == [
        (outcome.call_id, "queued"), (outcome.call_id, "succeeded"),
    ]  # fmt: skip


@pytest.mark.parametrize("sample", [0.0, 1.0])
async def test_whether_a_call_is_recorded_is_decided_once(lab: GatewayLab, sample: float) -> None:
    tag = f"decided-{sample}"
    outcome, spans = await _run_traced(lab, "note", tag, sample=sample, mode="async", idempotency_key=tag)
    later = await _resume_traced(lab, outcome.call_id, sample=1.0 - sample)
    assert bool(spans) is bool(later) is bool(sample)
    assert len(_draw_tree(spans + later, None)) == sample
    entries = await lab.fetch_entries(outcome.call_id)
    assert {entry["trace"] for entry in entries} == {parse_body(outcome)["trace_id"]}


async def test_each_attempt_of_an_approved_call_is_in_the_trace_of_its_request(
    fresh_database: str, tmp_path: Path
) -> None:
    async def fail_once(context: ToolContext) -> dict[str, str]:
        if context.attempt == 1:
            raise UpstreamUnavailable("away", nothing_happened=True)
        return {"value": "ok"}

    set_behaviour("approved-trace", fail_once)
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab:
        lab = approval_lab.lab
        outcome, spans = await _run_traced(lab, "note", "approved-trace", idempotency_key="approved-trace")
        approver = await approval_lab.make_approver("eva")
        await approval_lab.approve(approver, parse_body(outcome)["approval"]["approval_id"])
        spans += await _resume_traced(lab, outcome.call_id, sample=0.0)
        assert await lab.fetch_state(outcome.call_id) == "succeeded"
    assert len(_draw_tree(spans, None)) == 1
    first, second = (dict(span.attributes or {}) for span in spans if span.name == Span.ATTEMPT)
    assert (first[Attribute.ATTEMPT], first[Attribute.ERROR]) == (1, "upstream-unavailable")
    assert (second[Attribute.ATTEMPT], Attribute.ERROR in second) == (2, False)


@pytest.mark.requirement("GOV-6")
async def test_spans_carry_no_values_and_no_words_of_an_error(lab: GatewayLab) -> None:
    set_behaviour("hunter2", raise_error(ValueError("hunter2 is wrong")))
    _, spans = await _run_traced(lab, "look", "hunter2")
    assert "hunter2" not in str([span.to_json() for span in spans])
