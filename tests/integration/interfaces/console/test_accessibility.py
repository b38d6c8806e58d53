"""Every page by the rules of WCAG 2.2 AA that a program can check: both themes, on a phone and on a desk."""

import shutil
import subprocess
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.core.caller import ADMIN_SCOPE
from tests.integration.interfaces.console.test_pages import PAGES, World, console, seal_session, world
from tests.support.chromium import EXECUTABLE, Tab, open_tab
from tests.support.console_gateway import ConsoleGateway

__all__ = ["console", "world"]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.requirement("GOV-2"),
    pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed"),
]
_AXE = "axe-core@4.14.0"
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# States that pages show beside those of the table.
_MORE_PAGES = (
    "/console/calls/{read_id}",
    "/console/calls/{flow_id}",
    "/console/calls/{dry_id}",
    "/console/calls/{refused_id}",
    "/console/approvals/{ended_id}",
    "/console/switches/on?kind=agent&value=billing-bot",
    "/console/errors/E3411",
)
_RUN = f"""axe.run({{runOnly: {_RULES}}}).then(
    found => found.violations.flatMap(each => each.nodes.map(node => each.id + ": " + node.html.slice(0, 160))))"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, and the checker comes through it")
    folder = tmp_path_factory.mktemp("axe")
    options = ("--no-package-lock", "--no-audit", "--no-fund", "--prefix", str(folder))
    subprocess.run([npm, "install", *options, _AXE], check=True, timeout=600, capture_output=True)
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def more_ids(console: ConsoleGateway, world: World) -> dict[str, str]:
    """Ids of a dry run, of a call that a kill switch refused, and of an approval request that has ended."""
    gateway, admin = console.gateway, console.gateway.token("root", scopes=[ADMIN_SCOPE])
    dry = (await gateway.call("shop.delete_user", {"id": 91}, dry_run=True)).json()
    call_id, ended_id = await console.request_approval("ended", id=92)
    assert (await gateway.post(f"/v1/calls/{call_id}/cancel", {})).status_code == 202
    switch = {"kind": "agent", "value": "billing-bot", "off": True, "reason": "it books twice"}
    assert (await gateway.post("/v1/switches", switch, token=admin)).status_code == 200
    agent = gateway.token("ana", agent="billing-bot")
    refused = (await gateway.call("shop.get_user", {"id": 7}, token=agent)).json()
    return {**world, "dry_id": dry["call_id"], "refused_id": refused["call_id"], "ended_id": ended_id}


async def _list_violations(tab: Tab, axe: str) -> list[str]:
    # The debugger may run what the policy of the page forbids.
    await tab.evaluate(f"{axe}; document.querySelectorAll('details').forEach(each => each.open = true); 0")
    found: list[str] = await tab.evaluate(_RUN)
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_no_page_breaks_a_rule(
    console: ConsoleGateway,
    more_ids: dict[str, str],
    axe: str,
    tmp_path: Path,
    theme: str,
    width: int,
) -> None:
    violations = {}
    async with open_tab(tmp_path) as tab:
        await tab.resize(width)
        await tab.send_command(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
        )
        await tab.open_url(f"{console.url}/console/sign-in")
        violations["/console/sign-in"] = await _list_violations(tab, axe)
        await tab.evaluate(f"document.cookie = 'deputize-session={seal_session(console, 'administrator')}; path=/'")
        for path in (*(each for each, statuses in PAGES.items() if statuses[0] == 200), *_MORE_PAGES):
            await tab.open_url(console.url + path.format(**more_ids))
            violations[path] = await _list_violations(tab, axe)
    assert {path: each for path, each in violations.items() if each} == {}
