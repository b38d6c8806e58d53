"""The same words again, from clients that follow tasks; and answers to questions that nobody asked."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
import pytest_asyncio
from pydantic import Field

from deputize import tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.mcp import INVALID_PARAMS
from tests.integration import shop
from tests.integration.doors.mcp.speaking import TASKS, Speaker
from tests.integration.doors.people import Office, open_office

Name = Annotated[str, Field(description="Whom to greet", examples=["ana"])]


@tool(effects="read", namespace="shop", timeout="long-running", returns=str)
async def greet_later(name: Name) -> str:
    """Greet somebody, which may take long."""
    return f"hello {name}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def office(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    tools = [*shop.TOOLS, getattr(greet_later, ATTRIBUTE)]
    async with open_office(module_database, tmp_path_factory.mktemp("office"), tools=tools) as opened:
        yield opened


@pytest.mark.requirement("INV-4")
async def test_what_a_task_was_followed_to_the_end_of_is_made_anew_by_the_same_words(office: Office) -> None:
    speaker = Speaker(office.served, abilities=TASKS)
    first = (await speaker.call("shop__greet_later", {"name": "ana"})).result
    ended = (await speaker.call("calls_get", {"call_id": first["taskId"], "wait_ms": 20_000})).structured
    assert ended["status"] == "succeeded"
    second = (await speaker.call("shop__greet_later", {"name": "ana"})).result
    assert second["resultType"] == "task"
    assert second["taskId"] != first["taskId"]


@pytest.mark.parametrize("answers", [None, 7, [], {"name": 12345}, {"name": None}])
async def test_answers_that_are_none_are_an_error_of_the_request(office: Office, answers: Any) -> None:
    sent = {"name": "shop__greet_later", "arguments": {"name": "bo"}, "inputResponses": answers}
    assert (await Speaker(office.served).ask("tools/call", sent)).error["code"] == INVALID_PARAMS
