"""What servers have beside tools is agreed to as tools are: at first sight, by review, and no longer than the operator
says.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deputize.core.settings import McpServer, Settings
from tests.integration.conftest import ADMIN, Served, serving
from tests.integration.servers.library import DECLARED, LOGO, PAGES, README, Library, library

pytestmark = pytest.mark.requirement("NEW-6")

EVERYTHING: dict[str, Any] = {"resources": ("*",), "prompts": ("*",)}
METHODS = {"method:completion/complete", "method:prompts/get", "method:resources/read"}
BESIDE = {
    *METHODS,
    f"resource:{README}",
    f"resource:{LOGO}",
    f"template:{PAGES}",
    "prompt:summary",
    "prompt:picture",
    "prompt:asking",
}


@pytest.fixture
def docs(tmp_path: Path) -> Iterator[Library]:
    with library(tmp_path / "docs") as running:
        yield running


class House:
    """A gateway with the library behind it, for an administrator."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._token = served.token("root", scopes=(ADMIN,))

    async def agreed(self) -> dict[str, str | None]:
        shown = await self._served.get("/v1/servers/docs", token=self._token)
        return {each["item"]: each["now"] for each in shown.json()["agreed"]}

    async def look(self) -> None:
        assert (await self._served.post("/v1/servers/docs/test", token=self._token)).status_code == 200

    async def changes(self) -> dict[str, dict[str, Any]]:
        found = await self._served.get("/v1/servers/docs/changes", token=self._token)
        return {each["item"]: each for each in found.json()["changes"]}

    async def decide(self, change: dict[str, Any], decision: str = "accept") -> Any:
        asked = {"item": change["item"], "digest": change["digest"], "decision": decision, "reason": "a test"}
        return await self._served.post("/v1/servers/docs/changes/decide", asked, token=self._token)

    async def read(self, uri: str) -> int:
        tool = "docs.read_resource_2"
        return (await self._served.call(tool, {"uri": uri}, token=self._token)).status_code


@asynccontextmanager
async def house(dsn: str, folder: Path, docs: Library, **more: Any) -> AsyncIterator[House]:
    said: dict[str, Any] = {"probe_seconds": 3600, "start_seconds": 60, "slow": ("*",)}
    named = McpServer.model_validate({"name": "docs", "url": docs.url, **said, **more})

    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"servers": (named,)})

    async with serving(dsn, folder, change=change, opening={"tools": ()}) as served:
        yield House(served)


async def test_what_the_operator_wants_later_waits_and_what_he_wants_no_more_ends(
    fresh_database: str, tmp_path: Path, docs: Library
) -> None:
    async with house(fresh_database, tmp_path, docs) as here:
        assert set(await here.agreed()) == {"instructions", "tool:read_resource"}
        assert docs.asked == []
    async with house(fresh_database, tmp_path, docs, **EVERYTHING) as here:
        held = await here.changes()
        assert set(held) == BESIDE
        assert await here.read(README) == 404
        for each in held.values():
            assert (await here.decide(each)).status_code == 200
        assert set(await here.agreed()) == {"instructions", "tool:read_resource", *BESIDE}
        assert (await here.read(README), await here.read("docs://pages/1")) == (200, 200)
    async with house(fresh_database, tmp_path, docs, resources=(README,)) as here:
        assert set(await here.agreed()) == {
            "instructions", "tool:read_resource", "method:completion/complete", "method:resources/read",
            f"resource:{README}",
        }  # fmt: skip
        assert (await here.read(README), await here.read("docs://pages/1")) == (200, 404)
    async with house(fresh_database, tmp_path, docs) as here:
        assert set(await here.agreed()) == {"instructions", "tool:read_resource"}
        assert await here.read(README) == 410


async def test_what_a_server_adds_takes_away_or_declares_twice_waits_for_somebody(
    fresh_database: str, tmp_path: Path, docs: Library
) -> None:
    async with house(fresh_database, tmp_path, docs, **EVERYTHING) as here:
        assert set(await here.agreed()) == {"instructions", "tool:read_resource", *BESIDE}
        new = {"uri": "docs://new", "name": "new"}
        docs.declare(
            resources=[DECLARED["resources"][0], new], prompts=[*DECLARED["prompts"], {"name": "picture", "title": "B"}]
        )
        await here.look()
        held = await here.changes()
        assert {item: each["kind"] for item, each in held.items()} == {
            f"resource:{LOGO}": "removed", "resource:docs://new": "added", "prompt:picture": "changed",
        }  # fmt: skip
        assert (await here.agreed())[f"resource:{LOGO}"] == "removed"
        assert await here.read("docs://new") == 404
        assert (await here.decide(held["prompt:picture"])).status_code == 422
        assert (await here.decide(held["resource:docs://new"])).status_code == 200
        assert await here.read("docs://new") == 200
        assert (await here.decide(held[f"resource:{LOGO}"])).status_code == 200
        assert f"resource:{LOGO}" not in await here.agreed()
        assert await here.read(LOGO) == 404


async def test_where_everything_is_reviewed_nothing_is_offered_before(
    fresh_database: str, tmp_path: Path, docs: Library
) -> None:
    async with house(fresh_database, tmp_path, docs, review="everything", **EVERYTHING) as here:
        assert await here.agreed() == {}
        held = await here.changes()
        assert set(held) >= BESIDE
        assert (await here.decide(held["method:resources/read"])).json()["registered"].startswith("docs.read_resource")
        assert docs.asked == []
