"""What is written into texts that no schema marks reaches no table, entry, span, log or approver."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deputize import ToolFailed
from deputize.core.call import CallRequest
from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.evidence.tracing import Tracing
from deputize.lifecycle.run import Lifecycle
from tests.support.approval_lab import RULES, ApprovalLab
from tests.support.database_texts import list_tables_with
from tests.support.gateway_lab import GatewayLab, parse_body
from tests.support.scripted_tools import raise_error, set_behaviour

pytestmark = pytest.mark.requirement("GOV-6")

PLANTED = [
    "planted.person@example.org", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "219-09-9999",
    "+1 415 555 2671", "203.0.113.77", "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345", "hunter2planted",
    "q7Jm2Xv9LpR4tZ8wKc3NbY6d",
]  # fmt: skip
TEXT = (
    "write to {}, pay with {} or {}, ssn {}, phone {} from {} with {}, postgres://ana:{}@db.example/shop and {}"
).format(*PLANTED)
VISIBLE_TEXT = (
    "write to [email], pay with [card] or [iban], ssn [ssn], phone [phone] from [ip] with [redacted], "
    "postgres://[redacted]@db.example/shop and [redacted]"
)


def _list_planted(text: str) -> list[str]:
    return [each for each in PLANTED if each in text]


async def _run_traced(lab: GatewayLab, tool: str, tag: str) -> tuple[Outcome, str]:
    """Call a tool, and return the outcome with everything that spans and logs say."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(sample=1.0, tracer=provider.get_tracer("test"))
    request = CallRequest(tool=f"lab.{tool}", arguments={"tag": tag}, idempotency_key=f"{tool}-planted")
    with structlog.testing.capture_logs() as events:
        outcome = await Lifecycle(replace(lab.runtime, tracing=tracing)).run(await lab.make_caller(), request)
    return outcome, "".join(span.to_json() for span in exporter.get_finished_spans()) + str(events)


async def test_arguments_and_results_are_exact_for_the_call_and_redacted_everywhere_else(lab: GatewayLab) -> None:
    set_behaviour(TEXT, lambda _: {"value": TEXT})
    for tool in ("look", "note"):
        outcome, told = await _run_traced(lab, tool, TEXT)
        assert outcome.state is State.SUCCEEDED
        assert parse_body(outcome)["result"] == {"value": TEXT}
        assert _list_planted(told) == []
        entries = await lab.db.fetch(
            "select entry, salt from deputize.audit_entries where call_id = $1 order by id", outcome.call_id
        )
        first, last = orjson.loads(entries[0]["entry"]), orjson.loads(entries[-1]["entry"])
        assert _list_planted("".join(entry["entry"].decode() for entry in entries)) == []
        # What nobody marked is committed to as it is: the salted hash shows nothing, and proves the value.
        assert first["arguments"] == compute_commitment(entries[0]["salt"], canonicalize({"tag": TEXT}))
        assert last["result"] == compute_commitment(entries[-1]["salt"], canonicalize({"result": {"value": TEXT}}))


@pytest.mark.parametrize(
    "error", [ValueError(TEXT), ToolFailed(TEXT, details={"row": [TEXT], TEXT: 1})], ids=["exception", "failure"]
)
async def test_errors_quote_nothing_of_it(lab: GatewayLab, error: Exception) -> None:
    tag = f"planted {type(error).__name__}"
    set_behaviour(tag, raise_error(error))
    outcome, told = await _run_traced(lab, "look", tag)
    assert outcome.state is State.FAILED
    assert _list_planted(orjson.dumps(parse_body(outcome)).decode() + told) == []


async def test_approvers_see_what_kind_of_value_it_is_and_no_table_has_it(
    lab: GatewayLab, module_database: str
) -> None:
    approval_lab = ApprovalLab(lab=lab)
    await approval_lab.put_policies(RULES)
    _, request_id = await approval_lab.request_approval("put", TEXT)
    presentation: dict[str, Any] = await approval_lab.approvals.get_request(
        await approval_lab.make_approver("bo"), request_id
    )
    assert presentation["arguments"] == {"tag": VISIBLE_TEXT}
    assert _list_planted(orjson.dumps(presentation, default=str).decode()) == []
    assert await list_tables_with(module_database, PLANTED) == []
