"""People link their own accounts at a server, once, and calls for them are made with those and no others."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest
import pytest_asyncio

from deputize.core.errors import LinkedAccountRequired
from deputize.core.settings import McpServerSettings
from deputize.lifecycle.credentials.linked_accounts import LinkedAccounts
from deputize.operations.servers.probe_credential import open_probe_credential
from tests.integration.conftest import ADMIN
from tests.support.console_gateway import open_console_gateway, visible_text
from tests.support.gateway_internals import get_runtime
from tests.support.linking_gateway import (
    CALLBACK,
    PAGE,
    READ,
    SCOPES,
    WRITE,
    LinkingGateway,
    account_link,
    parse_form,
    parse_refusal,
)
from tests.support.mcp_client import McpClient
from tests.support.mcp_servers.protected_server import ProtectedServer, run_protected_server

pytestmark = pytest.mark.requirement("REG-2", "EXE-1")


@pytest.fixture(scope="module")
def protected_server() -> Iterator[ProtectedServer]:
    with run_protected_server() as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def linking_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory, protected_server: ProtectedServer
) -> AsyncIterator[LinkingGateway]:
    said = {
        "url": protected_server.url,
        "credential": "link",
        "reads": ("get_*",),
        "probe_seconds": 3600,
        "slow": ("*",),
    }
    named = [
        McpServerSettings.model_validate({"name": "orders", **said}),
        McpServerSettings.model_validate({"name": "orders", "tenant": "other", **said}),
    ]
    async with open_console_gateway(module_database, tmp_path_factory.mktemp("links"), servers=named) as desk:
        opened = LinkingGateway(console=desk, server=protected_server)
        await opened.link_account("lea", "lea@orders")
        await opened.probe()
        yield opened


async def test_a_call_uses_the_linked_account_of_its_user(linking_gateway: LinkingGateway) -> None:
    async with account_link(linking_gateway, "ana", "ana@orders"):
        linking_gateway.server.tool_calls.clear()
        assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200
        assert (await linking_gateway.call_tool(READ, "ana", agent="billing-bot")).status_code == 200
        assert (await linking_gateway.call_tool(READ, "lea")).status_code == 200
        assert linking_gateway.server.tool_calls == [
            ("ana@orders", "get_order"), ("ana@orders", "get_order"), ("lea@orders", "get_order"),
        ]  # fmt: skip


async def test_a_user_without_a_link_gets_the_linking_url_and_nothing_is_sent(linking_gateway: LinkingGateway) -> None:
    linking_gateway.server.tool_calls.clear()
    seen = set(linking_gateway.server.seen_tokens)
    told = parse_refusal(await linking_gateway.call_tool(READ, "bo"))
    assert told["slug"] == "link-needed"
    assert told["details"]["url"] == f"{linking_gateway.console.url}{PAGE}"
    assert linking_gateway.console.url + PAGE in str(told)
    # Not even an agent that has the name of somebody who linked.
    parse_refusal(await linking_gateway.call_tool(READ, "bo", agent="lea"))
    assert linking_gateway.server.tool_calls == []
    assert linking_gateway.server.seen_tokens == seen


async def test_a_missing_link_over_mcp_is_explained_to_the_model(linking_gateway: LinkingGateway) -> None:
    client = McpClient(
        gateway=linking_gateway.console.gateway, token=linking_gateway.console.gateway.token("bo", scopes=SCOPES)
    )
    answer = await client.call_tool("orders__get_order", {"name": "Ana"})
    assert answer.result["isError"] is True
    for said in (answer.result["content"], answer.structured_content):
        assert linking_gateway.console.url + PAGE in str(said)


async def test_a_refused_write_can_be_made_again_under_its_key_once_there_is_a_link(
    linking_gateway: LinkingGateway,
) -> None:
    linking_gateway.server.tool_calls.clear()
    parse_refusal(await linking_gateway.call_tool(WRITE, "lou", key="once"))
    async with account_link(linking_gateway, "lou", "lou@orders"):
        # It wants more than was agreed to, and says so without having done anything.
        told = parse_refusal(await linking_gateway.call_tool(WRITE, "lou", key="once"))
        assert told["details"]["scopes"] == ["orders:write"]
        async with linking_gateway.console.open_browser("lou") as browser:
            assert "the server requires more permissions" in visible_text(await browser.get(PAGE))
        await linking_gateway.link_account("lou", "lou@orders")
        answer = await linking_gateway.call_tool(WRITE, "lou", key="once")
        assert answer.status_code == 200, answer.text
        assert (await linking_gateway.call_tool(WRITE, "lou", key="once")).status_code == 200
        assert linking_gateway.server.tool_calls == [("lou@orders", "cancel_order")]


async def test_another_tenant_sees_nothing_of_it(linking_gateway: LinkingGateway) -> None:
    async with account_link(linking_gateway, "ana", "ana@orders"):
        async with linking_gateway.console.open_browser("olaf") as browser:
            page = visible_text(await browser.get(PAGE))
        assert "Not linked" in page
        assert "since" not in page
        rows = await linking_gateway.fetch_rows(
            "select tenant, user_name from deputize.server_links where tenant <> 'dev'"
        )
        assert rows == []
        links = linking_gateway.console.gateway.in_process
        assert links is not None
        async with get_runtime(links).store.read_transaction("other") as connection:
            assert await connection.fetch("select * from deputize.server_links") == []


async def test_no_token_stands_anywhere_in_clear(linking_gateway: LinkingGateway) -> None:
    async with account_link(linking_gateway, "ana", "ana@orders"):
        await linking_gateway.call_tool(READ, "ana")
        secrets = [
            each.encode()
            for each in (
                *linking_gateway.server.access,
                *linking_gateway.server.refresh,
                *linking_gateway.server.clients.values(),
            )
        ]
        for table in ("server_links", "server_sign_ins", "server_clients", "audit_entries"):
            for row in await linking_gateway.fetch_rows(f"select t::text as said, * from deputize.{table} t"):
                whole = b"".join(value if isinstance(value, bytes) else str(value).encode() for value in row.values())
                assert not any(secret in whole or secret.hex().encode() in whole for secret in secrets)
        entries = [
            row["entry"]
            for row in await linking_gateway.fetch_rows("select entry from deputize.audit_entries where tenant = 'dev'")
        ]
        assert any(b'"link_server"' in bytes(entry) for entry in entries)


async def test_a_sign_in_is_ended_once_by_anyone_who_began_it(linking_gateway: LinkingGateway) -> None:
    async with (
        linking_gateway.console.open_browser("ana") as browser,
        linking_gateway.console.open_browser("bo") as other,
    ):
        back = await linking_gateway.give_consent(await linking_gateway.begin_linking(browser), "ana@orders")
        exchanged = linking_gateway.server.exchange_count
        # Brought to somebody else, who would then act with ana's account.
        assert (await other.get(back)).status_code == 400
        nobody = await httpx2.AsyncClient(trust_env=False, timeout=60).get(back)
        assert nobody.status_code == 401
        assert linking_gateway.server.exchange_count == exchanged
        assert (await browser.get(back)).status_code == 303
        assert linking_gateway.server.exchange_count == exchanged + 1
        again = await browser.get(back)
        assert again.status_code == 400
        assert "already completed" in visible_text(again)
        assert linking_gateway.server.exchange_count == exchanged + 1
    assert parse_refusal(await linking_gateway.call_tool(READ, "bo"))
    await linking_gateway.unlink_account("ana")


@pytest.mark.parametrize(
    "change", [{"iss": "https://evil.example"}, {"iss": None}, {"state": "other"}, {"code": "other"}]
)
async def test_anyone_who_comes_back_otherwise_links_nothing(
    linking_gateway: LinkingGateway, change: dict[str, str | None]
) -> None:
    async with linking_gateway.console.open_browser("ana") as browser:
        back = urlsplit(await linking_gateway.give_consent(await linking_gateway.begin_linking(browser), "ana@orders"))
        answer = {
            name: value for name, value in ({**dict(parse_qsl(back.query)), **change}).items() if value is not None
        }
        landed = await browser.get(f"{CALLBACK}?{urlencode(answer)}")
        assert landed.status_code == (400 if "state" in change else 502)
    assert await linking_gateway.fetch_rows("select 1 from deputize.server_links where user_name = 'ana'") == []
    parse_refusal(await linking_gateway.call_tool(READ, "ana"))


async def test_forms_of_strangers_neither_link_nor_unlink(linking_gateway: LinkingGateway) -> None:
    async with linking_gateway.console.open_browser("lea") as browser:
        form = parse_form(await browser.get(PAGE))
        for path in (f"{PAGE}/orders/link", f"{PAGE}/orders/unlink"):
            assert (await browser.post(path, {"form_token": "x" * 48})).status_code == 403
            assert (await browser.post(path, form, origin="https://evil.example")).status_code == 403
        assert (await browser.post(f"{PAGE}/nothing/link", form)).status_code == 404
    async with linking_gateway.console.open_browser() as nobody:
        assert (await nobody.get(PAGE)).headers["location"].startswith("/console/sign-in")
    assert (await linking_gateway.call_tool(READ, "lea")).status_code == 200


async def test_a_link_is_renewed_before_it_ends_and_the_token_of_before_is_not_used_again(
    linking_gateway: LinkingGateway,
) -> None:
    async with account_link(linking_gateway, "ana", "ana@orders"):
        await linking_gateway.call_tool(READ, "ana")
        for _ in range(3):
            before = linking_gateway.server.refresh_count
            await linking_gateway.expire_token("ana")
            assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200
            assert linking_gateway.server.refresh_count == before + 1
            # What came of it is kept: the next call renews nothing.
            assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200
            assert linking_gateway.server.refresh_count == before + 1


async def test_of_many_calls_and_gateways_one_renews(linking_gateway: LinkingGateway) -> None:
    """A refresh token that is shown twice ends the whole link, so this fails where two show it."""
    gateway = linking_gateway.console.gateway.in_process
    assert gateway is not None
    rooms = get_runtime(gateway)
    server = rooms.upstreams.get_settings("dev", "orders")
    # A second gateway, as far as links go: nothing is shared but the database.
    other = LinkedAccounts(
        rooms.store, rooms.keys, rooms.credentials.vault, rooms.clock, rooms.linked_accounts.oauth_flow, servers={},
        base_url=None,
    )  # fmt: skip
    async with account_link(linking_gateway, "ana", "ana@orders"):
        before = linking_gateway.server.refresh_count
        await linking_gateway.expire_token("ana")
        got = await asyncio.gather(
            *(
                links.get_token("dev", server, "ana", 60.0)
                for links in (rooms.linked_accounts, other)
                for _ in range(10)
            )
        )
        assert len({secret.reveal() for secret in got}) == 1
        assert linking_gateway.server.refresh_count == before + 1
        assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200


async def test_a_call_that_gives_up_while_its_link_is_renewed_loses_nothing(linking_gateway: LinkingGateway) -> None:
    gateway = linking_gateway.console.gateway.in_process
    assert gateway is not None
    rooms = get_runtime(gateway)
    server = rooms.upstreams.get_settings("dev", "orders")
    async with account_link(linking_gateway, "ana", "ana@orders"):
        await linking_gateway.expire_token("ana")
        before = linking_gateway.server.refresh_count
        linking_gateway.server.refresh_started.clear()
        asking = asyncio.create_task(rooms.linked_accounts.get_token("dev", server, "ana", 60.0))
        assert await asyncio.to_thread(linking_gateway.server.refresh_started.wait, 60.0)
        asking.cancel()
        assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200
        assert linking_gateway.server.refresh_count == before + 1


async def test_a_link_that_cannot_be_renewed_is_broken_until_its_person_links_again(
    linking_gateway: LinkingGateway,
) -> None:
    async with account_link(linking_gateway, "ana", "ana@orders"):
        for grant, _ in linking_gateway.server.access.values():
            grant.valid = grant.account != "ana@orders"
        # The token is refused before it ends: the call says so, and the next one finds out that nothing renews it.
        await linking_gateway.fetch_rows(
            "update deputize.server_links set renewed_at = now() - interval '1 day' where user_name = 'ana'"
        )
        first, second = [parse_refusal(await linking_gateway.call_tool(READ, "ana")) for _ in range(2)]
        # Unless a look at the server, which carries the newest link, found it out before.
        assert "Make the call again" in str(first) or first["slug"] == "link-needed"
        assert second["slug"] == "link-needed"
        refreshed = linking_gateway.server.refresh_count
        parse_refusal(await linking_gateway.call_tool(READ, "ana"))
        assert linking_gateway.server.refresh_count == refreshed
        async with linking_gateway.console.open_browser("ana") as browser:
            assert "no longer works" in visible_text(await browser.get(PAGE))
        await linking_gateway.link_account("ana", "ana@orders")
        assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200


@pytest.mark.parametrize("said", ["", 'Bearer error="insufficient_scope", scope="orders:read"'])
async def test_who_may_not_do_something_there_keeps_the_link_and_is_not_sent_round_in_a_circle(
    linking_gateway: LinkingGateway, said: str
) -> None:
    async with account_link(linking_gateway, "ana", "ana@orders"):
        linking_gateway.server.barred_accounts.add("ana@orders")
        linking_gateway.server.barred_challenge = said
        before = linking_gateway.server.refresh_count
        try:
            for _ in range(3):
                assert parse_refusal(await linking_gateway.call_tool(READ, "ana"))["slug"] == "credential-expired"
        finally:
            linking_gateway.server.barred_accounts.clear()
        assert linking_gateway.server.refresh_count == before
        assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200


async def test_an_authorization_server_that_is_away_breaks_nothing(linking_gateway: LinkingGateway) -> None:
    async with account_link(linking_gateway, "ana", "ana@orders"):
        await linking_gateway.expire_token("ana")
        linking_gateway.server.is_down = True
        try:
            answer = await linking_gateway.call_tool(READ, "ana")
            assert answer.status_code in (502, 503), answer.text
        finally:
            linking_gateway.server.is_down = False
        assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200


async def test_a_token_goes_nowhere_else_when_the_server_moves(linking_gateway: LinkingGateway) -> None:
    gateway = linking_gateway.console.gateway.in_process
    assert gateway is not None
    links = get_runtime(gateway).linked_accounts
    server = get_runtime(gateway).upstreams.get_settings("dev", "orders")
    async with account_link(linking_gateway, "ana", "ana@orders"):
        assert (await links.get_token("dev", server, "ana", 60.0)).reveal()
        for moved in ({"url": "https://elsewhere.example/mcp"}, {"issuer": "https://other.example"}):
            with pytest.raises(LinkedAccountRequired, match="another server"):
                await links.get_token("dev", server.model_copy(update=moved), "ana", 60.0)


async def test_a_probe_uses_the_newest_link_of_an_authorized_user(linking_gateway: LinkingGateway) -> None:
    gateway = linking_gateway.console.gateway.in_process
    assert gateway is not None
    rooms = get_runtime(gateway)
    server = rooms.upstreams.get_settings("dev", "orders")
    root = linking_gateway.console.gateway.token("root", scopes=[ADMIN])
    await linking_gateway.link_account("crowd", "crowd@orders")
    async with open_probe_credential(rooms, "dev", server) as secret:
        assert secret is not None
        assert linking_gateway.server.access[secret.reveal()][0].account == "crowd@orders"
    revoked = await linking_gateway.console.gateway.post(
        "/v1/revocations", {"kind": "user", "value": "crowd"}, token=root
    )
    assert revoked.status_code in (200, 201), revoked.text
    async with open_probe_credential(rooms, "dev", server) as secret:
        assert secret is not None
        assert linking_gateway.server.access[secret.reveal()][0].account == "lea@orders"


async def test_anyone_who_is_killed_between_the_code_and_the_link_leaves_nothing_half_done(
    linking_gateway: LinkingGateway,
) -> None:
    gateway = linking_gateway.console.gateway.in_process
    assert gateway is not None
    async with linking_gateway.console.open_browser("ana") as browser:
        back = await linking_gateway.give_consent(await linking_gateway.begin_linking(browser), "ana@orders")
        # The database takes the sign-in away and then, as if the process were gone, nothing more.
        await linking_gateway.fetch_rows(
            "alter table deputize.server_links add constraint gone check (user_name <> 'ana')"
        )
        try:
            assert (await browser.get(back)).status_code >= 500
        finally:
            await linking_gateway.fetch_rows("alter table deputize.server_links drop constraint gone")
        assert await linking_gateway.fetch_rows("select 1 from deputize.server_links where user_name = 'ana'") == []
        assert await linking_gateway.fetch_rows("select 1 from deputize.server_sign_ins where user_name = 'ana'") == []
        assert (await browser.get(back)).status_code == 400
        parse_refusal(await linking_gateway.call_tool(READ, "ana"))
        landed = await browser.get(
            await linking_gateway.give_consent(await linking_gateway.begin_linking(browser), "ana@orders")
        )
        assert landed.status_code == 303
    assert (await linking_gateway.call_tool(READ, "ana")).status_code == 200
    await linking_gateway.unlink_account("ana")
    parse_refusal(await linking_gateway.call_tool(READ, "ana"))
