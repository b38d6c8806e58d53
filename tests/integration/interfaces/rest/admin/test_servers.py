"""What the routes about servers answer is what the document says, and nothing of a credential is in it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import pytest_asyncio

from deputize.core.settings import McpServerSettings, SandboxSettings
from tests.integration.conftest import ADMIN
from tests.integration.execute.upstreams import small_stdio_server
from tests.integration.interfaces.rest.test_openapi import OpenApiChecker
from tests.support.gateway_internals import get_runtime
from tests.support.mcp_servers.upstream import Upstream, make_definition, run_upstream
from tests.support.upstream_gateway import (
    NAME,
    PROBE_SECONDS,
    READ,
    WRITE,
    UpstreamGateway,
    open_upstream_gateway,
    server_settings,
)

KEY = "sk-live-4711-that-nobody-sees"


@pytest.fixture
def orders_server() -> Iterator[Upstream]:
    with run_upstream() as server:
        yield server


@pytest_asyncio.fixture
async def upstream_gateway(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> AsyncIterator[UpstreamGateway]:
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server) as made:
        yield made


async def test_every_answer_about_a_server_is_as_documented(upstream_gateway: UpstreamGateway) -> None:
    checker = OpenApiChecker(
        upstream_gateway.gateway, (await upstream_gateway.gateway.http.get("/openapi.json")).json()
    )
    ask, root, one, path = checker.request, upstream_gateway.admin_token, "/v1/servers/{name}", f"/v1/servers/{NAME}"
    upstream_gateway.upstream.tools = [
        make_definition("get_order", "Reads <IMPORTANT>all</IMPORTANT> of it."),
        make_definition("list_orders"),
    ]
    upstream_gateway.upstream.instructions = "Ask twice."
    await ask("post", f"{one}/test", f"{path}/test", 200, token=root)
    await ask("get", "/v1/servers", "/v1/servers", 200, token=root)
    await ask("get", one, path, 200, token=root)
    listed = await ask("get", f"{one}/changes", f"{path}/changes?state=all", 200, token=root)
    assert {each["kind"] for each in listed["changes"]} == {"changed", "added", "removed"}
    for change in listed["changes"]:
        word = {"item": change["item"], "digest": change["digest"], "decision": "accept"}
        await ask("post", f"{one}/changes/decide", f"{path}/changes/decide", 200, token=root, body=word)
        await ask("post", f"{one}/changes/decide", f"{path}/changes/decide", 404, token=root, body=word)
    tools = (await ask("get", f"{one}/tools", f"{path}/tools", 200, token=root))["tools"]
    choice = next({key: each[key] for key in ("digest", "tool")} for each in tools if each["name"] == "list_orders")
    effects = {"tools": [{**choice, "tool": "list_orders", "effects": "read"}]}
    await ask("post", f"{one}/effects", f"{path}/effects", 200, token=root, body=effects)
    wrong = {"tools": [{"tool": "list_orders", "digest": f"sha256:{'0' * 64}", "effects": "read"}]}
    await ask("post", f"{one}/effects", f"{path}/effects", 404, token=root, body=wrong)
    upstream_gateway.upstream.failure_status = 503
    await ask("post", f"{one}/test", f"{path}/test", 503, token=root)
    await ask("get", one, path, 200, token=root)


async def test_a_server_is_probed_with_the_tenants_secret_which_is_never_shown(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> None:
    named = server_settings(orders_server, credential="vault", secret="orders/key")
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server, [named]) as upstream_gateway:
        missing = await upstream_gateway.gateway.post(f"/v1/servers/{NAME}/test", token=upstream_gateway.admin_token)
        assert (missing.status_code, missing.json()["error"]["slug"]) == (424, "credential-missing")
        assert upstream_gateway.upstream.headers == []
        put = await upstream_gateway.gateway.post(
            "/v1/secrets", {"name": "orders/key", "value": KEY}, token=upstream_gateway.admin_token
        )
        assert put.status_code == 201
        looked = await upstream_gateway.probe()
        assert looked["tools"] == 2
        assert {each["authorization"] for each in upstream_gateway.upstream.headers} == {f"Bearer {KEY}"}
        told = [
            await upstream_gateway.gateway.get(path, token=upstream_gateway.admin_token)
            for path in ("/v1/servers", f"/v1/servers/{NAME}")
        ]
        assert KEY not in str(looked) + "".join(each.text for each in told)


async def test_a_server_that_takes_tokens_is_probed_with_a_gateway_token_without_scopes(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> None:
    named = server_settings(orders_server, credential="delegated", audience="https://orders.example")
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server, [named]) as upstream_gateway:
        assert (await upstream_gateway.fetch_server())["tools"] == 2
        token = upstream_gateway.upstream.headers[-1]["authorization"].removeprefix("Bearer ")
        claims = jwt.decode(token, options={"verify_signature": False})
        assert (claims["aud"], claims["sub"], claims["scope"]) == ("https://orders.example", "operator", "")
        assert (await upstream_gateway.call_tool(READ)).status_code == 200


async def test_what_one_gateway_agreed_to_counts_on_the_others(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> None:
    async with (
        open_upstream_gateway(fresh_database, tmp_path, orders_server) as one,
        open_upstream_gateway(fresh_database, tmp_path, orders_server) as two,
    ):
        orders_server.instructions = "Ask twice."
        await one.probe()
        await two.probe()
        assert (await two.fetch_tool_status())[WRITE] == ("blocked", "tool_drifted")
        assert (await one.decide_change((await one.fetch_changes())["instructions"])).status_code == 200
        gateway = two.gateway.in_process
        assert gateway is not None
        # A call that is decided again makes the gateway know of it, and the watcher still has to tell.
        await get_runtime(gateway).authority.reload_tenant("dev")
        async with asyncio.timeout(60):
            while (await two.fetch_tool_status())[WRITE] != ("loaded", "permitted"):  # noqa: ASYNC110 -- seen only there
                await asyncio.sleep(0.05)
        done = await two.call_tool(WRITE)
        assert done.status_code == 200, done.text


async def test_a_stdio_server_is_named_by_its_file_without_its_environment(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> None:
    named = McpServerSettings(
        name=NAME,
        command=("/nowhere/at/all", "--key", KEY),
        sandbox=False,
        env={"KEY": KEY},
        probe_seconds=PROBE_SECONDS,
        start_seconds=5,
    )
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server, [named]) as upstream_gateway:
        refused = await upstream_gateway.gateway.post(f"/v1/servers/{NAME}/test", token=upstream_gateway.admin_token)
        shown = await upstream_gateway.fetch_server()
        assert (shown["status"], shown["kind"], shown["address"]) == ("unavailable", "stdio", "/nowhere/at/all")
        assert KEY not in refused.text + str(shown)


def make_program(**more: Any) -> McpServerSettings:
    """A small server of our own."""
    said = {
        "name": NAME, "command": (sys.executable, "-S", small_stdio_server.__file__), "reads": ("echo",),
        "probe_seconds": PROBE_SECONDS, "start_seconds": 60,
    }  # fmt: skip
    return McpServerSettings.model_validate({**said, **more})


async def test_a_host_without_sandboxes_starts_and_says_what_to_do(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> None:
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server, [make_program(sandbox=False)]) as plain:
        assert (await plain.probe())["sandbox"] == "none"
    sandboxes = SandboxSettings(folder=Path("/proc/none"))
    async with open_upstream_gateway(
        fresh_database, tmp_path, orders_server, [make_program()], sandboxes=sandboxes
    ) as boxed:
        refused = await boxed.call_tool(f"{NAME}.echo")
        assert (refused.status_code, refused.json()["error"]["slug"]) == (424, "requires-setup"), refused.text
        tried = await boxed.gateway.post(f"/v1/servers/{NAME}/test", token=boxed.admin_token)
        assert tried.json()["error"]["slug"] == "requires-setup", tried.text
        assert (await boxed.fetch_tool_status())[f"{NAME}.echo"] == ("blocked", "setup_required")
        why = (await boxed.fetch_server())["why"]
        assert "was not started, because it needs a sandbox" in why
        assert "deputize sandboxes check" in why
        assert "sandbox = false" in why


@pytest.mark.requirement("GOV-7")
async def test_a_tool_says_that_its_program_keeps_its_secret(
    fresh_database: str, tmp_path: Path, orders_server: Upstream
) -> None:
    kept = make_program(sandbox=False, credential="vault", secret="orders", secret_env="ORDERS_KEY")
    async with open_upstream_gateway(fresh_database, tmp_path, orders_server, [kept]) as upstream_gateway:
        gateway, token = upstream_gateway.gateway, upstream_gateway.admin_token
        stored = await gateway.post("/v1/secrets", {"name": "orders", "value": KEY}, token=token)
        assert stored.status_code == 201, stored.text
        await upstream_gateway.probe()
        assert (await gateway.get(f"/v1/tools/{NAME}.echo", token=token)).json()["credential_lifetime"] == "program"


async def test_who_only_calls_hears_of_servers_in_the_standing_of_their_tools(
    upstream_gateway: UpstreamGateway,
) -> None:
    upstream_gateway.upstream.failure_status = 503
    await upstream_gateway.gateway.post(f"/v1/servers/{NAME}/test", token=upstream_gateway.admin_token)
    token = upstream_gateway.gateway.token("ana", scopes=(f"{NAME}:write",))
    answer = (await upstream_gateway.gateway.get("/v1/surface", token=token)).json()
    reasons = {each["name"]: each["reason"] for each in answer["tools"]}
    assert reasons[READ]["code"] == "server_unavailable"
    assert ADMIN not in str(reasons)


async def test_probing_an_unreachable_server_explains_what_to_check(upstream_gateway: UpstreamGateway) -> None:
    upstream_gateway.upstream.failure_status = 503
    answer = await upstream_gateway.gateway.post(f"/v1/servers/{NAME}/test", token=upstream_gateway.admin_token)
    assert answer.json()["error"]["slug"] == "upstream-unavailable"
    assert "url under [[servers]]" in answer.json()["error"]["advice"]
