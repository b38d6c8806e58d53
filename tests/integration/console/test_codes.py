"""The console of `deputize dev`: whoever reads the terminal opens a ticket with its code, and leaves nothing behind."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration import shop
from tests.integration.console.kit import Desk, fields, open_desk, text_of

pytestmark = pytest.mark.requirement("GOV-3")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with open_desk(module_database, tmp_path_factory.mktemp("codes"), codes=True) as opened:
        yield opened


def _code(desk: Desk, ticket: str) -> str:
    return [told.code for told in desk.codes if told.ticket_id == ticket][-1]


async def test_the_code_opens_the_ticket_and_decides_it_without_a_cookie(desk: Desk) -> None:
    shop.made.clear()
    call_id, ticket = await desk.asked("code", id=51)
    path = f"/console/tickets/{ticket}"
    async with desk.browser() as browser:
        closed = await browser.get(path)
        assert closed.status_code == 200
        assert "shop.delete_user" not in closed.text
        opened = await browser.post(f"{path}/code", {"code": _code(desk, ticket).lower()})
        assert opened.status_code == 200
        assert "shop.delete_user" in text_of(opened)
        assert "Sign out" not in opened.text
        decided = await browser.post(f"{path}/approve", {**fields(opened.text), "reason": ""})
        assert decided.status_code == 200
        assert "terminal ✓ approved" in text_of(decided)
        assert dict(browser.http.cookies) == {}
        assert not any("set-cookie" in each.headers for each in (closed, opened, decided))
        assert "shop.delete_user" not in (await browser.get(path)).text
    assert (await desk.ended(call_id))["state"] == "succeeded"
    assert shop.made == [("delete", 51)]


async def test_a_wrong_code_opens_nothing_and_too_many_open_nothing_for_a_while(desk: Desk) -> None:
    call_id, ticket = await desk.asked("wrong")
    path = f"/console/tickets/{ticket}/code"
    async with desk.browser() as browser:
        for _ in range(5):
            refused = await browser.post(path, {"code": "0000-0000"})
            assert refused.status_code == 403
            assert "shop.delete_user" not in refused.text
        locked = await browser.post(path, {"code": _code(desk, ticket)})
        assert locked.status_code == 403
        assert "too many wrong codes" in text_of(locked).lower()
    assert (await desk.call(call_id))["state"] == "awaiting_approval"


async def test_what_a_code_opened_is_good_for_that_ticket_only(desk: Desk) -> None:
    _, one = await desk.asked("one")
    call_id, other = await desk.asked("other")
    async with desk.browser() as browser:
        opened = await browser.post(f"/console/tickets/{one}/code", {"code": _code(desk, one)})
        form = fields(opened.text)
        assert (await browser.post(f"/console/tickets/{other}/approve", form)).status_code == 401
        assert (await browser.post(f"/console/tickets/{other}/code", {"code": _code(desk, one)})).status_code == 403
        browser.http.cookies.set("deputize-session", form["session"], domain="127.0.0.1", path="/")
        for path in ("/console/tickets", f"/console/tickets/{one}", f"/console/tickets/{other}"):
            assert "shop.delete_user" not in (await browser.get(path)).text
        without = {name: value for name, value in form.items() if name != "session"}
        assert (await browser.post(f"/console/tickets/{one}/approve", without)).status_code == 401
    assert (await desk.call(call_id))["state"] == "awaiting_approval"


async def test_a_form_of_another_site_cannot_even_try_a_code(desk: Desk) -> None:
    _, ticket = await desk.asked("elsewhere")
    path = f"/console/tickets/{ticket}/code"
    async with desk.browser() as browser:
        refused = await browser.post(path, {"code": _code(desk, ticket)}, origin="http://127.0.0.1:9")
        assert refused.status_code == 403
        assert "shop.delete_user" not in refused.text


async def test_nobody_signs_in_where_there_is_no_issuer(desk: Desk) -> None:
    async with desk.browser() as browser:
        for path in ("/console/tickets", "/console/sign-in"):
            page = await browser.http.get(path, follow_redirects=True)
            assert page.status_code == 401
            assert "type the code that the terminal shows" in text_of(page)
        assert (await browser.get("/console/callback?code=x&state=y")).status_code == 404
        for nowhere in ("/console/", "/console/tickets/", "/console/tickets/7", "/console/sign-out"):
            page = await browser.http.get(nowhere, headers={"host": "evil.example"})
            assert page.status_code in (404, 405)
            assert "evil" not in f"{page.headers}{page.text}"
