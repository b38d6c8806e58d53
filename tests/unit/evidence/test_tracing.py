"""One trace per call, a span per phase, and nothing secret in either."""

from importlib.metadata import version

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import (
    gen_ai_attributes,
    http_attributes,
    mcp_attributes,
    rpc_attributes,
    url_attributes,
)
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind

from deputize.core.caller import Caller
from deputize.core.contract.handler import Handler
from deputize.core.contract.http_request import HttpRequest
from deputize.core.errors import ToolFailed
from deputize.core.mcp.servers import CALL_TOOL
from deputize.core.telemetry import EXECUTE_TOOL, GRPC_SYSTEM, SEMANTIC_CONVENTIONS, Attribute, Span
from deputize.evidence.tracing import CallTraceIds, Tracing

pytestmark = pytest.mark.requirement("OBS-1")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED_PARENT, UNSAMPLED_PARENT = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
CALL = "01890000-0000-7000-8000-0000000000ff"
PHASES = (Span.VALIDATE, Span.AUTHORIZE, Span.EXECUTE, Span.VERIFY, Span.REPLY)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def make_tracing(exporter: InMemorySpanExporter, sample: float) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False, id_generator=CallTraceIds())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(sample=sample, tracer=provider.get_tracer("test"))


def _run_call(tracing: Tracing, traceparent: str | None) -> str:
    trail = tracing.start_trace(traceparent, CALL)
    if trail.tracer is None:
        for phase in PHASES:
            with trail.start_phase(phase):
                pass
        return trail.trace_id
    with trail.start_call("crm.get_user", CALL):
        for phase in PHASES:
            with trail.start_phase(phase):
                pass
    return trail.trace_id


def test_a_sampled_traceparent_is_always_recorded_as_part_of_the_callers_trace(exporter: InMemorySpanExporter) -> None:
    assert _run_call(make_tracing(exporter, 0.0), SAMPLED_PARENT) == TRACE
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {Span.CALL, *PHASES}
    root = spans[Span.CALL]
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT
    for span in spans.values():
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE
    for phase in PHASES:
        parent = spans[phase].parent
        assert parent is not None
        assert root.context is not None
        assert parent.span_id == root.context.span_id
    assert dict(root.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "crm.get_user", "gen_ai.tool.call.id": CALL,
        "deputize.call.id": CALL,
    }  # fmt: skip


@pytest.mark.parametrize("sample", [0.0, 1.0])
def test_an_unsampled_traceparent_creates_no_span_but_is_propagated(
    exporter: InMemorySpanExporter, sample: float
) -> None:
    made = make_tracing(exporter, sample)
    assert _run_call(made, UNSAMPLED_PARENT) == TRACE
    assert exporter.get_finished_spans() == ()
    assert made.start_trace(UNSAMPLED_PARENT, CALL).traceparent == UNSAMPLED_PARENT


def test_a_gateway_that_records_nothing_passes_on_what_the_caller_decided() -> None:
    trail = Tracing(sample=1.0, tracer=None).start_trace(SAMPLED_PARENT, CALL)
    assert (trail.tracer, trail.traceparent) == (None, SAMPLED_PARENT)


def test_a_call_without_a_trace_gets_one_named_after_it(exporter: InMemorySpanExporter) -> None:
    assert _run_call(make_tracing(exporter, 0.0), None) == CALL.replace("-", "")
    assert exporter.get_finished_spans() == ()
    assert _run_call(make_tracing(exporter, 1.0), None) == CALL.replace("-", "")
    spans = exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {CALL.replace("-", "")}
    assert [span.name for span in spans if span.parent is None] == [Span.CALL]


@pytest.mark.parametrize(
    "bad",
    ["", "x", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{PARENT}-01",
     f"00-{TRACE}-{PARENT}", f"00-{TRACE}-{PARENT}-01\n", f"ff-{TRACE}-{PARENT}-01"],
)  # fmt: skip
def test_a_broken_traceparent_is_passed_over(exporter: InMemorySpanExporter, bad: str) -> None:
    assert make_tracing(exporter, 0.0).start_trace(bad, CALL).trace_id == CALL.replace("-", "")


def test_what_is_sent_on_names_the_current_span(exporter: InMemorySpanExporter) -> None:
    trail = make_tracing(exporter, 0.0).start_trace(SAMPLED_PARENT, CALL)
    with trail.start_call("crm.get_user", CALL), trail.start_phase(Span.EXECUTE):
        sent = trail.traceparent
    execute = next(span for span in exporter.get_finished_spans() if span.name == Span.EXECUTE)
    assert execute.context is not None
    assert sent == f"00-{TRACE}-{execute.context.span_id:016x}-01"


def test_a_worker_continues_the_trace_of_a_call_in_its_span(exporter: InMemorySpanExporter) -> None:
    trail = make_tracing(exporter, 1.0).start_trace(None, CALL)
    with trail.start_call("crm.get_user", CALL):
        stored = trail.traceparent
    # Another process, which would not have recorded this call by itself.
    resumed = make_tracing(exporter, 0.0).start_trace(stored, CALL)
    with resumed.start_call("crm.get_user", CALL, None, Span.RUN):
        pass
    call, run = exporter.get_finished_spans()
    assert call.context is not None
    assert run.parent is not None
    assert (run.name, run.parent.span_id, run.parent.trace_id) == (
        Span.RUN, call.context.span_id, call.context.trace_id,
    )  # fmt: skip
    unrecorded = make_tracing(exporter, 0.0).start_trace(None, CALL).traceparent
    assert make_tracing(exporter, 1.0).start_trace(unrecorded, CALL).tracer is None


