"""The first ten minutes: a governed call, three tools and their mistakes, a server from npm and a rule on its paths.

With the gateway that runs in each part go edits, agents and the console, from `authors`, `agents` and `operators`.
"""

import asyncio
from pathlib import Path

from proofs.first_day import agents, authors, operators, services
from proofs.first_day.console import open_console
from proofs.first_day.mcp_client import connect
from proofs.first_day.newcomer import Journal, Newcomer
from proofs.first_day.tool_files import TOOL_FILE, list_broken_files
from proofs.kit.idp.install import get_node_path

_READY_LINE = "MCP  http://"
_SECONDS = 60.0
_RULE = """
@id("files-in-the-open-folder")
@reason("Agents read files of the open folder only.")
forbid (principal, action == Action::"call", resource == Tool::"files.read_text_file")
unless {{ context.facts has path && context.facts.path like "{folder}/*" }};
"""
_SERVER = """
[[servers]]
name = "files"
command = ["{node}", "{program}", "{folder}"]
sandbox = false
reads = ["read_text_file", "list_directory"]
facts.path = "arguments.path"
start_seconds = 60
"""
_CASES = """
cases:
  - name: a file of the open folder may be read
    caller: {{user: ana}}
    tool: files.read_text_file
    arguments: {{path: "{folder}/open/a.txt"}}
    expect: allow
  - name: no other file may be read
    caller: {{user: ana}}
    tool: files.read_text_file
    arguments: {{path: "{folder}/closed/a.txt"}}
    expect: deny
    by: files-in-the-open-folder
"""


async def reach_first_call(user: Newcomer, journal: Journal) -> int:
    """From an installed package to a governed call; return how many commands it took, the installation included.

    Then look around, with the same gateway.
    """
    made = await user.run_typed("deputize init shop")
    journal.check_result(made, "init makes a project", "deputize.toml")
    user.folder = user.folder / "shop"
    operators.write_failing_tool(user)
    client = await agents.connect_before_start(user, journal)
    dev = await user.start_typed("dev", "deputize dev --port 0", _READY_LINE)
    call = await user.run_typed("deputize call hello.greet name=Ana")
    journal.check_result(call, "the first call is governed", "Hello, Ana!", "reads-are-free")
    command_count = 1 + user.command_count
    journal.check_text(
        dev.log.read_text(), "the first line says what is asked from now on", "Edited tools are used at once",
        without=("later changes of authority",),
    )  # fmt: skip
    client = await agents.find_gateway(user, journal, client)
    await authors.edit_tools(user, journal, dev, client)
    console = await open_console(user.sandbox, dev)
    await operators.read_calls(user, journal, console)
    await operators.undo_calls(user, journal, dev, console)
    await operators.switch_agents(user, journal, console)
    await operators.revoke_delegations(user, journal)
    connected = await user.run_typed("deputize connect json")
    journal.check_result(connected, "an entry for any client is tried", "Tried this entry as a client would")
    await authors.check_held_edit(user, journal, dev)
    await dev.stop()
    await client.close()
    (user.folder / "tools" / operators.FAILING_FILE).unlink()
    return command_count


async def write_tools(user: Newcomer, journal: Journal) -> int:
    """Write three tools, break them, and read the messages; return how many messages did not name the mistake."""
    file = user.folder / "tools" / "mine.py"
    faults = len(journal.faults)
    for broken in list_broken_files():
        file.write_text(broken.text)
        result = await user.run_typed("deputize tool check tools/mine.py")
        journal.check_result(result, broken.title, *broken.words, code=1)
    message_faults = len(journal.faults) - faults
    await authors.check_short_docstring(user, journal)
    file.write_text(TOOL_FILE)
    journal.check_result(await user.run_typed("deputize tool check tools/mine.py"), "the three tools are valid")
    return message_faults


async def govern_server(user: Newcomer, journal: Journal, package: Path) -> None:
    """Put a server from npm behind the gateway, with a rule on the path that its tools are given."""
    folder = user.folder.resolve() / "files"
    for name in ("open", "closed"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.txt").write_text(f"text of {name}")
    program = package / "node_modules" / "@modelcontextprotocol" / "server-filesystem" / "dist" / "index.js"
    with (user.folder / "deputize.toml").open("a") as settings:
        settings.write(_SERVER.format(node=get_node_path(package), program=program, folder=folder))
    (user.folder / "policies" / "files.cedar").write_text(_RULE.format(folder=folder / "open"))
    (user.folder / "policies" / "tests" / "files.yaml").write_text(_CASES.format(folder=folder))
    (user.folder / "tools" / "faulty.py").write_text(authors.FAULTY_FILE)
    await services.import_service(user, journal)
    # Not in a terminal, so nobody could be asked about the new settings and rule.
    dev = await user.start_typed("dev-server", "deputize dev --port 0 --accept-changes", _READY_LINE)
    # The gateway does not wait for a server that starts slowly.
    tested = await user.run_typed("deputize servers test files")
    journal.check_result(tested, "the server is connected", "files is connected")
    allowed = await user.run_typed(f"deputize call files.read_text_file path={folder}/open/a.txt")
    journal.check_result(allowed, "a file of the open folder is read", "text of open")
    for path in (f"{folder}/closed/a.txt", f"{folder}/open/../closed/a.txt"):
        denied = await user.run_typed(f"deputize call files.read_text_file path={path}")
        journal.check(denied.code == 1 and "text of closed" not in denied.stdout, f"{path} is refused")
    failed = await user.run_typed("deputize call mine.add_tax price=13")
    journal.check(failed.code == 1 and "tools/mine.py" not in failed.stdout, "a caller does not see a tool's exception")
    journal.check("no tax for this price" in dev.log.read_text(), "the terminal of dev shows a tool's exception")
    await _edit_tool(user, journal)
    await services.read_errors(user, journal)
    await authors.call_faulty_tools(user, journal, dev)
    client, _ = await connect(user)
    await agents.read_refusals(user, journal, client)
    await authors.remove_tools(user, journal, dev, client)
    await client.close()
    await _read_audit(user, journal)
    journal.check_result(await user.run_typed("deputize servers export"), "the server's tools are written down")
    journal.check_result(await user.run_typed("deputize policy check"), "the rule is checked against the server")
    journal.check_result(await user.run_typed("deputize policy test"), "the rule's cases hold")
    await dev.stop()


async def _edit_tool(user: Newcomer, journal: Journal) -> None:
    """Save a changed tool, and call it until the answer is the new one."""
    file = user.folder / "tools" / "mine.py"
    file.write_text(TOOL_FILE.replace("return len(text.split())", "return 100 + len(text.split())"))
    output = ""
    try:
        async with asyncio.timeout(_SECONDS):
            while "102" not in output:
                output = (await user.run_typed("deputize call mine.count_words text='a b'")).stdout
    except TimeoutError:
        pass
    journal.check("102" in output, f"saved tool code is used without a restart: {output!r}")


async def _read_audit(user: Newcomer, journal: Journal) -> None:
    """Read who was refused and why."""
    found = await user.run_typed("deputize audit search --tool files.read_text_file --decision deny")
    journal.check_result(found, "the refusal is found in the audit", "files-in-the-open-folder", "denied")
    exported = await user.run_typed("deputize audit export --output audit.jsonl")
    journal.check_result(exported, "the audit is exported", "entries in audit.jsonl")
    entries = (user.folder / "audit.jsonl").read_text()
    journal.check("mine.add_tax" in entries, "the export has the failed call")
