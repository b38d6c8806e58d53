"""Results that are too long or too sensitive are stored, and given as references that only their caller can read."""

import asyncio
import resource
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field

from deputize import Content, Result, Sensitive, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.call import CallRequest
from deputize.core.caller import Caller, Capability
from deputize.core.outcome import Outcome
from deputize.core.results.outline import measure_length
from deputize.core.states import State
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.scripted_tools import AMPLE_SECONDS, TOOLS, WRITE_OPTIONS

pytestmark = [pytest.mark.requirement("INV-10"), pytest.mark.requirement("RES-5")]

BUDGET = 2_000
Count = Annotated[int, Field(description="How many rows", ge=0, examples=[3])]


@tool(effects="read", namespace="lab", max_inline=BUDGET, timeout=AMPLE_SECONDS, returns=dict[str, Any])
def export(count: Count) -> Result:
    """Export so many rows."""
    rows = [{"id": number, "name": f"row {number}", "text": "x" * 60} for number in range(count)]
    return Result(payload={"rows": rows}, summary=f"{count} rows", search_text="rows export")


@tool(effects="read", namespace="lab", max_inline=BUDGET, timeout=AMPLE_SECONDS)
def dump(count: Count) -> str:
    """Return a text of so many characters."""
    return "0123456789" * (count // 10)


class Patient(BaseModel):
    name: str
    diagnosis: Annotated[str, Sensitive()]


@tool(effects="read", namespace="lab", max_inline=BUDGET, timeout=AMPLE_SECONDS)
def find_patient(count: Count) -> Patient:
    """Find a patient by number."""
    return Patient(name=f"patient {count}", diagnosis="flu")


@tool(effects="write", resources=["update lab.rows/{count}"], max_inline=BUDGET, **WRITE_OPTIONS)
def refresh(count: Count) -> list[int]:
    """Make so many rows anew."""
    return list(range(count))


@tool(effects="write", resources=["update lab.patients/{count}"], max_inline=BUDGET, **WRITE_OPTIONS)
def move_patient(count: Count) -> Patient:
    """Move a patient by number."""
    return Patient(name=f"patient {count}", diagnosis="flu")


@tool(effects="read", namespace="lab", max_inline=BUDGET, timeout=AMPLE_SECONDS, returns=dict[str, int])
def photograph(count: Count) -> Result:
    """Take a photograph with a log of so many lines."""
    content = [Content.image(b"png"), Content.log("click\n" * count), Content.link("https://example.org/7", "album")]
    return Result(payload={"lines": count}, content=content, confidence=0.5, age_seconds=60, source="camera")


@pytest_asyncio.fixture
async def lab(fresh_database: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    tools = [
        *TOOLS,
        *(getattr(each, ATTRIBUTE) for each in (export, dump, find_patient, move_patient, refresh, photograph)),
    ]
    async with open_lab(fresh_database, tmp_path, tools=tools) as lab:
        yield lab


async def call(lab: GatewayLab, name: str, count: int, **more: Any) -> dict[str, Any]:
    outcome = await lab.call(name, {"count": count}, **more)
    assert outcome.state is State.SUCCEEDED, outcome.body
    return parse_body(outcome)


async def try_read(lab: GatewayLab, reference: str, by: Caller | None = None, **arguments: Any) -> Outcome:
    request = CallRequest(tool="results.read", arguments={"reference": reference, **arguments})
    return await lab.gateway.run_call(by or await lab.make_caller(), request)


async def read(lab: GatewayLab, reference: str, **arguments: Any) -> dict[str, Any]:
    outcome = await try_read(lab, reference, **arguments)
    assert outcome.state is State.SUCCEEDED, outcome.body
    result: dict[str, Any] = parse_body(outcome)["result"]
    return result


async def test_a_short_result_is_given_whole(lab: GatewayLab) -> None:
    envelope = await call(lab, "export", 3)
    assert len(envelope["result"]["rows"]) == 3
    assert "persistence" not in envelope
    assert await lab.db.fetchval("select count(*) from deputize.results") == 0


async def test_a_long_result_is_stored_and_read_in_parts(lab: GatewayLab) -> None:
    envelope = await call(lab, "export", 5_000)
    view, persistence = envelope["result"], envelope["persistence"]
    assert measure_length(view) <= BUDGET
    assert view["level"] == persistence["level"] == "L1"
    assert view["preview"]["rows"][0]["id"] == 0
    assert persistence["state"] == "stored"
    assert persistence["redaction"] == "none"
    assert (envelope["summary"], envelope["search_text"]) == ("5000 rows", "rows export")
    reference = view["reference"]
    assert persistence["reference"] == reference
    part = await read(lab, reference, path="/rows", offset=4_000, limit=2)
    assert [each["id"] for each in part["value"]] == [4_000, 4_001]
    assert (part["total"], part["next_offset"]) == (5_000, 4_002)
    assert part["call_id"] == envelope["call_id"]
    names = await read(lab, reference, path="$.rows[*].name", offset=10, limit=2)
    assert names["value"] == ["row 10", "row 11"]


async def test_reading_never_ends_in_another_reference(lab: GatewayLab) -> None:
    reference = (await call(lab, "dump", 300_000))["result"]["reference"]
    outcome = await try_read(lab, reference, max_characters=100_000)
    envelope = parse_body(outcome)
    assert len(envelope["result"]["value"]) == 100_000
    assert "persistence" not in envelope
    assert await lab.db.fetchval("select count(*) from deputize.results") == 1


async def test_what_is_read_has_an_audit_entry_like_any_call(lab: GatewayLab) -> None:
    reference = (await call(lab, "dump", 5_000))["result"]["reference"]
    outcome = await try_read(lab, reference)
    entry = (await lab.fetch_entries(outcome.call_id))[-1]
    assert entry["tool"].startswith("results.read")


async def test_only_the_caller_and_its_delegates_can_read(lab: GatewayLab) -> None:
    ana = await lab.make_caller()
    agent = replace(ana, agents=("planner",), grants=("g1",))
    helper = replace(ana, agents=("helper", "planner"), grants=("g2", "g1"))
    reference = (await call(lab, "dump", 5_000, by=agent))["result"]["reference"]
    for reader in (agent, helper, ana):
        assert (await try_read(lab, reference, reader)).state is State.SUCCEEDED
    # An agent of the same names by another delegation, one that passed on to itself, and one whose own delegation
    # constrains the arguments that it did not send.
    constraints = ('{"arguments":{"lab.dump":{"count":{"const":1}}}}',)
    same_names = replace(agent, grants=("g3",))
    other_agents = (
        replace(ana, agents=("other",), grants=("g4",)), same_names, replace(helper, grants=("g5", "g3")),
        replace(ana, agents=("planner",)), replace(helper, constraints=constraints),
    )  # fmt: skip
    for_reading_only = replace(agent, capabilities=(Capability(tool="results.read"),))
    strangers = (await lab.make_caller("eve"), *other_agents, for_reading_only)
    refusals = [await try_read(lab, reference, each) for each in strangers]
    refusals.append(await try_read(lab, "result_" + "0" * 32))
    assert {error_slug(each) for each in refusals} == {"tool-precondition"}
    errors = [parse_body(each)["error"] | {"trace_id": None} for each in refusals]
    assert all(each == errors[0] for each in errors), "another caller's reference looks like one that does not exist"


async def test_a_result_from_before_delegations_were_stored_is_read_by_its_user_alone(lab: GatewayLab) -> None:
    ana = await lab.make_caller()
    agent = replace(ana, agents=("planner",), grants=("g1",))
    reference = (await call(lab, "dump", 5_000, by=agent))["result"]["reference"]
    await lab.db.execute("update deputize.results set caller_agent = null where reference = $1", reference)
    assert (await try_read(lab, reference, agent)).state is not State.SUCCEEDED
    assert (await try_read(lab, reference, ana)).state is State.SUCCEEDED


async def test_another_tenant_cannot_read(lab: GatewayLab) -> None:
    envelope = await call(lab, "dump", 5_000)
    stranger = replace(await lab.make_caller(), tenant="other")
    outcome = await try_read(lab, envelope["result"]["reference"], stranger)
    assert outcome.state is not State.SUCCEEDED
    assert await lab.runtime.stored_results.find_result("other", envelope["result"]["reference"]) is None
    assert await lab.runtime.stored_results.find_result("dev", envelope["result"]["reference"]) is not None


async def test_an_expired_reference_is_refused_and_its_bytes_are_deleted(lab: GatewayLab) -> None:
    reference = (await call(lab, "dump", 200_000))["result"]["reference"]
    kept = (await call(lab, "dump", 200_000))["result"]["reference"]
    await lab.db.execute(
        "update deputize.results set expires_at = clock_timestamp() - interval '1 second' where reference = $1",
        reference,
    )
    outcome = await try_read(lab, reference)
    assert "expired" in parse_body(outcome)["error"]["message"]
    await lab.runtime.stored_results.delete_expired()
    counts = await lab.db.fetch("select reference, count(*) from deputize.result_chunks group by 1")
    assert [each["reference"] for each in counts] == [kept]
    assert (await try_read(lab, reference)).state is not State.SUCCEEDED
    assert (await read(lab, kept))["total"] == 200_000


async def test_sensitive_values_are_hidden_until_they_are_asked_for(lab: GatewayLab) -> None:
    envelope = await call(lab, "find_patient", 7)
    assert b"flu" not in orjson.dumps(envelope)
    assert envelope["result"]["preview"]["name"] == "patient 7"
    assert envelope["persistence"]["redaction"] == "redacted"
    assert envelope["persistence"]["redacted_values"] == 1
    reference = envelope["result"]["reference"]
    hidden = await read(lab, reference)
    assert hidden["value"]["diagnosis"] != "flu"
    assert hidden["redaction"] == "hidden"
    revealed = await read(lab, reference, path="/diagnosis", reveal=True)
    assert (revealed["value"], revealed["redaction"]) == ("flu", "revealed")
    for name, state in (("move_patient", "partial"), ("refresh", "none")):
        outcome = await lab.call(name, {"count": 7}, key=name)
        export = await lab.gateway.call_exports.export_call(await lab.make_caller(), outcome.call_id)
        assert export["tool_result"]["redaction_state"] == state


async def test_a_repeated_key_gets_the_same_reference(lab: GatewayLab) -> None:
    first = await lab.call("refresh", {"count": 3_000}, key="once")
    second = await lab.call("refresh", {"count": 3_000}, key="once")
    assert first.body == second.body
    assert await lab.db.fetchval("select count(*) from deputize.results") == 1
    part = await read(lab, parse_body(first)["result"]["reference"], path="/2999")
    assert part["value"] == 2_999


async def test_content_is_given_beside_the_payload(lab: GatewayLab) -> None:
    envelope = await call(lab, "photograph", 2)
    assert envelope["result"] == {"lines": 2}
    assert envelope["content"] == [
        {"kind": "image", "data": "cG5n", "media_type": "image/png"},
        {"kind": "log", "text": "click\nclick\n", "media_type": "text/plain"},
        {"kind": "link", "uri": "https://example.org/7", "name": "album"},
    ]
    provenance = envelope["provenance"]
    assert (provenance["source"], provenance["age_seconds"], provenance["confidence"]) == ("camera", 60, 0.5)


async def test_content_counts_against_the_budget_and_is_stored_with_the_payload(lab: GatewayLab) -> None:
    envelope = await call(lab, "photograph", 2_000)
    assert "content" not in envelope
    assert measure_length(envelope["result"]) <= BUDGET
    reference = envelope["result"]["reference"]
    assert (await read(lab, reference, path="/payload/lines"))["value"] == 2_000
    log = await read(lab, reference, path="/content/1/text", offset=11_994)
    assert (log["value"], log["next_offset"]) == ("click\n", None)


async def test_erasing_a_person_deletes_what_is_stored_for_them(lab: GatewayLab) -> None:
    await call(lab, "dump", 5_000)
    kept = (await call(lab, "dump", 5_000, by=await lab.make_caller("bo")))["result"]["reference"]
    erasure = "01890000-0000-7000-8000-000000000000"
    await lab.db.execute(
        "insert into deputize.erasures (tenant, id, subject, names, pseudonym) values ('dev', $1, 'ana', '{}', 'p')",
        erasure,
    )
    while await lab.db.fetchval("select deputize.continue_erasure('dev', $1, 100, 60)", erasure) == "more":
        pass
    assert [each["reference"] for each in await lab.db.fetch("select reference from deputize.results")] == [kept]
    assert await lab.db.fetchval("select count(*) from deputize.result_chunks where reference <> $1", kept) == 0


async def test_nothing_readable_is_stored(lab: GatewayLab) -> None:
    await call(lab, "export", 2_000)
    for table in ("results", "result_chunks"):
        for row in await lab.db.fetch(f"select sealed from deputize.{table}"):
            assert b"row 1" not in row["sealed"]


async def test_a_call_whose_result_cannot_be_stored_still_ends(lab: GatewayLab) -> None:
    await lab.db.execute("alter table deputize.result_chunks rename to lost_chunks")
    try:
        envelope = await call(lab, "refresh", 3_000, key="kept")
    finally:
        await lab.db.execute("alter table deputize.lost_chunks rename to result_chunks")
    assert envelope["persistence"]["state"] == "not_stored"
    assert envelope["result"]["reference"] is None
    assert envelope["result"]["preview"][0] == 0
    incomplete = await lab.db.fetchval("select reference from deputize.results where sealed is null")
    assert error_slug(await try_read(lab, incomplete)) == "tool-precondition"


def read_memory() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_fifty_megabytes_do_not_stay_in_memory(lab: GatewayLab) -> None:
    size = 50_000_000
    await call(lab, "dump", size)
    peak = base = read_memory()
    done = asyncio.Event()

    async def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, read_memory())
            await asyncio.sleep(0.005)

    watcher = asyncio.create_task(watch())
    references = []
    for _ in range(3):
        envelope = await call(lab, "dump", size)
        assert measure_length(envelope["result"]) <= BUDGET
        references.append(envelope["result"]["reference"])
    for reference in references:
        part = await read(lab, reference, offset=size - 10)
        assert part["value"] == "0123456789"
    done.set()
    await watcher
    assert peak - base < 8 * size
    assert read_memory() - base < 2 * size
