"""A read whose service is not available is answered by an alternative, by the same caller, and says so."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize import ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import ToolFailed, UpstreamTimeout, UpstreamUnavailable
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.operations.admin.human_tasks import HumanTasks
from tests.support.failing_service import BREAKER
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.policies import OPEN_FILES
from tests.support.scripted_tools import TOOLS, Tag

pytestmark = pytest.mark.requirement("RES-2")

# What each tool raises, by its name, and who called it.
failures: dict[str, Exception] = {}
callers: list[tuple[str, str]] = []
ONCE = {"max_attempts": 1}


async def _answer(name: str, context: ToolContext) -> dict[str, Any]:
    callers.append((name, context.user))
    if name in failures:
        raise failures[name]
    return {"value": name}


@tool(namespace="lab", effects="read", retry=ONCE, fallback=["lab.second_rate", "lab.third_rate"])
async def first_rate(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Read the rate at the main service."""
    return await _answer("first_rate", context)


@tool(
    namespace="lab", effects="read", external_service="main_rates", breaker=BREAKER, retry=ONCE,
    fallback=["lab.second_rate"],
)  # fmt: skip
async def paused_rate(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Read the rate at a service with a circuit."""
    return await _answer("paused_rate", context)


@tool(namespace="lab", effects="read", retry=ONCE, fallback=["lab.third_rate"])
async def second_rate(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Read the rate at another service."""
    return await _answer("second_rate", context)


@tool(namespace="lab", effects="read", retry=ONCE)
async def third_rate(tag: Tag, context: ToolContext, detail: str = "") -> dict[str, Any]:
    """Read the rate of yesterday."""
    return await _answer("third_rate", context)


@tool(namespace="lab", effects="read", retry=ONCE, fallback=["lab.third_rate"], fallback_task="Quote it by telephone.")
async def quoted_rate(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Read the rate that a person quotes if nothing else does."""
    return await _answer("quoted_rate", context)


FUNCTIONS = (first_rate, paused_rate, second_rate, third_rate, quoted_rate)
TOOLS_HERE: list[PythonTool] = [getattr(each, ATTRIBUTE) for each in FUNCTIONS]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lab_folder, tools=[*TOOLS, *TOOLS_HERE]) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _all_work() -> None:
    failures.clear()
    callers.clear()


async def test_alternatives_answer_in_their_order_and_the_outcome_says_so(lab: GatewayLab) -> None:
    assert "degraded" not in parse_body(await lab.call("first_rate", "x"))
    failures["first_rate"] = UpstreamUnavailable("no answer")
    body = parse_body(await lab.call("first_rate", "x"))
    assert (body["state"], body["result"]) == ("succeeded", {"value": "second_rate"})
    assert body["degraded"] == {
        "from": "lab.first_rate", "to": "lab.second_rate", "reason": "upstream-unavailable", "attempts": [],
    }  # fmt: skip
    assert body["provenance"]["source"] == "lab.second_rate"
    assert body["warnings"] == [
        "answered by lab.second_rate, because lab.first_rate was not available (upstream-unavailable)"
    ]
    failures["second_rate"] = UpstreamTimeout("too slow")
    body = parse_body(await lab.call("first_rate", "x"))
    assert body["result"] == {"value": "third_rate"}
    assert body["degraded"]["attempts"] == [{"tool": "lab.second_rate", "reason": "upstream-timeout"}]
    # The second tool, called as an alternative, did not fall back on its own.
    assert [name for name, _ in callers[-3:]] == ["first_rate", "second_rate", "third_rate"]
    assert {user for _, user in callers} == {"ana"}


async def test_each_alternative_is_a_call_of_its_own_and_the_audit_marks_the_answer(lab: GatewayLab) -> None:
    failures["first_rate"] = UpstreamUnavailable("no answer")
    call_id = parse_body(await lab.call("first_rate", "audited"))["call_id"]
    rows = await lab.db.fetch("select entry from deputize.audit_entries where tenant = 'dev' order by id desc limit 10")
    entries = [orjson.loads(row["entry"]) for row in rows]
    own = next(each for each in entries if each["id"] == call_id)
    part = next(each for each in entries if each.get("parent") == call_id)
    assert (own["degradations"], own["outcome"]) == (["fallback"], "succeeded")
    assert (part["tool"], part["outcome"]) == ("lab.second_rate", "succeeded")
    assert "degradations" not in part


async def test_what_the_caller_may_not_call_is_skipped(lab: GatewayLab) -> None:
    failures["first_rate"] = UpstreamUnavailable("no answer")
    caller = await lab.make_caller(tools={"lab.first_rate": "*", "lab.third_rate": "*"})
    body = parse_body(await lab.call("first_rate", "hidden", by=caller))
    assert body["result"] == {"value": "third_rate"}
    assert body["degraded"]["attempts"] == [{"tool": "lab.second_rate", "reason": "tool-not-found"}]
    assert "second_rate" not in {name for name, _ in callers}


async def test_an_alternative_asks_nobody_for_approval(lab: GatewayLab) -> None:
    failures["first_rate"] = UpstreamUnavailable("no answer")
    admin = await lab.make_admin()
    ask = '@id("ask-second") @decision("ask") permit (principal, action, resource == Tool::"lab.second_rate");'
    forbid = '@id("free") permit (principal, action, resource) when { resource.name != "second_rate" };'
    await lab.gateway.commands.put_policies(admin, [PolicyFile(path="ask.cedar", text=f"{ask}\n{forbid}\n")])
    try:
        body = parse_body(await lab.call("first_rate", "asks"))
        assert body["result"] == {"value": "third_rate"}
        assert body["degraded"]["attempts"][0]["tool"] == "lab.second_rate"
        assert await lab.db.fetchval("select count(*) from deputize.human_tasks") == 0
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


async def test_if_none_answers_the_call_fails_as_it_did_and_says_why_each_was_skipped(lab: GatewayLab) -> None:
    failures["first_rate"] = UpstreamUnavailable("no answer")
    failures["second_rate"] = UpstreamUnavailable("no answer")
    failures["third_rate"] = ToolFailed("no rate yet")
    outcome = await lab.call("first_rate", "none")
    assert error_slug(outcome) == "upstream-unavailable"
    assert parse_body(outcome)["error"]["details"]["fallback"] == [
        {"tool": "lab.second_rate", "reason": "upstream-unavailable"},
        {"tool": "lab.third_rate", "reason": "tool-failed"},
    ]


async def test_a_verdict_of_the_tool_is_no_reason_to_ask_another(lab: GatewayLab) -> None:
    failures["first_rate"] = ToolFailed("no such rate")
    assert error_slug(await lab.call("first_rate", "verdict")) == "tool-failed"
    assert callers == [("first_rate", "ana")]


async def test_a_paused_service_is_skipped_without_a_call_to_it(lab: GatewayLab) -> None:
    failures["paused_rate"] = UpstreamUnavailable("no answer")
    for _ in range(5):
        await lab.call("paused_rate", "opens")
    callers.clear()
    body = parse_body(await lab.call("paused_rate", "open"))
    assert (body["degraded"]["reason"], body["result"]) == ("circuit-open", {"value": "second_rate"})
    assert callers == [("second_rate", "ana")]


async def test_if_none_answers_a_person_is_asked_once_for_each_tool(lab: GatewayLab) -> None:
    tasks, admin = HumanTasks(lab.runtime), await lab.make_admin()
    failures["quoted_rate"] = UpstreamUnavailable("no answer")
    assert "degraded" in parse_body(await lab.call("quoted_rate", "answered"))
    assert await tasks.list_tasks(admin) == []
    failures["third_rate"] = UpstreamTimeout("too slow")
    outcomes = await asyncio.gather(*(lab.call("quoted_rate", f"storm-{n}") for n in range(20)))
    errors = [parse_body(each)["error"] for each in outcomes]
    (task,) = await tasks.list_tasks(admin, kind="fallback")
    assert {each["details"]["task_id"] for each in errors} == {task["task_id"]}
    assert all(task["task_id"] in each["message"] for each in errors)
    assert {each["slug"] for each in errors} == {"upstream-unavailable"}
    assert task["question"]["asked"] == "Quote it by telephone."
    assert task["question"]["alternatives"] == [{"tool": "lab.third_rate", "reason": "upstream-timeout"}]
    assert task["call"]["tool"] == {"name": "lab.quoted_rate", "version": "0.1.0"}
    assert task["call"]["call_id"] in {parse_body(each)["call_id"] for each in outcomes}
    assert "storm-" not in orjson.dumps(task).decode()
    rows = await lab.db.fetch("select entry from deputize.audit_entries where tenant = 'dev'")
    entries = [orjson.loads(row["entry"]) for row in rows]
    (asked,) = [each for each in entries if each.get("subject") == task["task_id"]]
    assert (asked["kind"], asked["command"], asked["call"]) == ("decision", "ask_a_person", task["call"]["call_id"])
    # While nothing answers, a resolved task is followed by another.
    await tasks.resolve_task(admin, task["task_id"], "done", "quoted")
    again = parse_body(await lab.call("quoted_rate", "again"))["error"]["details"]["task_id"]
    assert again != task["task_id"]
    await tasks.resolve_task(admin, again, "dismissed", "it answers now")


async def test_a_verdict_and_a_tool_without_such_a_task_ask_nobody(lab: GatewayLab) -> None:
    failures.update(quoted_rate=ToolFailed("no such rate"), first_rate=UpstreamUnavailable("no answer"))
    failures.update(second_rate=UpstreamUnavailable("no answer"), third_rate=UpstreamUnavailable("no answer"))
    for name in ("quoted_rate", "first_rate"):
        assert "task_id" not in parse_body(await lab.call(name, "asks-nobody"))["error"]["details"]
    assert await HumanTasks(lab.runtime).list_tasks(await lab.make_admin()) == []
