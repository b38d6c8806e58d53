"""The pages of a demo name the station of its tour; no other page does."""

from pathlib import Path

import orjson

from tests.support.console_gateway import open_console_gateway, visible_text

STATION = {
    "place": "2 of 6",
    "title": "An approval <b>with</b> its preview",
    "story": "You see what would go.",
    "page": "switches",
}


async def test_pages_name_the_station_of_a_tour_while_there_is_one(module_database: str, tmp_path: Path) -> None:
    file, links = tmp_path / "tour.json", list[str]()
    async with open_console_gateway(module_database, tmp_path, codes=True) as console:
        assert console.gateway.in_process is not None
        access = console.gateway.in_process.console_access
        access.offer_link(links.append)
        async with console.open_browser() as browser, console.open_browser() as stranger:
            await browser.get(links[0].removeprefix(console.url))
            access.follow_tour(file)
            assert "Tour" not in visible_text(await browser.get("/console"))
            file.write_bytes(orjson.dumps(STATION))
            # A page with a script, and one with forms.
            for path in ("/console", "/console/switches"):
                page = await browser.get(path)
                assert "Tour, 2 of 6 An approval <b>with</b> its preview You see what would go." in visible_text(page)
                assert "<b>with" not in page.text
                assert '<a href="/console/switches">See it here</a>' in page.text
            assert "Tour" not in (await stranger.get("/console/approvals/7")).text
            for half in (b"", b'{"place": '):
                file.write_bytes(half)
                assert (await browser.get("/console")).status_code == 200
            file.unlink()
            assert "Tour" not in visible_text(await browser.get("/console"))