@pytest.mark.parametrize(
    ("handler", "kind", "attributes"),
    [
        (Handler(target="crm:get_user"), SpanKind.INTERNAL, {}),
        (Handler(driver="mcp", target="crm/get_user"), SpanKind.CLIENT, {"mcp.method.name": "tools/call"}),
        (
            Handler(driver="http", target="crm/getUser", request=HttpRequest(method="GET", path="/users/{id}")),
            SpanKind.CLIENT, {"http.request.method": "GET", "url.template": "/users/{id}"},
        ),
        (Handler(driver="grpc", target="crm/GetUser"), SpanKind.CLIENT, {"rpc.system.name": "grpc"}),
    ],
)  # fmt: skip
def test_an_attempt_says_what_it_requests_by_the_conventions_of_its_protocol(
    exporter: InMemorySpanExporter, handler: Handler, kind: SpanKind, attributes: dict[str, str]
) -> None:
    trail = make_tracing(exporter, 1.0).start_trace(None, CALL)
    with trail.start_call("crm.get_user", CALL), trail.start_attempt(CALL, 2, handler):
        pass
    attempt, _ = exporter.get_finished_spans()
    assert (attempt.name, attempt.kind) == (Span.ATTEMPT, kind)
    assert dict(attempt.attributes or {}) == {
        "deputize.call.id": CALL, "deputize.attempt.number": 2, "deputize.attempt.target": handler.target, **attributes,
    }  # fmt: skip


def _dump_span(span: ReadableSpan) -> str:
    return str(span.to_json())


@pytest.mark.requirement("GOV-6")
@pytest.mark.parametrize("error", [ToolFailed("the password is hunter2"), RuntimeError("the password is hunter2")])
def test_a_span_names_the_kind_of_a_problem_and_never_its_words(
    exporter: InMemorySpanExporter, error: Exception
) -> None:
    trail = make_tracing(exporter, 0.0).start_trace(SAMPLED_PARENT, CALL)
    with pytest.raises(type(error)), trail.start_call("crm.get_user", CALL), trail.start_phase(Span.EXECUTE):
        raise error
    spans = exporter.get_finished_spans()
    assert len(spans) == 2
    assert all("hunter2" not in _dump_span(span) for span in spans)
    execute = next(span for span in spans if span.name == Span.EXECUTE)
    assert not execute.status.is_ok
    if isinstance(error, ToolFailed):
        assert dict(execute.attributes or {}) == {"error.type": "tool-failed"}


def test_names_are_those_of_the_pinned_semantic_conventions() -> None:
    assert version("opentelemetry-semantic-conventions") == SEMANTIC_CONVENTIONS
    conventional_names = {
        Attribute.OPERATION: gen_ai_attributes.GEN_AI_OPERATION_NAME,
        Attribute.TOOL: gen_ai_attributes.GEN_AI_TOOL_NAME,
        Attribute.TOOL_CALL: gen_ai_attributes.GEN_AI_TOOL_CALL_ID,
        Attribute.CONVERSATION: gen_ai_attributes.GEN_AI_CONVERSATION_ID,
        Attribute.MCP_METHOD: mcp_attributes.MCP_METHOD_NAME,
        Attribute.HTTP_METHOD: http_attributes.HTTP_REQUEST_METHOD,
        Attribute.URL_TEMPLATE: url_attributes.URL_TEMPLATE,
        Attribute.RPC_SYSTEM: rpc_attributes.RPC_SYSTEM_NAME,
        Attribute.ERROR: error_attributes.ERROR_TYPE,
    }
    assert all(attribute.value == name for attribute, name in conventional_names.items())
    assert gen_ai_attributes.GenAiOperationNameValues.EXECUTE_TOOL.value == EXECUTE_TOOL
    assert mcp_attributes.McpMethodNameValues.TOOLS_CALL.value == CALL_TOOL
    assert rpc_attributes.RpcSystemNameValues.GRPC.value == GRPC_SYSTEM
    assert all(each.startswith("deputize.") for each in Attribute if each not in conventional_names)


def _make_agent(task: str | None, *grants: str) -> Caller:
    return Caller(tenant="dev", user="ana", agents=("bot",), task=task, grants=grants)


def test_all_calls_of_a_task_have_one_trace(exporter: InMemorySpanExporter) -> None:
    tracing, other_call = make_tracing(exporter, 0.5), CALL.replace("ff", "aa")
    trails = [
        tracing.start_trace(None, call_id, _make_agent("t-1", *grants))
        for call_id, grants in ((CALL, ("g-1",)), (other_call, ("g-1",)), (other_call, ("inner", "g-1")))
    ]
    assert len({(trail.trace_id, trail.tracer) for trail in trails}) == 1
    for agent in (_make_agent("t-2", "g-1"), _make_agent("t-1", "g-2"), _make_agent(None, "g-1"), _make_agent("t-1")):
        assert tracing.start_trace(None, CALL, agent).trace_id != trails[0].trace_id
    assert tracing.start_trace(UNSAMPLED_PARENT, CALL, _make_agent("t-1", "g-1")).trace_id == TRACE


def test_the_share_of_recorded_tasks_is_the_sample(exporter: InMemorySpanExporter) -> None:
    for sample, bounds in ((0.0, (0, 0)), (0.5, (400, 600)), (1.0, (1000, 1000))):
        tracing = make_tracing(exporter, sample)
        trails = [tracing.start_trace(None, CALL, _make_agent(f"t-{number}", "g-1")) for number in range(1000)]
        assert bounds[0] <= sum(trail.tracer is not None for trail in trails) <= bounds[1]
