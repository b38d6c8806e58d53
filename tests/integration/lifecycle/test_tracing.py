"""One trace per call with a span for each phase it passed, and no value in any of them."""

from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deputize import ToolContext
from deputize.core.call import CallRequest
from deputize.core.outcome import Outcome
from deputize.core.telemetry import Attribute, Span
from deputize.evidence.tracing import Tracing
from deputize.lifecycle.run import Lifecycle
from tests.support.gateway_lab import GatewayLab, parse_body
from tests.support.scripted_tools import raise_error, set_behaviour

pytestmark = pytest.mark.requirement("OBS-1")
PHASES = [Span.VALIDATE, Span.AUTHORIZE, Span.EXECUTE, Span.VERIFY, Span.REPLY]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def _run_traced(
    lab: GatewayLab, tool: str, tag: str, *, sample: float = 1.0, traceparent: str | None = None
) -> tuple[Outcome, list[ReadableSpan]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(sample=sample, tracer=provider.get_tracer("test"))
    asked = CallRequest(tool=f"lab.{tool}", arguments={"tag": tag}, traceparent=traceparent)
    outcome = await Lifecycle(replace(lab.runtime, tracing=tracing)).run(await lab.make_caller(), asked)
    return outcome, list(exporter.get_finished_spans())


@pytest.mark.parametrize("tool", ["look", "note"])
async def test_a_call_has_a_span_for_each_phase_under_one_root(lab: GatewayLab, tool: str) -> None:
    outcome, spans = await _run_traced(lab, tool, "traced")
    assert [span.name for span in spans] == [*PHASES, Span.CALL]
    root = spans[-1]
    assert {span.parent.span_id for span in spans[:-1] if span.parent} == {root.context.span_id}
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
    execute = next(span for span in spans if span.name == Span.EXECUTE)
    assert spans[-1].parent is not None
    assert f"{spans[-1].parent.span_id:016x}" == "00f067aa0ba902b7"
    assert seen == [f"00-{TRACE}-{execute.context.span_id:016x}-01"]


async def test_a_parent_that_is_not_sampled_leaves_no_spans_but_keeps_its_trace(lab: GatewayLab) -> None:
    outcome, spans = await _run_traced(lab, "look", "quiet", traceparent=f"00-{TRACE}-00f067aa0ba902b7-00")
    assert spans == []
    assert parse_body(outcome)["trace_id"] == TRACE


@pytest.mark.requirement("GOV-6")
async def test_spans_carry_no_values_and_no_words_of_an_error(lab: GatewayLab) -> None:
    set_behaviour("hunter2", raise_error(ValueError("hunter2 is wrong")))
    _, spans = await _run_traced(lab, "look", "hunter2")
    assert "hunter2" not in str([span.to_json() for span in spans])
