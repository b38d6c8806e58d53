"""The errors of MCP servers reach callers, surfaces, logs and tables without secrets and paths."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from tests.support.database_texts import list_tables_with
from tests.support.mcp_servers.upstream import Upstream
from tests.support.upstream_gateway import NAME, UpstreamGateway, open_upstream_gateway

pytestmark = [pytest.mark.requirement("GOV-6"), pytest.mark.requirement("CON-6")]

PASSWORD, KEY_PATH = "tr0ub4dor", "/srv/keys/upstream.pem"
TOLD = [PASSWORD, "srv/keys"]


class ComplainingServer(Upstream):
    """Answers calls with errors that quote its key file and a password; `list_error` fails its lists too."""

    list_error = False

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        said = f"cannot open {KEY_PATH} with password={PASSWORD}"
        if request.get("method") == "tools/call" and request["params"]["name"] == "get_order":
            return self._result(request, {"content": [{"type": "text", "text": said}], "isError": True})
        if request.get("method") == "tools/call" or (self.list_error and request.get("method") == "tools/list"):
            error = {"code": -32603, "message": said, "data": said}
            return {"jsonrpc": "2.0", "id": request.get("id"), "error": error}
        return super().answer(request)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def complaint_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[UpstreamGateway]:
    server = ComplainingServer()
    server.start()
    try:
        async with open_upstream_gateway(module_database, tmp_path_factory.mktemp("complaining"), server) as opened:
            yield opened
    finally:
        server.stop()


@pytest.mark.parametrize("tool", [f"{NAME}.get_order", f"{NAME}.cancel_order"])
async def test_a_servers_error_quotes_no_secret_and_no_path(complaint_gateway: UpstreamGateway, tool: str) -> None:
    answer = await complaint_gateway.call_tool(tool)
    assert "cannot open [path]" in answer.text
    assert answer.json()["redaction_state"] == "partial"
    assert not [each for each in TOLD if each in answer.text]


@pytest.mark.parametrize("tool", [f"{NAME}.get_order", f"{NAME}.cancel_order"])
async def test_a_servers_error_names_the_path_that_the_caller_sent(
    complaint_gateway: UpstreamGateway, tool: str
) -> None:
    answer = await complaint_gateway.call_tool(tool, name=KEY_PATH)
    assert f"cannot open {KEY_PATH}" in answer.text
    assert PASSWORD not in answer.text


async def test_why_a_server_is_unavailable_quotes_no_secret_and_no_path(
    complaint_gateway: UpstreamGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    server = complaint_gateway.upstream
    assert isinstance(server, ComplainingServer)
    server.list_error = True
    try:
        tested = await complaint_gateway.gateway.post(f"/v1/servers/{NAME}/test", token=complaint_gateway.admin_token)
        surface = await complaint_gateway.gateway.get(
            "/v1/surface", token=complaint_gateway.admin_token, namespace=NAME
        )
        shown = await complaint_gateway.fetch_server()
    finally:
        server.list_error = False
    text = tested.text + surface.text + orjson.dumps(shown).decode() + "".join(capsys.readouterr())
    assert "[path]" in text
    assert not [each for each in TOLD if each in text]


async def test_no_table_keeps_what_a_server_quoted(complaint_gateway: UpstreamGateway, module_database: str) -> None:
    await complaint_gateway.call_tool(f"{NAME}.cancel_order")
    assert await list_tables_with(module_database, TOLD) == []
