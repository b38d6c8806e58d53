"""The pages in a real browser: no script of a caller's runs, nothing runs off a phone's screen, the keyboard is enough.

What only a browser can tell is told here: that it keeps our cookies on the way back from the issuer, sends our origin
with our forms, and finds nothing in our pages that our own policy forbids.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.chromium import EXECUTABLE, Tab, open_tab
from tests.support.console_gateway import ConsoleGateway, open_console_gateway

pytestmark = [
    pytest.mark.requirement("GOV-3"),
    pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed"),
]

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e\u200b\U000e0041"
PHONE, DESK = 390, 1280


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def console(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleGateway]:
    async with open_console_gateway(module_database, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


async def _sign_in(tab: Tab, console: ConsoleGateway, person: str, request_id: str) -> None:
    """From the ticket's address to the issuer's pages and back, as a person would."""
    assert console.provider is not None
    await tab.open_url(f"{console.url}/console/approvals/{request_id}")
    await tab.evaluate(f"document.querySelector('[name=login]').value = {person!r}")
    await tab.evaluate("document.querySelector('[name=password]').value = 'any'")
    await tab.click("button[type=submit]")
    await tab.click("button[type=submit]")
    assert await tab.evaluate("location.href") == f"{console.url}/console/approvals/{request_id}"


async def _require_harmless(tab: Tab) -> None:
    assert await tab.evaluate("document.scripts.length") == 0
    assert await tab.evaluate("document.images.length") == 0
    assert "owned" not in await tab.evaluate("document.title")
    loaded = await tab.evaluate("performance.getEntriesByType('resource').map(each => new URL(each.name).pathname)")
    assert all(path.startswith("/console/style-") for path in loaded)
    assert tab.complaints == []


async def _require_fit(tab: Tab, width: int) -> None:
    await tab.resize(width)
    assert await tab.evaluate("document.documentElement.scrollWidth") == width
    over = (
        "[...document.querySelectorAll('main *')].filter(each => each.getBoundingClientRect().right > innerWidth + 1)"
        ".map(each => each.outerHTML.slice(0, 80))"
    )
    assert await tab.evaluate(over) == []


async def test_what_callers_write_runs_nothing_and_fits_on_a_phone_and_a_no_is_typed_and_sent(
    console: ConsoleGateway, tmp_path: Path
) -> None:
    call_id, ticket = await console.request_approval(
        "hostile", tool="shop.rename_user", id=9, name=HOSTILE + "x" * 51_200
    )
    async with open_tab(tmp_path) as tab:
        await tab.resize(PHONE)
        await _sign_in(tab, console, "lea", ticket)
        assert await tab.evaluate("document.querySelector('.values').textContent.includes('<script>document.title')")
        for width in (PHONE, DESK):
            await _require_fit(tab, width)
        await tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        await _require_fit(tab, PHONE)
        small = "[...document.querySelectorAll('.buttons button')].filter(each => each.offsetHeight < 44).length"
        assert await tab.evaluate(small) == 0
        await tab.evaluate("document.querySelector('textarea').value = 'this is no name'")
        await tab.click("button.deny")
        assert "✕ Denied" in await tab.evaluate("document.body.innerText")
        await _require_harmless(tab)
    told = await console.fetch_call(call_id)
    assert (told["state"], "this is no name" in str(told)) == ("denied", True)


async def test_the_keyboard_is_enough_to_approve_and_the_outcome_is_shown_as_it_arrives(
    console: ConsoleGateway, tmp_path: Path
) -> None:
    call_id, ticket = await console.request_approval("keyboard", id=61)
    async with open_tab(tmp_path) as tab:
        await tab.resize(DESK, 900)
        await _sign_in(tab, console, "bo", ticket)
        await _require_fit(tab, PHONE)
        reached = []
        for _ in range(20):
            await tab.press_key("Tab")
            reached.append(await tab.evaluate("document.activeElement.innerText.trim() || document.activeElement.id"))
            if "Approve" in reached[-1]:
                break
        assert reached[-3:] == ["reason", "✕ Deny", "✓ Approve"]
        assert await tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await tab.press_key("Enter", loads=True)
        assert "bo ✓ approved" in await tab.evaluate("document.body.innerText")
        assert (await console.wait_for_end(call_id))["state"] == "succeeded"
        look = "document.body.innerText.includes('✓ succeeded') ? done(true) : setTimeout(look, 50)"
        async with asyncio.timeout(60):
            assert await tab.evaluate(f"new Promise(done => {{ const look = () => {look}; look(); }})")
        assert tab.complaints == []
