"""What the routes about servers answer is what the document says, and nothing of a credential is in it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import jwt
import pytest
import pytest_asyncio

from deputize.core.settings import McpServer
from tests.integration.conftest import ADMIN
from tests.integration.doors.test_document import Witness
from tests.integration.servers.scene import NAME, READ, SELDOM, WRITE, Scene, described, scene
from tests.integration.servers.upstream import Upstream, definition, upstream

KEY = "sk-live-4711-that-nobody-sees"


@pytest.fixture
def orders() -> Iterator[Upstream]:
    with upstream() as server:
        yield server


@pytest_asyncio.fixture
async def there(fresh_database: str, tmp_path: Path, orders: Upstream) -> AsyncIterator[Scene]:
    async with scene(fresh_database, tmp_path, orders) as made:
        yield made


async def test_every_answer_about_a_server_is_as_documented(there: Scene) -> None:
    witness = Witness(there.served, (await there.served.http.get("/openapi.json")).json())
    ask, root, one, path = witness.ask, there.admin, "/v1/servers/{name}", f"/v1/servers/{NAME}"
    there.upstream.tools = [
        definition("get_order", "Reads <IMPORTANT>all</IMPORTANT> of it."),
        definition("list_orders"),
    ]
    there.upstream.instructions = "Ask twice."
    await ask("post", f"{one}/test", f"{path}/test", 200, token=root)
    await ask("get", "/v1/servers", "/v1/servers", 200, token=root)
    await ask("get", one, path, 200, token=root)
    listed = await ask("get", f"{one}/changes", f"{path}/changes?state=all", 200, token=root)
    assert {each["kind"] for each in listed["changes"]} == {"changed", "added", "removed"}
    for change in listed["changes"]:
        word = {"item": change["item"], "digest": change["digest"], "decision": "accept"}
        await ask("post", f"{one}/changes/decide", f"{path}/changes/decide", 200, token=root, body=word)
        await ask("post", f"{one}/changes/decide", f"{path}/changes/decide", 404, token=root, body=word)
    there.upstream.failing = 503
    await ask("post", f"{one}/test", f"{path}/test", 503, token=root)
    await ask("get", one, path, 200, token=root)


async def test_a_server_that_wants_a_secret_is_looked_at_with_the_tenants_and_shows_it_nowhere(
    fresh_database: str, tmp_path: Path, orders: Upstream
) -> None:
    named = described(orders, credential="vault", secret="orders/key")
    async with scene(fresh_database, tmp_path, orders, [named]) as there:
        missing = await there.served.post(f"/v1/servers/{NAME}/test", token=there.admin)
        assert (missing.status_code, missing.json()["error"]["slug"]) == (424, "credential-missing")
        assert there.upstream.headers == []
        put = await there.served.post("/v1/secrets", {"name": "orders/key", "value": KEY}, token=there.admin)
        assert put.status_code == 201
        looked = await there.look()
        assert looked["tools"] == 2
        assert {each["authorization"] for each in there.upstream.headers} == {f"Bearer {KEY}"}
        told = [await there.served.get(path, token=there.admin) for path in ("/v1/servers", f"/v1/servers/{NAME}")]
        assert KEY not in str(looked) + "".join(each.text for each in told)


async def test_a_server_that_wants_tokens_is_looked_at_with_one_of_the_gateway_without_scopes(
    fresh_database: str, tmp_path: Path, orders: Upstream
) -> None:
    named = described(orders, credential="delegated", audience="https://orders.example")
    async with scene(fresh_database, tmp_path, orders, [named]) as there:
        assert (await there.shown())["tools"] == 2
        token = there.upstream.headers[-1]["authorization"].removeprefix("Bearer ")
        claims = jwt.decode(token, options={"verify_signature": False})
        assert (claims["aud"], claims["sub"], claims["scope"]) == ("https://orders.example", "operator", "")
        assert (await there.call(READ)).status_code == 200


async def test_what_one_gateway_agreed_to_counts_on_the_others(
    fresh_database: str, tmp_path: Path, orders: Upstream
) -> None:
    async with scene(fresh_database, tmp_path, orders) as one, scene(fresh_database, tmp_path, orders) as two:
        orders.instructions = "Ask twice."
        await one.look()
        await two.look()
        assert (await two.standings())[WRITE] == ("blocked", "tool_drifted")
        assert (await one.decide((await one.changes())["instructions"])).status_code == 200
        gateway = two.served.gateway
        assert gateway is not None
        # A call that is decided again makes the gateway know of it, and the watcher still has to tell.
        await gateway.lifecycle.rooms.authority.look_again("dev")
        async with asyncio.timeout(60):
            while (await two.standings())[WRITE] != ("loaded", "permitted"):  # noqa: ASYNC110 -- seen only there
                await asyncio.sleep(0.05)
        done = await two.call(WRITE)
        assert done.status_code == 200, done.text


async def test_a_program_is_named_by_its_file_and_nothing_of_its_environment_is_told(
    fresh_database: str, tmp_path: Path, orders: Upstream
) -> None:
    named = McpServer(
        name=NAME, command=("/nowhere/at/all", "--key", KEY), env={"KEY": KEY}, probe_seconds=SELDOM, start_seconds=5
    )
    async with scene(fresh_database, tmp_path, orders, [named]) as there:
        refused = await there.served.post(f"/v1/servers/{NAME}/test", token=there.admin)
        shown = await there.shown()
        assert (shown["status"], shown["kind"], shown["address"]) == ("unavailable", "stdio", "/nowhere/at/all")
        assert KEY not in refused.text + str(shown)


async def test_who_only_calls_hears_of_servers_in_the_standing_of_their_tools(there: Scene) -> None:
    there.upstream.failing = 503
    await there.served.post(f"/v1/servers/{NAME}/test", token=there.admin)
    token = there.served.token("ana", scopes=(f"{NAME}:write",))
    answer = (await there.served.get("/v1/surface", token=token)).json()
    reasons = {each["name"]: each["reason"] for each in answer["tools"]}
    assert reasons[READ]["code"] == "server_unavailable"
    assert ADMIN not in str(reasons)


async def test_whoever_looks_at_a_server_that_is_away_is_told_what_to_see_to(there: Scene) -> None:
    there.upstream.failing = 503
    answer = await there.served.post(f"/v1/servers/{NAME}/test", token=there.admin)
    assert answer.json()["error"]["slug"] == "upstream-unavailable"
    assert "url under [[servers]]" in answer.json()["error"]["advice"]
