"""Calls over MCP after the database was restored: a key that is not on record needs the caller's statement."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.core.mcp.constants import DID_NOT_HAPPEN, HANDSHAKE_VERSIONS, MODERN_VERSION
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support.gateway_internals import get_runtime
from tests.support.mcp_client import McpClient, McpResponse
from tests.support.mcp_servers.eliciting_server import ANSWERS, FORMS, ElicitingServer
from tests.support.restored_database import begin_next_lineage, wait_for_recovery
from tests.support.upstream_gateway import open_upstream_gateway, server_settings

pytestmark = pytest.mark.requirement("INV-2")

RENAME = {"id": 1, "name": "x"}
STATED = {DID_NOT_HAPPEN: True}


async def restore(gateway: HttpGateway, dsn: str) -> None:
    """Begin the lineage of a confirmed restore, and wait until the gateway knows of it."""
    await begin_next_lineage(dsn)
    assert gateway.in_process is not None
    await wait_for_recovery(get_runtime(gateway.in_process))


def read_slug(answer: McpResponse) -> str:
    assert answer.result["isError"]
    slug: str = answer.structured_content["error"]["slug"]
    return slug


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def restored_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HttpGateway]:
    async with serve_gateway(module_database, tmp_path_factory.mktemp("gateway")) as gateway:
        await restore(gateway, module_database)
        yield gateway


@pytest.mark.parametrize("version", [MODERN_VERSION, HANDSHAKE_VERSIONS[0]])
async def test_a_write_with_a_new_key_needs_the_statement_that_it_did_not_happen(
    restored_gateway: HttpGateway, version: str
) -> None:
    client, key = McpClient(restored_gateway, version=version), f"new-{version}"
    refused = await client.call_tool("shop__rename_user", RENAME, key=key)
    assert read_slug(refused) == "restored"
    for statement in (False, None):
        denied = await client.call_tool("shop__rename_user", RENAME, key=key, meta={DID_NOT_HAPPEN: statement})
        assert read_slug(denied) == "restored"
    done = await client.call_tool("shop__rename_user", RENAME, key=key, meta=STATED)
    assert not done.result["isError"]
    repeated = await client.call_tool("shop__rename_user", RENAME, key=key)
    assert repeated.structured_content == done.structured_content
    # The same key over REST is the same call.
    over_rest = await restored_gateway.call("shop.rename_user", RENAME, key=key)
    assert over_rest.headers["idempotency-replayed"] == "true"


async def test_a_statement_that_is_not_true_or_false_is_refused(restored_gateway: HttpGateway) -> None:
    client = McpClient(restored_gateway)
    answer = await client.call_tool("shop__rename_user", RENAME, key="odd", meta={DID_NOT_HAPPEN: "yes"})
    assert "did_not_happen" in str(answer.last_message)
    assert read_slug(await client.call_tool("shop__rename_user", RENAME, key="odd")) == "restored"


async def test_the_answer_to_an_input_round_is_known_by_the_key_of_the_round(
    fresh_database: str, tmp_path: Path
) -> None:
    server = ElicitingServer()
    server.start()
    try:
        named = (server_settings(server, slow=(), input_requests=("elicitation",)),)
        async with open_upstream_gateway(fresh_database, tmp_path, server, named) as found:
            client = McpClient(found.gateway, token=found.admin_token, capabilities=FORMS)
            await check_rounds(client, server, lambda: restore(found.gateway, fresh_database))
    finally:
        server.stop()


async def check_rounds(
    client: McpClient, server: ElicitingServer, restore_database: Callable[[], Awaitable[None]]
) -> None:
    tool, arguments = "orders__cancel_order", {"name": "Ana"}
    answered, unanswered = [await client.call_tool(tool, arguments, key=key) for key in ("answered", "unanswered")]
    rounds = [
        {"requestState": each.result["requestState"], "inputResponses": ANSWERS} for each in (answered, unanswered)
    ]
    done = await client.call_tool(tool, arguments, key="answered", **rounds[0])
    assert len(server.tool_calls) == 1
    await restore_database()
    # On record, whatever key comes with it.
    repeated = await client.call_tool(tool, arguments, key="another", **rounds[0])
    assert repeated.result["content"] == done.result["content"]
    # The key of the call that asked is on record; the round that answers it is not, with or without a key.
    for key in ("unanswered", None):
        assert read_slug(await client.call_tool(tool, arguments, key=key, **rounds[1])) == "restored"
    assert len(server.tool_calls) == 1
    stated = await client.call_tool(tool, arguments, key="unanswered", meta=STATED, **rounds[1])
    assert stated.result["content"][0]["text"].endswith("done")
    assert len(server.tool_calls) == 2
