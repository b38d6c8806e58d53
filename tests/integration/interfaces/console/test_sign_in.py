"""People sign in at a real OpenID provider, through the whole code flow, and decide what waits for them on pages."""

import base64
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.conftest import ADMIN
from tests.support import shop_tools
from tests.support.console_gateway import ConsoleGateway, open_console_gateway, parse_hidden_fields, visible_text

pytestmark = pytest.mark.requirement("GOV-3")

SESSION = "deputize-session"
HOSTILE = "<script>document.title='owned'</script>\u202egpj.exe\x1b[31m\u200b\U000e0041"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def console(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleGateway]:
    async with open_console_gateway(module_database, tmp_path_factory.mktemp("console")) as opened:
        yield opened


async def test_an_approver_signs_in_reads_the_request_approves_it_and_the_call_runs_once(
    console: ConsoleGateway,
) -> None:
    shop_tools.effects.clear()
    call_id, ticket = await console.request_approval("first", id=41)
    path = f"/console/approvals/{ticket}"
    async with console.open_browser() as browser:
        unknown = await browser.get(path)
        assert (unknown.status_code, unknown.headers["location"]) == (
            303, f"/console/sign-in?to=%2Fconsole%2Fapprovals%2F{ticket}",
        )  # fmt: skip
        page = await browser.sign_in("bo", path)
        assert str(page.url) == console.url + path
        text = visible_text(page)
        for said in ("billing-bot", "on behalf of", "ana", "shop.delete_user", "41", "deleting-asks", "oncall"):
            assert said in text
        assert shop_tools.effects == []
        decided = await browser.post(f"{path}/approve", {**parse_hidden_fields(page.text), "reason": "GDPR 881"})
        assert (decided.status_code, decided.headers["location"]) == (303, path)
        after = visible_text(await browser.get(path))
        assert "This request is closed" in after
        assert "bo ✓ approved" in after
        assert "GDPR 881" in after
        again = await browser.post(f"{path}/approve", {**parse_hidden_fields(page.text), "reason": "twice"})
        assert again.status_code in (403, 409)
    assert (await console.wait_for_end(call_id))["state"] == "succeeded"
    assert shop_tools.effects == [("delete", 41)]


async def test_a_no_needs_a_reason_and_the_agent_reads_it(console: ConsoleGateway) -> None:
    call_id, ticket = await console.request_approval("denied", id=42)
    async with console.open_browser("bo") as browser:
        silent = await browser.decide("deny", ticket)
        assert silent.status_code == 400
        assert "a reason is required" in visible_text(silent).lower()
        assert (await console.fetch_call(call_id))["state"] == "awaiting_approval"
        said = await browser.decide("deny", ticket, "not before\r\nthe audit")
        assert said.status_code == 303
        assert "Denied" in visible_text(await browser.get(f"/console/approvals/{ticket}"))
    told = await console.fetch_call(call_id)
    assert told["state"] == "denied"
    assert "not before\\nthe audit" in str(told)


async def test_every_page_is_fenced_in(console: ConsoleGateway) -> None:
    _, ticket = await console.request_approval("fenced")
    async with console.open_browser("bo") as browser:
        for path in ("/console/approvals", f"/console/approvals/{ticket}", "/console/nowhere", "/console/sign-in"):
            page = await browser.get(path)
            assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
            assert page.headers["x-frame-options"] == "DENY"
            assert page.headers["cache-control"] == "no-store"
            assert page.headers["referrer-policy"] == "same-origin"
            assert page.headers["x-content-type-options"] == "nosniff"
        style = re.search(r'href="(/console/style-[0-9a-f]+\.css)"', (await browser.get("/console/approvals")).text)
        assert style is not None
        sheet = await browser.get(style[1])
        assert (sheet.status_code, sheet.headers["content-type"]) == (200, "text/css; charset=utf-8")
        assert "immutable" in sheet.headers["cache-control"]


async def test_what_the_browser_keeps_is_for_no_script_and_no_other_site(console: ConsoleGateway) -> None:
    async with console.open_browser() as browser:
        first = await browser.get("/console/sign-in")
        (set_cookie,) = [each for each in first.headers.get_list("set-cookie") if "Max-Age=600" in each]
        assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(set_cookie.split("; "))
        await browser.sign_in("bo")
        kept = browser.http.cookies[SESSION]
        assert b"tenant" not in base64.urlsafe_b64decode(kept + "=" * (-len(kept) % 4))


