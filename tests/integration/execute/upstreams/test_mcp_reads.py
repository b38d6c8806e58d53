"""Test reads of resources, prompts and completions over HTTP and stdio, in both protocol eras, limited to pins."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deputize.catalog.importers.mcp_resources import build_method_contract
from deputize.core.errors import ResourceNotFound, ResultInvalid, SchemaViolation, ToolFailed, ToolRequiresSetup
from deputize.core.errors import UpstreamUnavailable as Away
from deputize.core.mcp.resources import PinnedResources
from deputize.core.mcp.servers import COMPLETE, GET_PROMPT, READ_RESOURCE, Definition, DefinitionKind
from deputize.core.settings import McpServerSettings
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.upstreams.server_pool import UpstreamPool
from tests.integration.execute.upstreams.conftest import SECONDS, open_upstreams
from tests.integration.execute.upstreams.test_mcp_driver import CONTEXT
from tests.support.mcp_servers import resources_server
from tests.support.mcp_servers.resources_server import BLOB, LOGO, PAGES, README, write_declarations
from tests.support.mcp_servers.upstream import Upstream

pytestmark = pytest.mark.requirement("EXE-1")

EVERYTHING: dict[str, Any] = {"resources": ("*",), "prompts": ("*",), "start_seconds": 60}
SUMMARY = {"ref": {"type": "ref/prompt", "name": "summary"}, "argument": {"name": "page", "value": "Pa"}}


async def run_read(upstreams: UpstreamPool, server: McpServerSettings, method: str, **arguments: Any) -> Any:
    contract = build_method_contract(
        server,
        Definition.from_declaration({"name": method}, DefinitionKind.METHOD),
        registered_name="read",
        version="1.0.0",
    )
    driver = McpDriver(upstreams)
    return await driver.run(driver.find_tool(contract), arguments, CONTEXT, SECONDS)


async def pin_everything(upstreams: UpstreamPool, server: McpServerSettings) -> None:
    """Pin everything that the server has now."""
    found = await upstreams.discover_server("dev", server.name, None, SECONDS)
    upstreams.pin_resources(
        "dev", server.name, PinnedResources.from_pins((each.item, each.declaration) for each in found.other_definitions)
    )


@pytest.fixture(scope="module", params=["http", "stdio"])
def read_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[McpServerSettings]:
    folder = tmp_path_factory.mktemp("library")
    if request.param == "http":
        with resources_server.run_resources_server(folder) as running:
            yield McpServerSettings(name="shop", url=running.url, **EVERYTHING)
        return
    write_declarations(folder)
    command = (sys.executable, resources_server.__file__, str(folder), "--stdio")
    environment = {"PYTHONPATH": str(Path(resources_server.__file__).parents[3])}
    yield McpServerSettings(name="shop", command=command, sandbox=False, env=environment, **EVERYTHING)


async def test_what_a_server_has_beside_tools_is_found_and_read(read_server: McpServerSettings) -> None:
    async with open_upstreams(read_server) as upstreams:
        await pin_everything(upstreams, read_server)
        assert upstreams.get_methods("dev", "shop") == {READ_RESOURCE, GET_PROMPT, COMPLETE}
        read = await run_read(upstreams, read_server, READ_RESOURCE, uri=README)
        assert read == {"contents": [{"uri": README, "mimeType": "text/markdown", "text": f"This is {README}."}]}
        assert (await run_read(upstreams, read_server, READ_RESOURCE, uri=LOGO))["contents"][0]["blob"] == BLOB
        prompt = await run_read(upstreams, read_server, GET_PROMPT, name="summary", arguments={"page": "3"})
        assert prompt["messages"][0]["content"] == {"type": "text", "text": "Sum up 3."}
        completed = await run_read(upstreams, read_server, COMPLETE, **SUMMARY)
        assert completed["completion"]["values"] == ["Paris"]


async def test_nothing_is_asked_for_that_was_not_agreed_to(read_server: McpServerSettings) -> None:
    async with open_upstreams(read_server) as upstreams:
        await pin_everything(upstreams, read_server)
        for method, asked in (
            (READ_RESOURCE, {"uri": "docs://pages/%2e%2e"}),
            (READ_RESOURCE, {"uri": PAGES}),
            (GET_PROMPT, {"name": "other"}),
            (COMPLETE, {**SUMMARY, "ref": {"type": "ref/resource", "uri": "docs://{other}"}}),
        ):
            with pytest.raises(ResourceNotFound) as refused:
                await run_read(upstreams, read_server, method, **asked)
            assert refused.value.nothing_happened
        upstreams.pin_resources("dev", "shop", PinnedResources())
        with pytest.raises(ResourceNotFound):
            await run_read(upstreams, read_server, READ_RESOURCE, uri=README)


async def test_read_errors_of_a_server_are_mapped_to_problems(read_server: McpServerSettings) -> None:
    async with open_upstreams(read_server) as upstreams:
        await pin_everything(upstreams, read_server)
        with pytest.raises(ResourceNotFound):
            await run_read(upstreams, read_server, READ_RESOURCE, uri="docs://pages/none")
        with pytest.raises(SchemaViolation, match="page is missing"):
            await run_read(upstreams, read_server, GET_PROMPT, name="summary")


async def test_where_the_operator_named_none_the_server_is_not_even_asked_what_it_has(
    read_server: McpServerSettings,
) -> None:
    unsaid = read_server.model_copy(update={"resources": (), "prompts": ()})
    async with open_upstreams(unsaid) as upstreams:
        found = await upstreams.discover_server("dev", "shop", None, SECONDS)
        assert found.other_definitions == ()
        upstreams.pin_resources("dev", "shop", PinnedResources(resources={README: {}}))
        with pytest.raises(Away, match="no longer supports"):
            await run_read(upstreams, unsaid, READ_RESOURCE, uri=README)
    async with open_upstreams() as upstreams:
        with pytest.raises(ToolRequiresSetup):
            await run_read(upstreams, unsaid, READ_RESOURCE, uri=README)


class LegacyServer(Upstream):
    """A server with a handshake, without templates, whose results a test can change."""

    result: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        method = request.get("method")
        if method == "initialize":
            told = super().answer(request)
            told["result"]["capabilities"] = {"resources": {"subscribe": True}}
            return told
        if method == "resources/list":
            return self._result(request, {"resources": [{"uri": "old://a", "name": "a"}]})
        if method == "resources/read":
            self.tool_calls.append((request["params"]["uri"], {}))
            return {"jsonrpc": "2.0", "id": request["id"], **self.result}
        return super().answer(request)


async def test_a_server_of_the_handshake_is_read_as_well_and_its_own_code_is_understood() -> None:
    older = LegacyServer()
    older.start()
    try:
        server = McpServerSettings(name="shop", url=older.url, **EVERYTHING)
        async with open_upstreams(server) as upstreams:
            await pin_everything(upstreams, server)
            contents = [{"uri": "old://a", "text": "A"}, {"uri": "old://a#2", "blob": "Qg=="}]
            older.result = {"result": {"contents": contents, "_meta": {"aside": 1}, "more": 2}}
            assert await run_read(upstreams, server, READ_RESOURCE, uri="old://a") == {"contents": contents}
            for said, raised in (
                ({"error": {"code": -32002, "message": "none"}}, ResourceNotFound),
                ({"error": {"code": -32603, "message": "broken"}}, ToolFailed),
                ({"result": {"contents": "A"}}, ResultInvalid),
                ({"result": {}}, ResultInvalid),
                ({"result": {"resultType": "task", "contents": []}}, Away),
            ):
                older.result = said
                with pytest.raises(raised):
                    await run_read(upstreams, server, READ_RESOURCE, uri="old://a")
    finally:
        older.stop()
