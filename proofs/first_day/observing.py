"""Observe before any rule is written: nothing is refused, and the report can be read."""

import json
from pathlib import Path
from typing import Any

from proofs.first_day.mcp_client import connect
from proofs.first_day.newcomer import Journal, Newcomer
from proofs.kit.idp.install import get_node_path
from tests.support.chromium import open_tab

_READY_LINE = "MCP  http://"
_WINDOW_PIXELS = 1200


async def observe_server(user: Newcomer, journal: Journal, package: Path) -> None:
    """Put the gateway before a client's server, and send calls without any field that is optional."""
    user.folder = user.home / "watched"
    data = user.folder.resolve() / "data"
    data.mkdir(parents=True)
    (data / "a.txt").write_text("text of a")
    program = package / "node_modules" / "@modelcontextprotocol" / "server-filesystem" / "dist" / "index.js"
    server = {"command": str(get_node_path(package)), "args": [str(program), str(data)]}
    (user.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": server}}))
    observe = await user.start_typed("observe", "deputize observe .mcp.json --port 0", _READY_LINE)
    await user.run_typed("deputize servers test files")
    client, _ = await connect(user)
    calls: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("list_directory", {"path": str(data)}, "a.txt"),
        ("read_text_file", {"path": f"{data}/a.txt"}, "text of a"),
        ("write_file", {"path": f"{data}/b.txt", "content": "b"}, "b.txt"),
        ("create_directory", {"path": f"{data}/new"}, "new"),
        ("move_file", {"source": f"{data}/b.txt", "destination": f"{data}/new/b.txt"}, "b.txt"),
    )
    for tool, arguments, words in calls:
        answer = await client.call(f"files__{tool}", **arguments)
        journal.check_text(answer, f"who observes refuses no {tool}", words, without=("idempotency key",))
    # Also for a gateway that wants a key, which this command makes by itself: the report shows calls in any case.
    await user.run_typed(f"deputize call files.read_text_file path={data}/a.txt")
    await user.run_typed("deputize call nothing.like_it")
    report = await user.run_typed("deputize observe report --html report.html --write-policy drafted.cedar")
    journal.check_result(
        report, "the report says what will need a key, and counts one system", "need an idempotency key",
        ", 1 system,",
    )  # fmt: skip
    draft = (user.folder / "drafted.cedar").read_text()
    journal.check_text(draft, "the policy counts in words", "1 call like this was", without=("1 calls",))
    await observe.stop()
    async with open_tab(user.home / "report-reader") as tab:
        await tab.resize(_WINDOW_PIXELS)
        await tab.open_url(f"file://{user.folder}/report.html")
        width = int(await tab.evaluate("document.documentElement.scrollWidth"))
    journal.check(width <= _WINDOW_PIXELS, f"the report fits a window of {_WINDOW_PIXELS} pixels, not {width}")