async def test_the_list_holds_what_waits_for_ones_groups_and_leads_there(console: ConsoleGateway) -> None:
    _, mine = await console.request_approval("listed")
    _, theirs = await console.request_approval("listed-two", tool="shop.rename_user", id=7, name="Bo")
    async with console.open_browser("bo") as browser:
        page = (await browser.get("/console/approvals")).text
        assert f'href="/console/approvals/{mine}"' in page
        assert theirs not in page
    async with console.open_browser("guest") as browser:
        assert "No approval requests are waiting for you" in visible_text(await browser.get("/console/approvals"))


async def test_the_caller_sees_it_and_may_deny_it_but_not_approve_it(console: ConsoleGateway) -> None:
    call_id, ticket = await console.request_approval("own")
    async with console.open_browser("bo") as other:
        seen = await other.fetch_form(ticket)
    async with console.open_browser("ana") as browser:
        page = await browser.get(f"/console/approvals/{ticket}")
        assert "You cannot approve this: you took part in this call" in visible_text(page)
        own = re.search(r'name="form_token" value="(\w+)"', page.text)
        assert own is not None
        form = {**seen, "form_token": own[1], "reason": "mine"}
        assert (await browser.post(f"/console/approvals/{ticket}/approve", form)).status_code == 403
        assert (await console.fetch_call(call_id))["state"] == "awaiting_approval"
        assert (await browser.post(f"/console/approvals/{ticket}/deny", form)).status_code == 303
    assert (await console.fetch_call(call_id))["state"] == "denied"


@pytest.mark.parametrize("person", ["guest", "olaf"])
async def test_whom_it_does_not_concern_learns_nothing(console: ConsoleGateway, person: str) -> None:
    _, ticket = await console.request_approval("not-theirs")
    async with console.open_browser(person) as browser:
        there = await browser.get(f"/console/approvals/{ticket}")
        nowhere = await browser.get("/console/approvals/01890000-0000-7000-8000-000000000000")
        assert (there.status_code, nowhere.status_code) == (404, 404)
        assert re.sub(r"trace \w+", "", there.text) == re.sub(r"trace \w+", "", nowhere.text)


async def test_a_stronger_sign_in_is_asked_for_and_a_no_still_counts(console: ConsoleGateway) -> None:
    call_id, ticket = await console.request_approval("strong", tool="shop.rename_user", id=8, name="Bo")
    async with console.open_browser("lea") as browser:
        page = await browser.get(f"/console/approvals/{ticket}")
        assert "You cannot approve this: this approval needs the sign-in method hwk" in visible_text(page)
        again = re.search(r'href="([^"]+)">Sign in again', page.text)
        assert again is not None
        assert "level=hwk" in again[1]
        to_issuer = await browser.get(again[1].replace("&amp;", "&"))
        assert "acr_values=hwk" in to_issuer.headers["location"]
        assert "max_age=0" in to_issuer.headers["location"]
        assert (await browser.decide("deny", ticket, "no key at hand")).status_code == 303
    assert (await console.fetch_call(call_id))["state"] == "denied"


async def test_signing_in_again_is_a_new_sign_in(console: ConsoleGateway) -> None:
    async with console.open_browser("bo") as browser:
        before = browser.http.cookies[SESSION]
        page = await browser.sign_in("bo", again="1")
        assert page.status_code == 200
        assert browser.http.cookies[SESSION] != before


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
    ids=str,
)
async def test_a_form_of_another_site_decides_nothing(console: ConsoleGateway, headers: dict[str, str]) -> None:
    call_id, ticket = await console.request_approval("csrf")
    async with console.open_browser("bo") as browser:
        form = await browser.fetch_form(ticket)
        refused = await browser.post(f"/console/approvals/{ticket}/approve", form, **headers)
        assert refused.status_code == 403
        assert "was not sent from a page of this console" in visible_text(refused)
    assert (await console.fetch_call(call_id))["state"] == "awaiting_approval"


async def test_a_form_needs_the_token_of_its_own_sign_in_and_what_was_seen(console: ConsoleGateway) -> None:
    call_id, ticket = await console.request_approval("token")
    async with console.open_browser("bo") as browser, console.open_browser("bo") as other:
        form, others = await browser.fetch_form(ticket), await other.fetch_form(ticket)
        path = f"/console/approvals/{ticket}/approve"
        for wrong in ({"form_token": ""}, {"form_token": others["form_token"]}):
            assert (await browser.post(path, {**form, **wrong})).status_code == 403
        assert (await browser.post(path, {**form, "binding": ""})).status_code == 400
        changed = await browser.post(path, {**form, "binding": "00" * 32})
        assert changed.status_code == 409
        assert "changed after you read it" in visible_text(changed)
    assert (await console.fetch_call(call_id))["state"] == "awaiting_approval"


