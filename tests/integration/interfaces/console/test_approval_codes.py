"""The console of `deputize dev`: anyone who reads the terminal opens an approval request with its code, and leaves
nothing behind.
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from deputize.core.settings import IdentitySettings, Settings
from deputize.govern.approvals.confirmation_codes import ConfirmationCode
from deputize.govern.identity.dev_issuer import load_dev_issuer
from proofs.kit.reserved_port import reserve_port
from tests.integration.conftest import serve_gateway
from tests.support import shop_tools
from tests.support.console_gateway import ConsoleGateway, open_console_gateway, parse_hidden_fields, visible_text

pytestmark = pytest.mark.requirement("GOV-3")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def console(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleGateway]:
    async with open_console_gateway(module_database, tmp_path_factory.mktemp("codes"), codes=True) as opened:
        yield opened


def _find_code(console: ConsoleGateway, request_id: str) -> str:
    return [told.code for told in console.codes if told.approval_id == request_id][-1]


async def test_the_code_opens_and_decides_the_request_without_a_cookie(console: ConsoleGateway) -> None:
    shop_tools.effects.clear()
    call_id, ticket = await console.request_approval("code", id=51)
    path = f"/console/approvals/{ticket}"
    async with console.open_browser() as browser:
        closed = await browser.get(path)
        assert closed.status_code == 200
        assert "shop.delete_user" not in closed.text
        opened = await browser.post(f"{path}/code", {"code": _find_code(console, ticket).lower()})
        assert opened.status_code == 200
        assert "shop.delete_user" in visible_text(opened)
        assert "Sign out" not in opened.text
        decided = await browser.post(f"{path}/approve", {**parse_hidden_fields(opened.text), "reason": ""})
        assert decided.status_code == 200
        assert "terminal ✓ approved" in visible_text(decided)
        assert dict(browser.http.cookies) == {}
        assert not any("set-cookie" in each.headers for each in (closed, opened, decided))
        assert "shop.delete_user" not in (await browser.get(path)).text
    assert (await console.wait_for_end(call_id))["state"] == "succeeded"
    assert shop_tools.effects == [("delete", 51)]


async def test_a_wrong_code_opens_nothing_and_too_many_open_nothing_for_a_while(console: ConsoleGateway) -> None:
    call_id, ticket = await console.request_approval("wrong")
    path = f"/console/approvals/{ticket}/code"
    async with console.open_browser() as browser:
        for _ in range(5):
            refused = await browser.post(path, {"code": "0000-0000"})
            assert refused.status_code == 403
            assert "shop.delete_user" not in refused.text
        locked = await browser.post(path, {"code": _find_code(console, ticket)})
        assert locked.status_code == 403
        assert "too many wrong codes" in visible_text(locked).lower()
    assert (await console.fetch_call(call_id))["state"] == "awaiting_approval"


async def test_a_code_session_is_valid_for_its_request_only(console: ConsoleGateway) -> None:
    _, one = await console.request_approval("one")
    call_id, other = await console.request_approval("other")
    async with console.open_browser() as browser:
        opened = await browser.post(f"/console/approvals/{one}/code", {"code": _find_code(console, one)})
        form = parse_hidden_fields(opened.text)
        assert (await browser.post(f"/console/approvals/{other}/approve", form)).status_code == 401
        assert (
            await browser.post(f"/console/approvals/{other}/code", {"code": _find_code(console, one)})
        ).status_code == 403
        browser.http.cookies.set("deputize-session", form["session"], domain="127.0.0.1", path="/")
        for path in ("/console/approvals", f"/console/approvals/{one}", f"/console/approvals/{other}"):
            assert "shop.delete_user" not in (await browser.get(path)).text
        without = {name: value for name, value in form.items() if name != "session"}
        assert (await browser.post(f"/console/approvals/{one}/approve", without)).status_code == 401
    assert (await console.fetch_call(call_id))["state"] == "awaiting_approval"


async def test_a_form_of_another_site_cannot_even_try_a_code(console: ConsoleGateway) -> None:
    _, ticket = await console.request_approval("elsewhere")
    path = f"/console/approvals/{ticket}/code"
    async with console.open_browser() as browser:
        refused = await browser.post(path, {"code": _find_code(console, ticket)}, origin="http://127.0.0.1:9")
        assert refused.status_code == 403
        assert "shop.delete_user" not in refused.text


async def test_nobody_signs_in_where_there_is_no_issuer(console: ConsoleGateway) -> None:
    async with console.open_browser() as browser:
        for path in ("/console/approvals", "/console/sign-in"):
            page = await browser.http.get(path, follow_redirects=True)
            assert page.status_code == 401
            assert "enter the code from the terminal" in visible_text(page)
        assert (await browser.get("/console/callback?code=x&state=y")).status_code == 404
        for nowhere in ("/console/approvals/", "/console/approvals/7"):
            page = await browser.http.get(nowhere, headers={"host": "evil.example"})
            assert page.status_code in (404, 405)
            assert "evil" not in f"{page.headers}{page.text}"


async def test_a_link_from_the_terminal_turns_a_switch_off_and_on_again_only_with_a_code(
    fresh_database: str, tmp_path: Path
) -> None:
    port, links, codes = reserve_port(), list[str](), list[ConfirmationCode]()
    url, path = f"http://127.0.0.1:{port}", "/console/switches"

    def change(settings: Settings) -> Settings:
        identity = IdentitySettings(issuers=(load_dev_issuer(tmp_path),), public_url=url)
        server = settings.server.model_copy(update={"port": port})
        return settings.model_copy(update={"identity": identity, "server": server})

    options = {"show_confirmation": codes.append}
    async with serve_gateway(fresh_database, tmp_path, change=change, gateway_options=options) as gateway:
        assert gateway.in_process is not None
        gateway.in_process.console_access.offer_link(links.append)
        async with ConsoleGateway(gateway=gateway, url=url).open_browser() as browser:
            await browser.get(links[0].removeprefix(url))

            async def turn(verb: str, **more: str) -> httpx2.Response:
                page = await browser.get(f"{path}/{verb}?kind=agent&value=bad bot")
                token = re.findall(r'name="form_token" value="(\w+)"', page.text)[-1]
                return await browser.post(
                    f"{path}/{verb}", {"form_token": token, "kind": "agent", "value": "bad bot", **more}
                )

            assert (await turn("off", unknown="1")).status_code == 303
            asked = await turn("on")
            assert (asked.status_code, 'name="code"' in asked.text) == (403, True)
            assert (await turn("on", code="WRONG-CODE")).status_code == 403
            assert "agent bad bot" in visible_text(await browser.get(path))
            assert (await turn("on", code=codes[-1].code)).status_code == 303
            assert "Nothing is switched off" in visible_text(await browser.get(path))
