"""What a contract declares about failures holds: the shape of errors, the statuses that are retried, the milestones."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.errors import ToolFailed, ToolPrecondition
from deputize.core.states import State
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.scripted_tools import TOOLS, WRITE_OPTIONS, Tag, _behave, list_effects, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("CON-2")

ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "message": {"type": "string"},
        "details": {"type": "object", "properties": {"code": {"enum": ["gone", "busy"]}}, "required": ["code"]},
    },
    "required": ["message", "details"],
}
RETRY = {"max_attempts": 3, "base_seconds": 0.001, "retry_on_status_codes": [418, 429]}


@tool(effects="write", resources=["create lab.notes/{tag}"], error_schema=ERROR_SCHEMA, **WRITE_OPTIONS)
async def typed_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note, and fail in one of two declared ways."""
    return await _behave("typed_note", tag, context)


@tool(effects="read", namespace="lab", retry=RETRY)
async def status_look(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something behind HTTP."""
    return await _behave("status_look", tag, context)


@tool(
    effects="write",
    resources=["create lab.notes/{tag}"],
    idempotency="cannot",
    **{**WRITE_OPTIONS, "retry": RETRY},
)
async def status_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note behind HTTP."""
    return await _behave("status_note", tag, context)


@tool(
    effects="write",
    resources=["create lab.notes/{tag}"],
    checkpoints={"enabled": True, "macro_events": ["paid"]},
    **WRITE_OPTIONS,
)
async def milestone_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note in steps, of which one is a milestone."""
    await context.save({"step": 1})
    await context.save({"step": 2}, name="paid", macro=True)
    await context.save({"step": 3}, name="draft")
    if tag == "undeclared":
        await context.save({"step": 4}, name="shipped", macro=True)
    if tag == "unnamed":
        await context.save({"step": 4}, macro=True)
    return {"value": tag}


OWN_TOOLS = [getattr(each, ATTRIBUTE) for each in (typed_note, status_look, status_note, milestone_note)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def declared_lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    folder: Path = tmp_path_factory.mktemp("declared")
    async with open_lab(module_database, folder, tools=[*TOOLS, *OWN_TOOLS]) as opened:
        yield opened


class ReplyError(Exception):
    """An error as client libraries raise it, with the response."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the service answered {status}")
        self.response = type("Response", (), {"status_code": status})()


async def test_a_declared_error_reaches_the_caller_with_its_details(declared_lab: GatewayLab) -> None:
    set_behaviour("gone", raise_error(ToolFailed("it is gone", details={"code": "gone"})))
    failed = parse_body(await declared_lab.call("typed_note", "gone", key="gone"))
    assert (failed["detail"], failed["error"]["details"]) == ("it is gone", {"code": "gone"})


@pytest.mark.parametrize(
    "error",
    [
        ValueError("surprise"),
        ToolFailed("surprise"),
        ToolFailed("surprise", details={"code": "on fire"}),
        ToolPrecondition("surprise", details={"code": 2**70}),
    ],
    ids=["exception", "no details", "other code", "no JSON"],
)
async def test_an_error_that_is_not_declared_keeps_its_kind_and_loses_its_text(
    declared_lab: GatewayLab, error: Exception, request: pytest.FixtureRequest
) -> None:
    tag = request.node.callspec.id
    set_behaviour(tag, raise_error(error))
    failed = await declared_lab.call("typed_note", tag, key=tag)
    body = parse_body(failed)
    assert error_slug(failed) == ("tool-precondition" if isinstance(error, ToolPrecondition) else "tool-failed")
    assert "does not match its error schema" in body["detail"]
    assert "surprise" not in str(body)
    assert body["error"]["details"]["violates"] == "error_schema"
    assert body["error"]["details"]["errors"]


@pytest.mark.parametrize(("status", "attempts"), [(418, 3), (429, 3), (503, 1), (404, 1)])
async def test_a_read_is_retried_on_the_declared_statuses_only(
    declared_lab: GatewayLab, status: int, attempts: int
) -> None:
    tag = f"read-{status}"
    set_behaviour(tag, raise_error(ReplyError(status)))
    failed = await declared_lab.call("status_look", tag)
    assert len(list_effects(tag)) == attempts
    assert parse_body(failed)["error"]["details"]["http_status"] == status


async def test_a_status_proves_nothing_about_a_write_that_cannot_be_repeated(declared_lab: GatewayLab) -> None:
    set_behaviour("teapot", raise_error(ReplyError(418)))
    outcome = await declared_lab.call("status_note", "teapot", key="teapot")
    assert (outcome.state, len(list_effects("teapot"))) == (State.UNKNOWN, 1)
    set_behaviour("absent", raise_error(ReplyError(404)))
    assert (await declared_lab.call("status_note", "absent", key="absent")).state is State.FAILED


async def test_only_declared_milestones_are_stored(declared_lab: GatewayLab) -> None:
    assert (await declared_lab.call("milestone_note", "paid", key="paid")).state is State.SUCCEEDED
    for tag in ("undeclared", "unnamed"):
        failed = parse_body(await declared_lab.call("milestone_note", tag, key=tag))
        assert "must be one of the contract's checkpoints.macro_events: paid" in failed["detail"]
