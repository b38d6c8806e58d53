"""The pages in a real browser: no script of a caller's runs, nothing runs off a phone's screen, the keyboard is enough.

What only a browser can tell is told here: that it keeps our cookies on the way back from the issuer, sends our origin
with our forms, and finds nothing in our pages that our own policy forbids.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.console.chromium import EXECUTABLE, Tab, open_tab
from tests.integration.console.kit import Desk, open_desk

pytestmark = [
    pytest.mark.requirement("GOV-3"),
    pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed"),
]

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e\u200b\U000e0041"
PHONE, DESK = 390, 1280


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with open_desk(module_database, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


async def _sign_in(tab: Tab, desk: Desk, person: str, ticket: str) -> None:
    """From the ticket's address to the issuer's pages and back, as a person would."""
    assert desk.provider is not None
    await tab.go(f"{desk.url}/console/tickets/{ticket}")
    await tab.see(f"document.querySelector('[name=login]').value = {person!r}")
    await tab.see("document.querySelector('[name=password]').value = 'any'")
    await tab.click("button[type=submit]")
    await tab.click("button[type=submit]")
    assert await tab.see("location.href") == f"{desk.url}/console/tickets/{ticket}"


async def _is_harmless(tab: Tab) -> None:
    assert await tab.see("document.scripts.length") == 0
    assert await tab.see("document.images.length") == 0
    assert "owned" not in await tab.see("document.title")
    loaded = await tab.see("performance.getEntriesByType('resource').map(each => new URL(each.name).pathname)")
    assert all(path.startswith("/console/style-") for path in loaded)
    assert tab.complaints == []


async def _fits(tab: Tab, width: int) -> None:
    await tab.width(width)
    assert await tab.see("document.documentElement.scrollWidth") == width
    over = (
        "[...document.querySelectorAll('main *')].filter(each => each.getBoundingClientRect().right > innerWidth + 1)"
        ".map(each => each.outerHTML.slice(0, 80))"
    )
    assert await tab.see(over) == []


async def test_what_callers_write_runs_nothing_and_fits_on_a_phone_and_a_no_is_typed_and_sent(
    desk: Desk, tmp_path: Path
) -> None:
    call_id, ticket = await desk.asked("hostile", tool="shop.rename_user", id=9, name=HOSTILE + "x" * 51_200)
    async with open_tab(tmp_path) as tab:
        await tab.width(PHONE)
        await _sign_in(tab, desk, "lea", ticket)
        assert await tab.see("document.querySelector('.values').textContent.includes('<script>document.title')")
        for width in (PHONE, DESK):
            await _fits(tab, width)
        await tab.see("document.querySelectorAll('details').forEach(each => each.open = true)")
        await _fits(tab, PHONE)
        small = "[...document.querySelectorAll('.buttons button')].filter(each => each.offsetHeight < 44).length"
        assert await tab.see(small) == 0
        await tab.see("document.querySelector('textarea').value = 'this is no name'")
        await tab.click("button.deny")
        assert "✕ Denied" in await tab.see("document.body.innerText")
        await _is_harmless(tab)
    told = await desk.call(call_id)
    assert (told["state"], "this is no name" in str(told)) == ("denied", True)


async def test_the_keyboard_is_enough_to_approve(desk: Desk, tmp_path: Path) -> None:
    call_id, ticket = await desk.asked("keyboard", id=61)
    async with open_tab(tmp_path) as tab:
        await tab.width(DESK, 900)
        await _sign_in(tab, desk, "bo", ticket)
        await _fits(tab, PHONE)
        reached = []
        for _ in range(20):
            await tab.press("Tab")
            reached.append(await tab.see("document.activeElement.innerText.trim() || document.activeElement.id"))
            if "Approve" in reached[-1]:
                break
        assert reached[-3:] == ["reason", "✕ Deny", "✓ Approve"]
        assert await tab.see("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await tab.press("Enter", loads=True)
        assert "bo ✓ approved" in await tab.see("document.body.innerText")
        await _is_harmless(tab)
    assert (await desk.ended(call_id))["state"] == "succeeded"
