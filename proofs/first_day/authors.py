"""What authors of tools meet: an edit while the gateway runs, code whose faults show in a call, tools that are gone."""

from typing import Final

from proofs.first_day.mcp_client import McpClient
from proofs.first_day.newcomer import Journal, Newcomer, read_output, wait_for
from proofs.kit.child_process import ChildProcess

_SECONDS: Final = 30.0
_DRAFT = '''from deputize import tool


@tool
def crunch(number: int) -> int:
    """Crunch a number into the next one."""
    return number + 1
'''
_DECLARED = (
    _DRAFT.replace("@tool", '@tool(effects="read")')
    + '''

@tool(effects="read", scopes=["stock:read"])
def count(item: str) -> int:
    """Count the items of a kind in stock."""
    return 3
'''
)
_SHORT = '''from deputize import tool


@tool(effects="read", examples=[{"number": 1}])
def act(number: int) -> int:
    """Do it.

    Args:
        number: The number.
    """
    return number
'''
# Each is called, and its author reads the answer and the terminal.
FAULTY_FILE = '''import time

from deputize import tool


@tool(effects="read")
def measure(number: int) -> dict:
    """Return a number that is none."""
    return {"sizes": [number, float("nan")]}


@tool(effects="read")
def label(number: int) -> dict:
    """Return a set."""
    return {"labels": {number}}


@tool(effects="read", timeout=1)
def wait(number: int) -> int:
    """Take more time than it may."""
    time.sleep(2)
    return number
'''


async def check_short_docstring(user: Newcomer, journal: Journal) -> None:
    file = user.folder / "tools" / "short.py"
    file.write_text(_SHORT)
    result = await user.run_typed("deputize tool check tools/short.py")
    file.unlink()
    journal.check_text(
        read_output(result), "a short docstring is called short", "shorter than 10 characters",
        without=("description is missing",),
    )  # fmt: skip


async def edit_tools(user: Newcomer, journal: Journal, dev: ChildProcess, client: McpClient) -> None:
    """Write a tool, say what it does, and write another: nobody is asked, and a client that runs sees them."""
    file = user.folder / "tools" / "todo.py"
    changes = client.changes
    file.write_text(_DRAFT)
    journal.check(await wait_for(dev, "todo.py loaded: todo.crunch"), "a tool without declarations is loaded")
    journal.check(await client.wait_for_change(changes, _SECONDS), "a client that runs is told of a new tool")
    changes = client.changes
    file.write_text(_DECLARED)
    is_told = await wait_for(dev, "todo.crunch has more authority than before: effects: destructive → read")
    journal.check(is_told, "one line says what an edit changed in authority")
    called = await user.run_typed("deputize call todo.crunch number=1")
    journal.check_result(called, "an edited tool is used at once, without a question", "2", "reads-are-free")
    journal.check_result(await user.run_typed("deputize call todo.count item=apple"), "a new tool beside it, too", "3")
    await client.wait_for_change(changes, _SECONDS)
    tools = await client.list_tools()
    journal.check("todo__count" in tools, f"a client that runs lists a tool with a new scope: {sorted(tools)}")
    counted = await client.call("todo__count", item="apple")
    journal.check(counted == "3", f"its token has that scope by then: {counted!r}")
    file.unlink()


async def check_held_edit(user: Newcomer, journal: Journal, dev: ChildProcess) -> None:
    """A changed rule waits for a person, and the doctor knows."""
    file = user.folder / "policies" / "default.cedar"
    text = file.read_text()
    file.write_text(text.replace('@id("reads-are-free")', '@id("reads-cost-nothing")'))
    await wait_for(dev, "was not taken over")
    doctor = await user.run_typed("deputize doctor")
    file.write_text(text)
    journal.check_text(
        read_output(doctor), "the doctor names what waits to be confirmed", "not in use until you confirm",
        "policies/default.cedar",
    )  # fmt: skip


async def call_faulty_tools(user: Newcomer, journal: Journal, dev: ChildProcess) -> None:
    """Call tools whose results JSON lacks, and one that takes too long."""
    for name, place in (("measure", "result['sizes'][1] is nan"), ("label", "result['labels'] is of type set")):
        result = await user.run_typed(f"deputize call faulty.{name} number=1")
        journal.check_result(result, f"the author of {name} reads where the fault is", place, without=("JCS",), code=1)
    late = await user.run_typed("deputize call faulty.wait number=1")
    journal.check_result(
        late, "a caller is not told to wait longer for a tool whose own time is over", "Request less at once",
        without=("Retry with a later deadline",), code=1,
    )  # fmt: skip
    journal.check("@tool(timeout=" in dev.log.read_text(), "the author reads which time can be changed")


async def remove_tools(user: Newcomer, journal: Journal, dev: ChildProcess, client: McpClient) -> None:
    """Delete a file of tools: they leave every list, and a call says where they went."""
    (user.folder / "tools" / "faulty.py").unlink()
    is_told = await wait_for(dev, "no longer has faulty.label, faulty.measure, faulty.wait")
    journal.check(is_told, "a line says which tools are gone")
    listed = await user.run_typed("deputize tool list")
    journal.check_result(listed, "tools that are gone leave the list", "hello.greet", without=("faulty.",))
    tools = await client.list_tools()
    is_gone = "hello__greet" in tools and not any(name.startswith("faulty__") for name in tools)
    journal.check(is_gone, f"tools that are gone leave the lists of agents: {sorted(tools)}")
    called = await user.run_typed("deputize call faulty.label number=1")
    journal.check_result(
        called, "a call of a tool that is gone says where it was", "any more: it was in tools/faulty.py",
        without=("Restart the gateway",), code=1,
    )  # fmt: skip
