"""Photograph the console for the README and the site: `python -m docs.screenshots` writes `docs/images/`.

The pictures show the running product. A project is made from the files of the tutorial about approvals and started with
`deputize dev`; an agent makes the tutorial's call, and a headless Chromium opens the page where it waits for approval.
The other pages of the console show the shop of `deputize demo`, after its tour.
The report of observed calls is the one that the tutorial about the first hour writes, after a livelier day.
"""

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from deputize.interfaces.cli.commands.service.demo import create_tokens, take_tour
from deputize.interfaces.cli.local.demo_gateway import keep_agents_busy, run_demo_gateway
from tests.acceptance.cli.cli_process import PROGRAM, BackgroundCommand, make_project
from tests.acceptance.docs.snippets import Reader, load_pages
from tests.support.chromium import EXECUTABLE, open_tab

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
TUTORIAL = DOCS / "tutorials" / "approve-a-dangerous-call.md"
FIRST_HOUR = "tutorials/first-hour.md"
MAX_BYTES = 200_000
_FILE = re.compile(r"^<!-- file (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"code ([0-9A-Z]{4}-[0-9A-Z]{4})\b")
_WIDTH, _HEIGHT = 1120, 680
_REPORT_HEIGHT = 900
_SCALE = 1.25
_PAUSE_SECONDS = 0.5
_ORDER = '{"customer": 7, "item": "lamp", "count": 2}'
# The path of a page, and what is typed into its form before the picture is taken.
ConsolePage = tuple[str, Mapping[str, str]]
_MORE_CALLS = (
    "python agent.py orders__refund_order customer=ana amount=20",
    "python agent.py orders__refund_order customer=bo amount=45",
    "python agent.py orders__refund_order customer=mallory amount=90000",
)


@contextmanager
def run_project(folder: Path) -> Iterator[BackgroundCommand]:
    """Start the tutorial's project on free ports, and stop it afterwards."""
    make_project(folder)
    for name, text in _FILE.findall(TUTORIAL.read_text(encoding="utf-8")):
        (folder / name).write_text(text, encoding="utf-8")
    with BackgroundCommand("dev", folder=folder) as gateway:
        gateway.wait_for_line("▶")
        yield gateway


def request_approval(folder: Path) -> str:
    """Make the tutorial's call for its agent, and return the address of the page where people decide."""
    agent = ("--user", "eva", "--agent", "billing-bot", "--scope", "crm:delete")
    token = _run_deputize(folder, "token", *agent).strip()
    pending = json.loads(_run_deputize(folder, "call", "crm.delete_user", "id=7", "--json", "--token", token))
    return str(pending["approval"]["url"])


def _run_deputize(folder: Path, *words: str) -> str:
    result = subprocess.run([PROGRAM, *words], cwd=folder, env={}, capture_output=True, text=True, check=False)
    if not result.stdout:
        raise RuntimeError(f"deputize {words[0]} printed no result: {result.stderr}")
    return result.stdout


async def photograph_approval(url: str, code: str, profile: Path) -> bytes:
    """Enter the code from the gateway's terminal, and photograph the approval request behind it."""
    async with open_tab(profile) as tab:
        await tab.resize(_WIDTH, _HEIGHT)
        await tab.open_url(url)
        await tab.evaluate(f"document.querySelector('[name=code]').value = {code!r}")
        await tab.click("form.code button")
        return await tab.capture_png(_WIDTH, _HEIGHT, scale=_SCALE)


def photograph_demo(profile: Path) -> dict[str, bytes]:
    """Take the tour of the demo, and photograph the pages that show what its agents did."""
    with run_demo_gateway(0) as gateway, keep_agents_busy(gateway.url, create_tokens(gateway), _PAUSE_SECONDS):
        if surprises := take_tour(gateway, has_person=False):
            raise RuntimeError(f"the demo did not go as told: {', '.join(surprises)}")
        call_id, _ = _find_ended_call(gateway.folder, "customers.delete")
        # One that nobody overwrites before its undo is photographed, and one that waits.
        order = ("orders.place", "customer=7", "item=lamp", "count=2")
        placed_id = _call_as(gateway.folder, "support-bot", *order)
        _, entry_id = _find_ended_call(gateway.folder, "orders.place")
        _call_as(gateway.folder, "cleanup-bot", "customers.delete", "number=9")
        flow_id, _ = _find_ended_call(gateway.folder, "orders.checkout")
        draft = gateway.folder / "drafts" / "orders-ask.cedar"
        call = {"tool": "orders.place", "user": "eva", "agents": "support-bot", "arguments": _ORDER}
        pages: dict[str, ConsolePage] = {
            "console-home.png": ("", {}),
            "console-calls.png": ("/calls", {}),
            "console-call.png": (f"/calls/{call_id}", {}),
            "console-undo.png": (f"/calls/{placed_id}/undo", {}),
            "console-flow.png": (f"/flows/{flow_id}", {}),
            "console-audit.png": ("/audit", {}),
            "console-entry.png": (f"/audit/{entry_id}", {}),
            "console-approvals.png": ("/approvals", {}),
            "console-tools.png": ("/tools", {}),
            "console-tool.png": ("/tools/orders.place", {}),
            "console-servers.png": ("/servers", {}),
            "console-policies.png": ("/policies", {}),
            "console-simulate.png": ("/policies/simulate", call),
            "console-backtest.png": ("/policies/backtest", {"file": draft.name, "text": draft.read_text()}),
            "console-agents.png": ("/agents", {}),
            "console-switches.png": ("/switches", {}),
            "console-switch-off.png": ("/switches/off?kind=agent&value=cleanup-bot", {}),
        }
        link = str(gateway.events["ready"][-1]["console"])
        return asyncio.run(photograph_console(link, gateway.url, pages, profile))


def _call_as(folder: Path, agent: str, *words: str) -> str:
    """Make a call as one of the demo's agents; return its id."""
    token = (folder / f"{agent}.token").read_text().strip()
    return str(json.loads(_run_deputize(folder, "call", *words, "--json", "--token", token))["call_id"])


def _find_ended_call(folder: Path, tool: str) -> tuple[str, str]:
    """Find the newest call of a tool that has ended, and the audit entry of its end."""
    found = json.loads(_run_deputize(folder, "audit", "search", "--tool", tool, "--kind", "outcome", "--json"))
    entry = found["entries"][0]
    return str(entry["entry"]["call"]), str(entry["id"])


async def photograph_console(link: str, root: str, pages: Mapping[str, ConsolePage], profile: Path) -> dict[str, bytes]:
    """Sign in by the link from the gateway's terminal, and photograph pages."""
    pictures = {}
    async with open_tab(profile) as tab:
        await tab.resize(_WIDTH, _HEIGHT)
        await tab.open_url(link)
        for name, (path, fields) in pages.items():
            await tab.open_url(f"{root}/console{path}")
            for field, text in fields.items():
                await tab.evaluate(f"document.getElementById({field!r}).value = {json.dumps(text)}")
            if fields:
                await tab.click(".draft button")
            end = await tab.evaluate("Math.ceil(document.body.getBoundingClientRect().bottom)")
            height = min(int(end), _HEIGHT)
            picture = await tab.capture_png(_WIDTH, height, scale=_SCALE)
            # A long table is drawn smaller, so that the page with it loads quickly.
            pictures[name] = picture if len(picture) <= MAX_BYTES else await tab.capture_png(_WIDTH, height, scale=1)
            await tab.resize(_WIDTH, _HEIGHT)
    return pictures


def write_report(folder: Path) -> Path:
    """Follow the tutorial until it has written its report, with more calls than a reader has to make."""
    folder.mkdir()
    (page,) = (each for each in load_pages() if each.name == FIRST_HOUR)
    reader = Reader(folder, env={"HOME": str(folder.parent), "LANG": "C.UTF-8"})
    try:
        for block in page.blocks:
            if any("observe report" in command for command, _ in block.commands()):
                for _ in range(3):
                    reader.run_block(next(each for each in page.blocks if "bash day.sh" in each.text))
                for command in (*_MORE_CALLS, "deputize observe report --html report.html"):
                    reader.run_block(replace(block, text=f"$ {command}\n"))
                break
            reader.run_block(block)
    finally:
        reader.stop_background()
    return folder / "report.html"


async def photograph_report(report: Path, profile: Path) -> bytes:
    """Photograph the top of the report."""
    async with open_tab(profile) as tab:
        await tab.resize(_WIDTH, _REPORT_HEIGHT)
        await tab.open_url(report.as_uri())
        return await tab.capture_png(_WIDTH, _REPORT_HEIGHT, scale=_SCALE)


def write_screenshots(images: Path) -> list[Path]:
    """Write each picture into a folder, and return their paths."""
    work = Path(tempfile.mkdtemp(prefix="deputize-screenshots-"))
    try:
        folder = work / "crm"
        with run_project(folder) as gateway:
            url = request_approval(folder)
            # The code stands in the line that announces the approval request, whatever else that line says.
            match = _CODE.search(gateway.wait_for_line("⏸"))
            if match is None:
                raise RuntimeError("the gateway's terminal shows no code for the approval request")
            pictures = {"approval.png": asyncio.run(photograph_approval(url, match[1], work / "profile"))}
        pictures |= photograph_demo(work / "profile")
        report = write_report(work / "orders")
        pictures["observed.png"] = asyncio.run(photograph_report(report, work / "profile"))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    images.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        if len(picture) > MAX_BYTES:
            raise RuntimeError(f"{name} has {len(picture)} bytes; make it smaller than {MAX_BYTES}")
        (images / name).write_bytes(picture)
    return [images / name for name in pictures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pictures of the documentation."""
    argparse.ArgumentParser(prog="python -m docs.screenshots", description=main.__doc__).parse_args(arguments)
    if EXECUTABLE is None:
        print("screenshots: chromium is not installed: apt-get install -y chromium", file=sys.stderr)
        return 1
    for path in write_screenshots(IMAGES):
        print(f"screenshots: {path.relative_to(DOCS.parent)}, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
