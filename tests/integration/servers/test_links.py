"""People link their own accounts at a server, once, and calls for them are made with those and no others."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest
import pytest_asyncio

from deputize.core.errors import LinkNeeded
from deputize.core.settings import McpServer
from deputize.lifecycle.servers.credential import credential_for
from deputize.lifecycle.servers.links import Links
from tests.integration.conftest import ADMIN
from tests.integration.console.kit import open_desk, text_of
from tests.integration.doors.mcp.speaking import Speaker
from tests.integration.servers.accounts import BACK, PAGE, READ, SCOPES, WRITE, Stage, form_of, linked, refusal
from tests.integration.servers.guarded import Guarded, guarded

pytestmark = pytest.mark.requirement("REG-2", "EXE-1")


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(
    module_database: str, tmp_path_factory: pytest.TempPathFactory, server: Guarded
) -> AsyncIterator[Stage]:
    said = {"url": server.url, "credential": "link", "reads": ("get_*",), "probe_seconds": 3600, "slow": ("*",)}
    named = [
        McpServer.model_validate({"name": "orders", **said}),
        McpServer.model_validate({"name": "orders", "tenant": "other", **said}),
    ]
    async with open_desk(module_database, tmp_path_factory.mktemp("links"), servers=named) as desk:
        opened = Stage(desk=desk, server=server)
        await opened.link("lea", "lea@orders")
        await opened.look()
        yield opened


async def test_a_call_carries_the_account_of_the_person_it_is_for(stage: Stage) -> None:
    async with linked(stage, "ana", "ana@orders"):
        stage.server.done.clear()
        assert (await stage.call(READ, "ana")).status_code == 200
        assert (await stage.call(READ, "ana", agent="billing-bot")).status_code == 200
        assert (await stage.call(READ, "lea")).status_code == 200
        assert stage.server.done == [
            ("ana@orders", "get_order"), ("ana@orders", "get_order"), ("lea@orders", "get_order"),
        ]  # fmt: skip


async def test_who_has_not_linked_is_told_where_and_nothing_is_sent(stage: Stage) -> None:
    stage.server.done.clear()
    seen = set(stage.server.seen_tokens)
    told = refusal(await stage.call(READ, "bo"))
    assert told["slug"] == "link-needed"
    assert told["details"]["url"] == f"{stage.desk.url}{PAGE}"
    assert stage.desk.url + PAGE in str(told)
    # Not even an agent that has the name of somebody who linked.
    refusal(await stage.call(READ, "bo", agent="lea"))
    assert stage.server.done == []
    assert stage.server.seen_tokens == seen


async def test_whoever_calls_over_mcp_is_told_in_words_that_a_model_reads(stage: Stage) -> None:
    speaker = Speaker(served=stage.desk.served, token=stage.desk.served.token("bo", scopes=SCOPES))
    answer = await speaker.call("orders__get_order", {"name": "Ana"})
    assert answer.result["isError"] is True
    for said in (answer.result["content"], answer.structured):
        assert stage.desk.url + PAGE in str(said)


async def test_a_refused_write_can_be_made_again_under_its_key_once_there_is_a_link(stage: Stage) -> None:
    stage.server.done.clear()
    refusal(await stage.call(WRITE, "lou", key="once"))
    async with linked(stage, "lou", "lou@orders"):
        # It wants more than was agreed to, and says so without having done anything.
        told = refusal(await stage.call(WRITE, "lou", key="once"))
        assert told["details"]["scopes"] == ["orders:write"]
        async with stage.desk.browser("lou") as browser:
            assert "wants you to allow more" in text_of(await browser.get(PAGE))
        await stage.link("lou", "lou@orders")
        answer = await stage.call(WRITE, "lou", key="once")
        assert answer.status_code == 200, answer.text
        assert (await stage.call(WRITE, "lou", key="once")).status_code == 200
        assert stage.server.done == [("lou@orders", "cancel_order")]


async def test_another_tenant_sees_nothing_of_it(stage: Stage) -> None:
    async with linked(stage, "ana", "ana@orders"):
        async with stage.desk.browser("olaf") as browser:
            page = text_of(await browser.get(PAGE))
        assert "Not linked" in page
        assert "since" not in page
        rows = await stage.sql("select tenant, user_name from deputize.server_links where tenant <> 'dev'")
        assert rows == []
        links = stage.desk.served.gateway
        assert links is not None
        async with links.lifecycle.rooms.store.reading("other") as connection:
            assert await connection.fetch("select * from deputize.server_links") == []


async def test_no_token_stands_anywhere_in_clear(stage: Stage) -> None:
    async with linked(stage, "ana", "ana@orders"):
        await stage.call(READ, "ana")
        secrets = [
            each.encode() for each in (*stage.server.access, *stage.server.refresh, *stage.server.registered.values())
        ]
        for table in ("server_links", "server_sign_ins", "server_clients", "audit_entries"):
            for row in await stage.sql(f"select t::text as said, * from deputize.{table} t"):
                whole = b"".join(value if isinstance(value, bytes) else str(value).encode() for value in row.values())
                assert not any(secret in whole or secret.hex().encode() in whole for secret in secrets)
        entries = [
            row["entry"] for row in await stage.sql("select entry from deputize.audit_entries where tenant = 'dev'")
        ]
        assert any(b'"link_server"' in bytes(entry) for entry in entries)


async def test_a_sign_in_is_ended_once_by_whoever_began_it(stage: Stage) -> None:
    async with stage.desk.browser("ana") as browser, stage.desk.browser("bo") as other:
        back = await stage.agree(await stage.begin(browser), "ana@orders")
        exchanged = stage.server.exchanged
        # Brought to somebody else, who would then act with ana's account.
        assert (await other.get(back)).status_code == 400
        nobody = await httpx2.AsyncClient(trust_env=False).get(back)
        assert nobody.status_code == 401
        assert stage.server.exchanged == exchanged
        assert (await browser.get(back)).status_code == 303
        assert stage.server.exchanged == exchanged + 1
        again = await browser.get(back)
        assert again.status_code == 400
        assert "ended already" in text_of(again)
        assert stage.server.exchanged == exchanged + 1
    assert refusal(await stage.call(READ, "bo"))
    await stage.unlink("ana")


@pytest.mark.parametrize(
    "change", [{"iss": "https://evil.example"}, {"iss": None}, {"state": "other"}, {"code": "other"}]
)
async def test_whoever_comes_back_otherwise_links_nothing(stage: Stage, change: dict[str, str | None]) -> None:
    async with stage.desk.browser("ana") as browser:
        back = urlsplit(await stage.agree(await stage.begin(browser), "ana@orders"))
        answer = {
            name: value for name, value in ({**dict(parse_qsl(back.query)), **change}).items() if value is not None
        }
        landed = await browser.get(f"{BACK}?{urlencode(answer)}")
        assert landed.status_code == (400 if "state" in change else 502)
    assert await stage.sql("select 1 from deputize.server_links where user_name = 'ana'") == []
    refusal(await stage.call(READ, "ana"))


async def test_forms_of_strangers_neither_link_nor_unlink(stage: Stage) -> None:
    async with stage.desk.browser("lea") as browser:
        form = form_of(await browser.get(PAGE))
        for path in (f"{PAGE}/orders/link", f"{PAGE}/orders/unlink"):
            assert (await browser.post(path, {"form_token": "x" * 48})).status_code == 403
            assert (await browser.post(path, form, origin="https://evil.example")).status_code == 403
        assert (await browser.post(f"{PAGE}/nothing/link", form)).status_code == 404
    async with stage.desk.browser() as nobody:
        assert (await nobody.get(PAGE)).headers["location"].startswith("/console/sign-in")
    assert (await stage.call(READ, "lea")).status_code == 200


async def test_a_link_is_renewed_before_it_ends_and_the_token_of_before_is_not_used_again(stage: Stage) -> None:
    async with linked(stage, "ana", "ana@orders"):
        await stage.call(READ, "ana")
        for _ in range(3):
            before = stage.server.refreshed
            await stage.ends("ana")
            assert (await stage.call(READ, "ana")).status_code == 200
            assert stage.server.refreshed == before + 1
            # What came of it is kept: the next call renews nothing.
            assert (await stage.call(READ, "ana")).status_code == 200
            assert stage.server.refreshed == before + 1


async def test_of_many_calls_and_gateways_one_renews(stage: Stage) -> None:
    """A refresh token that is shown twice ends the whole link, so this fails where two show it."""
    gateway = stage.desk.served.gateway
    assert gateway is not None
    rooms = gateway.lifecycle.rooms
    server = rooms.upstreams.settings_of("dev", "orders")
    # A second gateway, as far as links go: nothing is shared but the database.
    other = Links(rooms.store, rooms.keys, rooms.credentials.vault, rooms.clock, rooms.links.signing_in, base=None)
    async with linked(stage, "ana", "ana@orders"):
        before = stage.server.refreshed
        await stage.ends("ana")
        got = await asyncio.gather(
            *(links.token("dev", server, "ana", 60.0) for links in (rooms.links, other) for _ in range(10))
        )
        assert len({secret.reveal() for secret in got}) == 1
        assert stage.server.refreshed == before + 1
        assert (await stage.call(READ, "ana")).status_code == 200


async def test_a_call_that_gives_up_while_its_link_is_renewed_loses_nothing(stage: Stage) -> None:
    gateway = stage.desk.served.gateway
    assert gateway is not None
    rooms = gateway.lifecycle.rooms
    server = rooms.upstreams.settings_of("dev", "orders")
    async with linked(stage, "ana", "ana@orders"):
        await stage.ends("ana")
        before = stage.server.refreshed
        stage.server.renewing.clear()
        asking = asyncio.create_task(rooms.links.token("dev", server, "ana", 60.0))
        assert await asyncio.to_thread(stage.server.renewing.wait, 60.0)
        asking.cancel()
        assert (await stage.call(READ, "ana")).status_code == 200
        assert stage.server.refreshed == before + 1


async def test_a_link_that_cannot_be_renewed_is_broken_until_its_person_links_again(stage: Stage) -> None:
    async with linked(stage, "ana", "ana@orders"):
        for grant, _ in stage.server.access.values():
            grant.valid = grant.account != "ana@orders"
        # The token is refused before it ends: the call says so, and the next one finds out that nothing renews it.
        await stage.sql(
            "update deputize.server_links set renewed_at = now() - interval '1 day' where user_name = 'ana'"
        )
        first, second = [refusal(await stage.call(READ, "ana")) for _ in range(2)]
        # Unless a look at the server, which carries the newest link, found it out before.
        assert "Make the call again" in str(first) or first["slug"] == "link-needed"
        assert second["slug"] == "link-needed"
        refreshed = stage.server.refreshed
        refusal(await stage.call(READ, "ana"))
        assert stage.server.refreshed == refreshed
        async with stage.desk.browser("ana") as browser:
            assert "does not work any more" in text_of(await browser.get(PAGE))
        await stage.link("ana", "ana@orders")
        assert (await stage.call(READ, "ana")).status_code == 200


@pytest.mark.parametrize("said", ["", 'Bearer error="insufficient_scope", scope="orders:read"'])
async def test_who_may_not_do_something_there_keeps_the_link_and_is_not_sent_round_in_a_circle(
    stage: Stage, said: str
) -> None:
    async with linked(stage, "ana", "ana@orders"):
        stage.server.barred.add("ana@orders")
        stage.server.barred_with = said
        before = stage.server.refreshed
        try:
            for _ in range(3):
                assert refusal(await stage.call(READ, "ana"))["slug"] == "credential-expired"
        finally:
            stage.server.barred.clear()
        assert stage.server.refreshed == before
        assert (await stage.call(READ, "ana")).status_code == 200


async def test_an_authorization_server_that_is_away_breaks_nothing(stage: Stage) -> None:
    async with linked(stage, "ana", "ana@orders"):
        await stage.ends("ana")
        stage.server.away = True
        try:
            answer = await stage.call(READ, "ana")
            assert answer.status_code in (502, 503), answer.text
        finally:
            stage.server.away = False
        assert (await stage.call(READ, "ana")).status_code == 200


async def test_a_token_goes_nowhere_else_when_the_server_moves(stage: Stage) -> None:
    gateway = stage.desk.served.gateway
    assert gateway is not None
    links = gateway.lifecycle.rooms.links
    server = gateway.lifecycle.rooms.upstreams.settings_of("dev", "orders")
    async with linked(stage, "ana", "ana@orders"):
        assert (await links.token("dev", server, "ana", 60.0)).reveal()
        for moved in ({"url": "https://elsewhere.example/mcp"}, {"issuer": "https://other.example"}):
            with pytest.raises(LinkNeeded, match="another server"):
                await links.token("dev", server.model_copy(update=moved), "ana", 60.0)


async def test_a_look_carries_the_newest_link_of_somebody_who_still_may(stage: Stage) -> None:
    gateway = stage.desk.served.gateway
    assert gateway is not None
    rooms = gateway.lifecycle.rooms
    server = rooms.upstreams.settings_of("dev", "orders")
    root = stage.desk.served.token("root", scopes=[ADMIN])
    await stage.link("crowd", "crowd@orders")
    async with credential_for(rooms, "dev", server) as secret:
        assert secret is not None
        assert stage.server.access[secret.reveal()][0].account == "crowd@orders"
    revoked = await stage.desk.served.post("/v1/revocations", {"kind": "user", "value": "crowd"}, token=root)
    assert revoked.status_code in (200, 201), revoked.text
    async with credential_for(rooms, "dev", server) as secret:
        assert secret is not None
        assert stage.server.access[secret.reveal()][0].account == "lea@orders"


async def test_whoever_is_killed_between_the_code_and_the_link_leaves_nothing_half_done(stage: Stage) -> None:
    gateway = stage.desk.served.gateway
    assert gateway is not None
    async with stage.desk.browser("ana") as browser:
        back = await stage.agree(await stage.begin(browser), "ana@orders")
        # The database takes the sign-in away and then, as if the process were gone, nothing more.
        await stage.sql("alter table deputize.server_links add constraint gone check (user_name <> 'ana')")
        try:
            assert (await browser.get(back)).status_code >= 500
        finally:
            await stage.sql("alter table deputize.server_links drop constraint gone")
        assert await stage.sql("select 1 from deputize.server_links where user_name = 'ana'") == []
        assert await stage.sql("select 1 from deputize.server_sign_ins where user_name = 'ana'") == []
        assert (await browser.get(back)).status_code == 400
        refusal(await stage.call(READ, "ana"))
        landed = await browser.get(await stage.agree(await stage.begin(browser), "ana@orders"))
        assert landed.status_code == 303
    assert (await stage.call(READ, "ana")).status_code == 200
    await stage.unlink("ana")
    refusal(await stage.call(READ, "ana"))
