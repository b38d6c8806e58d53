"""Pages are shown by governed calls: read as lines, filled, and acted on only by a call that says so."""

import base64
import re
import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import ValidationError

from deputize.core.settings import BrowserSettings, PolicySettings, Settings
from deputize.core.settings.builtin import BuiltinSettings
from deputize.core.settings.sandboxes import SandboxSettings
from deputize.execute.browser.process import find_chromium
from deputize.interfaces.cli.local.project_gateway import load_project
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support.egress_server import Server, run_server
from tests.support.hostile_pages import HostilePages, list_writes
from tests.support.policies import OPEN_POLICY
from tests.support.sandbox_host import needs_sandboxes

# They have a sandbox, so that each call below meets the rule.
WALLED = '@id("walled") @backend("namespaces") forbid (principal, action, resource in Namespace::"browser");'
needs_chromium = pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed")
pytestmark = [pytest.mark.requirement("EXE-4"), pytest.mark.requirement("GOV-2")]
NO_CLICK = """
@id("no-click")
forbid (principal, action == Action::"call", resource == Tool::"browser.click")
when { context.facts has url && context.facts.url like "*/forbidden*" };
"""


@dataclass(frozen=True, kw_only=True)
class BrowserGateway:
    gateway: HttpGateway
    server: Server
    other: Server

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server.port}"

    async def call(self, tool: str, *, user: str = "ada", dry_run: bool = False, **arguments: Any) -> dict[str, Any]:
        token = self.gateway.token(user, scopes=("browser:read", "browser:act"), agent="bot")
        key = None if dry_run else uuid.uuid4().hex
        answer = await self.gateway.call(f"browser.{tool}", arguments, token=token, key=key, dry_run=dry_run)
        envelope: dict[str, Any] = answer.json()
        return envelope

    async def get_result(self, tool: str, **arguments: Any) -> dict[str, Any]:
        envelope = await self.call(tool, **arguments)
        assert envelope["state"] == "succeeded", envelope
        result: dict[str, Any] = envelope["result"]
        return result

    async def show(self, path: str, session: str = "new") -> dict[str, Any]:
        return await self.get_result("navigate", url=f"{self.url}{path}", session=session)


def find_ref(result: dict[str, Any], line: str) -> str:
    match = re.search(rf"{line}.*\[ref=(p\d+e\d+)\]", result["text"])
    assert match is not None, result["text"]
    return match[1]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrowserGateway]:
    folder = tmp_path_factory.mktemp("project")
    policy_file = folder / "browser.cedar"
    policy_file.write_text(OPEN_POLICY + NO_CLICK + WALLED)

    def use_policies(settings: Settings) -> Settings:
        return settings.model_copy(update={"policy": PolicySettings(files=(str(policy_file),))})

    with tempfile.TemporaryDirectory(dir="/tmp") as sandboxes:
        # Where every user can reach it.
        Path(sandboxes).chmod(0o755)
        async with (
            run_server(lambda path, host: b"HTTP/1.1 204 No Content\r\n\r\n") as other,
            run_server(HostilePages(other)) as server,
        ):
            settings = Settings(
                environment="development",
                builtin=BuiltinSettings(
                    browser=BrowserSettings(private_hosts=(f"localhost:{server.port}", "localhost:2"))
                ),
                sandboxes=SandboxSettings(folder=Path(sandboxes) / "s"),
            )
            tools = load_project(settings, folder)
            options = {"tools": tuple(tools.tools)}
            async with serve_gateway(module_database, folder, change=use_policies, gateway_options=options) as gateway:
                yield BrowserGateway(gateway=gateway, server=server, other=other)
            for close in tools.closers:
                await close()


@needs_sandboxes
@needs_chromium
async def test_a_page_is_read_filled_and_sent_once(browser: BrowserGateway) -> None:
    shown = await browser.show("/order")
    session, url = shown["browser_session_id"], shown["url"]
    assert (shown["title"], shown["trust"], shown["action_id"], shown["page_id"]) == (
        "Order",
        "untrusted",
        "navigate",
        "p1",
    )
    assert {"target": f"localhost:{browser.server.port}", "refused": None} in shown["connections"]
    assert '- heading "Order" [level=1]' in shown["text"]
    send, item = find_ref(shown, 'button "Send"'), find_ref(shown, 'textbox "Item"')
    fields = [
        {"ref": item, "value": "<tea>"}, {"ref": find_ref(shown, 'checkbox "Gift"'), "value": "true"},
        {"ref": find_ref(shown, 'combobox "Size"'), "value": "large"},
    ]  # fmt: skip
    filled = await browser.get_result("fill", session=session, fields=fields)
    assert [each["value"] for each in filled["before"]] == ["", "false", "small"]
    # The same elements have the same references, and another text another digest.
    assert find_ref(filled["observation"], 'textbox "Item" = "<tea>"') == item
    assert filled["observation"]["observation_ref"] != shown["observation_ref"]
    password = {"ref": find_ref(shown, 'textbox "Password"'), "value": "hunter2"}
    refused = await browser.call("fill", session=session, fields=[password])
    assert "a password is a secret" in refused["error"]["message"]

    told = await browser.call("click", dry_run=True, session=session, ref=send, url=url)
    form = told["preview"]["impact"]["clicks"]["form"]
    assert (form["method"], form["action"]) == ("POST", f"{browser.url}/sink/order")
    assert {each["name"]: each["value"] for each in form["fields"]} == {
        "item": "<tea>", "gift": "true", "size": "large", "password": "(not shown)",
    }  # fmt: skip
    assert list_writes(browser.server) == []
    # Reading does not send it, even by the same click.
    followed = await browser.get_result("follow", session=session, ref=send)
    assert "POST is possible only while" in followed["text"]
    assert list_writes(browser.server) == []

    shown = await browser.show("/order", session)
    filled = await browser.get_result(
        "fill", session=session, fields=[{"ref": find_ref(shown, 'textbox "Item"'), "value": "a"}]
    )
    sent = await browser.get_result("click", session=session, ref=find_ref(shown, 'button "Send"'), url=url)
    assert "You are at /sink/order." in sent["text"]
    assert list_writes(browser.server) == ["POST /sink/order HTTP/1.1"]
    assert [each for each in browser.server.bodies if each] == [b"item=a&size=small&password="]
    # The page is another one now.
    assert (await browser.call("click", session=session, ref=send, url=url))["error"]["slug"] == "tool-precondition"