async def test_a_session_that_was_tampered_with_is_nobodys(console: ConsoleGateway) -> None:
    _, ticket = await console.request_approval("tampered")
    path = f"/console/approvals/{ticket}"
    async with console.open_browser("bo") as browser:
        form, good = await browser.fetch_form(ticket), browser.http.cookies[SESSION]
        begun = (await browser.get("/console/sign-in")).headers["set-cookie"].partition("=")[2].partition(";")[0]
        for bad in (good[:-2], good[:40] + ("A" if good[40] != "A" else "B") + good[41:], begun, "", "x"):
            browser.http.cookies.set(SESSION, bad, domain="127.0.0.1", path="/")
            assert (await browser.get(path)).status_code == 303
            refused = await browser.post(f"{path}/approve", form)
            assert (refused.status_code, "Sign in" in refused.text) == (401, True)
    bearer = await console.gateway.get("/v1/calls", token=good)
    assert bearer.status_code == 401


async def test_anyone_who_is_revoked_is_out_at_once(console: ConsoleGateway) -> None:
    _, ticket = await console.request_approval("revoked")
    async with console.open_browser("lou") as browser:
        assert (await browser.get(f"/console/approvals/{ticket}")).status_code == 200
        root = console.gateway.token("root", scopes=[ADMIN])
        revoked = await console.gateway.post(
            "/v1/revocations", {"kind": "user", "value": "lou", "reason": "left"}, token=root
        )
        assert revoked.status_code in (200, 201), revoked.text
        page = await browser.get(f"/console/approvals/{ticket}")
        assert page.status_code == 401
        assert "revoked" in visible_text(page)
        assert (await browser.sign_in("lou")).status_code == 401


async def test_signing_out_leaves_nothing_in_the_browser(console: ConsoleGateway) -> None:
    async with console.open_browser("bo") as browser:
        page = await browser.get("/console/sign-out")
        token = re.search(r'name="form_token" value="(\w+)"', page.text)
        assert token is not None
        assert (await browser.post("/console/sign-out", {"form_token": "wrong"})).status_code == 403
        out = await browser.post("/console/sign-out", {"form_token": token[1]})
        assert (out.status_code, "Signed out" in out.text) == (200, True)
        assert SESSION not in browser.http.cookies
        assert (await browser.get("/console/approvals")).status_code == 303


async def test_coming_back_twice_or_from_nowhere_lets_nobody_in(console: ConsoleGateway) -> None:
    async with console.open_browser() as browser:
        for query in ("", "?code=x", "?code=x&state=y", "?error=access_denied&state=y"):
            assert (await browser.get(f"/console/callback{query}")).status_code == 401
        await browser.get("/console/sign-in")
        assert (await browser.get("/console/callback?code=x&state=y")).status_code == 401
        assert SESSION not in browser.http.cookies


@pytest.mark.parametrize(
    "to", ["https://evil.example", "//evil.example", "/console/sign-out", "/v1/calls", "javascript:x"]
)
async def test_a_sign_in_leads_to_pages_of_ours_only(console: ConsoleGateway, to: str) -> None:
    async with console.open_browser() as browser:
        assert (await browser.sign_in("bo", to)).url.path == "/console"


async def test_a_member_of_many_groups_can_sign_in_and_of_too_many_gets_an_error(console: ConsoleGateway) -> None:
    async with console.open_browser("crowd") as browser:
        parts = [name for name in browser.http.cookies if name.startswith(SESSION)]
        assert len(parts) > 1
        assert (await browser.get("/console/approvals")).status_code == 200
    async with console.open_browser() as browser:
        told = await browser.sign_in("mob")
        assert told.status_code == 401
        assert "the token is longer than" in visible_text(told).lower()


async def test_what_callers_write_is_shown_and_does_nothing(console: ConsoleGateway) -> None:
    _, ticket = await console.request_approval("hostile", tool="shop.rename_user", id=9, name=HOSTILE + "x" * 51_200)
    async with console.open_browser("lea") as browser:
        page = await browser.get(f"/console/approvals/{ticket}")
    assert "<script" not in page.text
    assert not set("\u202e\x1b\u200b\U000e0041").intersection(page.text)
    assert r"\u202egpj.exe\x1b[31m\u200b\U000e0041" in page.text
    assert "more of 51,2" in page.text
