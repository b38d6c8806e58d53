"""Resources, prompts and completions as calls reach them: over HTTP and pipes, in both eras, and nothing unagreed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deputize.catalog.importers.mcp_offers import contract_of
from deputize.core.errors import NotOffered, RequiresSetup, ResultInvalid, SchemaViolation, ToolFailed
from deputize.core.errors import UpstreamUnavailable as Away
from deputize.core.offers import Offers
from deputize.core.servers import COMPLETE, GET_PROMPT, READ_RESOURCE, Definition, Kind
from deputize.core.settings import McpServer
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.upstreams.servers import Upstreams
from tests.integration.execute.upstreams.conftest import SECONDS, reaching
from tests.integration.execute.upstreams.test_driver import CONTEXT
from tests.integration.servers import library
from tests.integration.servers.library import BLOB, LOGO, PAGES, README, shelf
from tests.integration.servers.upstream import Upstream

pytestmark = pytest.mark.requirement("EXE-1")

EVERYTHING: dict[str, Any] = {"resources": ("*",), "prompts": ("*",), "start_seconds": 60}
SUMMARY = {"ref": {"type": "ref/prompt", "name": "summary"}, "argument": {"name": "page", "value": "Pa"}}


async def run(upstreams: Upstreams, server: McpServer, method: str, **arguments: Any) -> Any:
    contract = contract_of(server, Definition.of({"name": method}, Kind.METHOD), word="read", version="1.0.0")
    driver = McpDriver(upstreams)
    return await driver.run(driver.find(contract), arguments, CONTEXT, SECONDS)


async def agree(upstreams: Upstreams, server: McpServer) -> None:
    """To everything that it has now."""
    found = await upstreams.discover("dev", server.name, None, SECONDS)
    upstreams.agree_to_offers("dev", server.name, Offers.of((each.item, each.said) for each in found.others))


@pytest.fixture(scope="module", params=["http", "stdio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServer]:
    folder = tmp_path_factory.mktemp("library")
    if request.param == "http":
        with library.library(folder) as running:
            yield McpServer(name="shop", url=running.url, **EVERYTHING)
        return
    shelf(folder)
    command = (sys.executable, library.__file__, str(folder), "--stdio")
    environment = {"PYTHONPATH": str(Path(library.__file__).parents[3])}
    yield McpServer(name="shop", command=command, env=environment, **EVERYTHING)


async def test_what_a_server_has_beside_tools_is_found_and_read(server: McpServer) -> None:
    async with reaching(server) as upstreams:
        await agree(upstreams, server)
        assert upstreams.methods("dev", "shop") == {READ_RESOURCE, GET_PROMPT, COMPLETE}
        read = await run(upstreams, server, READ_RESOURCE, uri=README)
        assert read == {"contents": [{"uri": README, "mimeType": "text/markdown", "text": f"This is {README}."}]}
        assert (await run(upstreams, server, READ_RESOURCE, uri=LOGO))["contents"][0]["blob"] == BLOB
        prompt = await run(upstreams, server, GET_PROMPT, name="summary", arguments={"page": "3"})
        assert prompt["messages"][0]["content"] == {"type": "text", "text": "Sum up 3."}
        completed = await run(upstreams, server, COMPLETE, **SUMMARY)
        assert completed["completion"]["values"] == ["Paris"]


async def test_nothing_is_asked_for_that_was_not_agreed_to(server: McpServer) -> None:
    async with reaching(server) as upstreams:
        await agree(upstreams, server)
        for method, asked in (
            (READ_RESOURCE, {"uri": "docs://pages/%2e%2e"}),
            (READ_RESOURCE, {"uri": PAGES}),
            (GET_PROMPT, {"name": "other"}),
            (COMPLETE, {**SUMMARY, "ref": {"type": "ref/resource", "uri": "docs://{other}"}}),
        ):
            with pytest.raises(NotOffered) as refused:
                await run(upstreams, server, method, **asked)
            assert refused.value.nothing_happened
        upstreams.agree_to_offers("dev", "shop", Offers())
        with pytest.raises(NotOffered):
            await run(upstreams, server, READ_RESOURCE, uri=README)


async def test_what_the_server_says_of_a_read_is_told_as_what_it_means(server: McpServer) -> None:
    async with reaching(server) as upstreams:
        await agree(upstreams, server)
        with pytest.raises(NotOffered):
            await run(upstreams, server, READ_RESOURCE, uri="docs://pages/none")
        with pytest.raises(SchemaViolation, match="page is missing"):
            await run(upstreams, server, GET_PROMPT, name="summary")


async def test_where_the_operator_named_none_the_server_is_not_even_asked_what_it_has(server: McpServer) -> None:
    unsaid = server.model_copy(update={"resources": (), "prompts": ()})
    async with reaching(unsaid) as upstreams:
        found = await upstreams.discover("dev", "shop", None, SECONDS)
        assert found.others == ()
        upstreams.agree_to_offers("dev", "shop", Offers(resources={README: {}}))
        with pytest.raises(Away, match="no longer answers"):
            await run(upstreams, unsaid, READ_RESOURCE, uri=README)
    async with reaching() as upstreams:
        with pytest.raises(RequiresSetup):
            await run(upstreams, unsaid, READ_RESOURCE, uri=README)


class Older(Upstream):
    """Of the handshake, without templates, and with answers that a test can change."""

    said: Any = None

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        method = asked.get("method")
        if method == "initialize":
            told = super().answer(asked)
            told["result"]["capabilities"] = {"resources": {"subscribe": True}}
            return told
        if method == "resources/list":
            return self._result(asked, {"resources": [{"uri": "old://a", "name": "a"}]})
        if method == "resources/read":
            self.done.append((asked["params"]["uri"], {}))
            return {"jsonrpc": "2.0", "id": asked["id"], **self.said}
        return super().answer(asked)


async def test_a_server_of_the_handshake_is_read_as_well_and_its_own_code_is_understood() -> None:
    older = Older()
    older.start()
    try:
        server = McpServer(name="shop", url=older.url, **EVERYTHING)
        async with reaching(server) as upstreams:
            await agree(upstreams, server)
            contents = [{"uri": "old://a", "text": "A"}, {"uri": "old://a#2", "blob": "Qg=="}]
            older.said = {"result": {"contents": contents, "_meta": {"aside": 1}, "more": 2}}
            assert await run(upstreams, server, READ_RESOURCE, uri="old://a") == {"contents": contents}
            for said, raised in (
                ({"error": {"code": -32002, "message": "none"}}, NotOffered),
                ({"error": {"code": -32603, "message": "broken"}}, ToolFailed),
                ({"result": {"contents": "A"}}, ResultInvalid),
                ({"result": {}}, ResultInvalid),
                ({"result": {"resultType": "task", "contents": []}}, Away),
            ):
                older.said = said
                with pytest.raises(raised):
                    await run(upstreams, server, READ_RESOURCE, uri="old://a")
    finally:
        older.stop()
