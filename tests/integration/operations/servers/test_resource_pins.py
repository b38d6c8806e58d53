"""What servers have beside tools is agreed to as tools are: at first sight, by review, and no longer than the operator
says.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deputize.core.settings import McpServerSettings, Settings
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support.mcp_servers.resources_server import (
    DECLARATIONS,
    LOGO,
    PAGES,
    README,
    ResourcesServer,
    run_resources_server,
)

pytestmark = pytest.mark.requirement("NEW-6")

EVERYTHING: dict[str, Any] = {"resources": ("*",), "prompts": ("*",)}
METHODS = {"method:completion/complete", "method:prompts/get", "method:resources/read"}
RESOURCE_ITEMS = {
    *METHODS,
    f"resource:{README}",
    f"resource:{LOGO}",
    f"template:{PAGES}",
    "prompt:summary",
    "prompt:picture",
    "prompt:asking",
}


@pytest.fixture
def docs_server(tmp_path: Path) -> Iterator[ResourcesServer]:
    with run_resources_server(tmp_path / "docs") as running:
        yield running


class ResourceGateway:
    """A gateway with the library behind it, for an administrator."""

    def __init__(self, gateway: HttpGateway) -> None:
        self._gateway = gateway
        self._token = gateway.token("root", scopes=(ADMIN,))

    async def fetch_pins(self) -> dict[str, str | None]:
        shown = await self._gateway.get("/v1/servers/docs", token=self._token)
        return {each["item"]: each["now"] for each in shown.json()["pins"]}

    async def probe(self) -> None:
        assert (await self._gateway.post("/v1/servers/docs/test", token=self._token)).status_code == 200

    async def fetch_changes(self) -> dict[str, dict[str, Any]]:
        found = await self._gateway.get("/v1/servers/docs/changes", token=self._token)
        return {each["item"]: each for each in found.json()["changes"]}

    async def decide_change(self, change: dict[str, Any], decision: str = "accept") -> Any:
        asked = {"item": change["item"], "digest": change["digest"], "decision": decision, "reason": "a test"}
        return await self._gateway.post("/v1/servers/docs/changes/decide", asked, token=self._token)

    async def read_resource(self, uri: str) -> int:
        tool = "docs.read_resource_2"
        return (await self._gateway.call(tool, {"uri": uri}, token=self._token)).status_code


@asynccontextmanager
async def open_resource_gateway(
    dsn: str, folder: Path, docs: ResourcesServer, **more: Any
) -> AsyncIterator[ResourceGateway]:
    said: dict[str, Any] = {"probe_seconds": 3600, "start_seconds": 60, "slow": ("*",)}
    named = McpServerSettings.model_validate({"name": "docs", "url": docs.url, **said, **more})

    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"servers": (named,)})

    async with serve_gateway(dsn, folder, change=change, gateway_options={"tools": ()}) as gateway:
        yield ResourceGateway(gateway)


async def test_what_the_operator_wants_later_waits_and_what_he_wants_no_more_ends(
    fresh_database: str, tmp_path: Path, docs_server: ResourcesServer
) -> None:
    async with open_resource_gateway(fresh_database, tmp_path, docs_server) as here:
        assert set(await here.fetch_pins()) == {"instructions", "tool:read_resource"}
        assert docs_server.requests == []
    async with open_resource_gateway(fresh_database, tmp_path, docs_server, **EVERYTHING) as here:
        held = await here.fetch_changes()
        assert set(held) == RESOURCE_ITEMS
        assert await here.read_resource(README) == 404
        for each in held.values():
            assert (await here.decide_change(each)).status_code == 200
        assert set(await here.fetch_pins()) == {"instructions", "tool:read_resource", *RESOURCE_ITEMS}
        assert (await here.read_resource(README), await here.read_resource("docs://pages/1")) == (200, 200)
    async with open_resource_gateway(fresh_database, tmp_path, docs_server, resources=(README,)) as here:
        assert set(await here.fetch_pins()) == {
            "instructions", "tool:read_resource", "method:completion/complete", "method:resources/read",
            f"resource:{README}",
        }  # fmt: skip
        assert (await here.read_resource(README), await here.read_resource("docs://pages/1")) == (200, 404)
    async with open_resource_gateway(fresh_database, tmp_path, docs_server) as here:
        assert set(await here.fetch_pins()) == {"instructions", "tool:read_resource"}
        assert await here.read_resource(README) == 410


async def test_what_a_server_adds_takes_away_or_declares_twice_waits_for_somebody(
    fresh_database: str, tmp_path: Path, docs_server: ResourcesServer
) -> None:
    async with open_resource_gateway(fresh_database, tmp_path, docs_server, **EVERYTHING) as here:
        assert set(await here.fetch_pins()) == {"instructions", "tool:read_resource", *RESOURCE_ITEMS}
        new = {"uri": "docs://new", "name": "new"}
        docs_server.declare(
            resources=[DECLARATIONS["resources"][0], new],
            prompts=[*DECLARATIONS["prompts"], {"name": "picture", "title": "B"}],
        )
        await here.probe()
        held = await here.fetch_changes()
        assert {item: each["kind"] for item, each in held.items()} == {
            f"resource:{LOGO}": "removed", "resource:docs://new": "added", "prompt:picture": "changed",
        }  # fmt: skip
        assert (await here.fetch_pins())[f"resource:{LOGO}"] == "removed"
        assert await here.read_resource("docs://new") == 404
        assert (await here.decide_change(held["prompt:picture"])).status_code == 422
        assert (await here.decide_change(held["resource:docs://new"])).status_code == 200
        assert await here.read_resource("docs://new") == 200
        assert (await here.decide_change(held[f"resource:{LOGO}"])).status_code == 200
        assert f"resource:{LOGO}" not in await here.fetch_pins()
        assert await here.read_resource(LOGO) == 404


async def test_where_everything_is_reviewed_nothing_is_offered_before(
    fresh_database: str, tmp_path: Path, docs_server: ResourcesServer
) -> None:
    async with open_resource_gateway(fresh_database, tmp_path, docs_server, review="everything", **EVERYTHING) as here:
        assert await here.fetch_pins() == {}
        held = await here.fetch_changes()
        assert set(held) >= RESOURCE_ITEMS
        assert (
            (await here.decide_change(held["method:resources/read"]))
            .json()["registered_tool"]
            .startswith("docs.read_resource")
        )
        assert docs_server.requests == []