@needs_sandboxes
@needs_chromium
async def test_links_menus_parts_and_pictures(browser: BrowserGateway) -> None:
    shown = await browser.show("/order")
    session = shown["browser_session_id"]
    part = await browser.get_result("extract", session=session, ref=find_ref(shown, 'link "Next"'))
    assert part["text"].startswith('- link "Next"')
    assert f"<{browser.url}/page/next>" in part["text"]
    first = await browser.get_result("extract", session=session, limit=100)
    rest = await browser.get_result("extract", session=session, offset=first["next_offset"])
    assert first["text"] + rest["text"] == shown["text"]
    assert rest["next_offset"] is None
    followed = await browser.get_result("follow", session=session, ref=find_ref(shown, 'link "Next"'))
    assert "You are at /page/next." in followed["text"]
    assert followed["page_id"] == "p2"
    menu = await browser.show("/menu", session)
    opened = await browser.get_result("follow", session=session, ref=find_ref(menu, 'button "Open"'))
    assert find_ref(opened, 'button "Opened"') == find_ref(menu, 'button "Open"')
    waited = await browser.get_result("wait_for", session=session, text="Opened")
    assert waited["text"] == opened["text"]
    slow = await browser.call("wait_for", session=session, text="never", seconds=0.5)
    assert "does not show this text" in slow["error"]["message"]
    token = browser.gateway.token("ada", scopes=("browser:read",), agent="bot")
    answer = await browser.gateway.call("browser.screenshot", {"session": session}, token=token, key=uuid.uuid4().hex)
    envelope = answer.json()
    [picture] = envelope["content"]
    assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")
    assert envelope["result"]["screenshot_ref"].startswith("sha256:")


@needs_sandboxes
@needs_chromium
async def test_what_a_hostile_page_may_not_is_refused_and_named(browser: BrowserGateway) -> None:
    before = list_writes(browser.server)
    shown = await browser.show("/hostile")
    assert shown["title"] == "tried"
    assert any("POST is possible only" in (each["refused"] or "") for each in shown["connections"])
    metadata = await browser.call("navigate", url=f"{browser.url}/metadata")
    assert metadata["error"]["slug"] == "egress-denied", metadata
    assert list_writes(browser.server) == before
    assert browser.other.heads == []
    # Sessions are of one caller, and rules read the address that is acted on.
    session = shown["browser_session_id"]
    stolen = await browser.call("extract", user="eve", session=session)
    assert "no such browser session" in stolen["error"]["message"]
    ended = await browser.call("click", dry_run=True, session="0" * 32, ref="p1e1", url=f"{browser.url}/order")
    assert "Begin a new one with browser.navigate." in ended["preview"]["preconditions"][0]["detail"], ended
    denied = await browser.call("click", session=session, ref="p1e1", url=f"{browser.url}/forbidden")
    assert denied["state"] == "denied"
    elsewhere = await browser.call("click", session=session, ref="p1e1", url=f"{browser.url}/order")
    assert "another address" in elsewhere["error"]["message"]
    for url in ("https://evil.example/", "http://127.0.0.1:1/"):
        assert (await browser.call("navigate", url=url))["error"]["slug"] == "egress-denied"
    # Nothing listens there.
    silent = await browser.call("navigate", url="http://localhost:2/")
    assert silent["error"]["slug"] == "upstream-unavailable", silent
    assert "the host localhost cannot be reached" in silent["error"]["message"]
    assert (await browser.call("navigate", url="file:///etc/passwd"))["error"]["slug"] == "schema-violation"


def test_it_is_off_without_hosts_and_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="name a host"):
        BrowserSettings()
    settings = Settings(
        builtin=BuiltinSettings(browser=BrowserSettings(hosts=("shop.example.com",))),
        sandboxes=SandboxSettings(backend="gvisor"),
    )
    module = "deputize.interfaces.cli.local.builtin_tools"
    monkeypatch.setattr(f"{module}.find_chromium", lambda: "/usr/bin/true")
    assert "gVisor" in load_project(settings, tmp_path).refusals[0].reasons[0]
    monkeypatch.setattr(f"{module}.find_chromium", lambda: None)
    assert "Chromium is not installed" in load_project(settings, tmp_path).refusals[0].reasons[0]
