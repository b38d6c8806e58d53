"""What an agent's client reads: without a gateway, of a name that is wrong, of a refusal and of a file."""

from proofs.first_day.mcp_client import McpClient, connect
from proofs.first_day.newcomer import Journal, Newcomer

_SECONDS = 30.0


async def connect_before_start(user: Newcomer, journal: Journal) -> McpClient:
    """Start a client while no gateway runs."""
    client, started = await connect(user)
    journal.check_text(str(started), "without a gateway a client reads what to start", "deputize dev")
    answer = await client.call("hello__greet", name="Ana")
    journal.check_text(answer, "and so does a model that calls a tool", "deputize dev", "tools of this project")
    return client


async def find_gateway(user: Newcomer, journal: Journal, client: McpClient) -> McpClient:
    """See the tools of a gateway that was started later; a client whose connection is closed is started again."""
    is_told = await client.wait_for_change(0, _SECONDS)
    journal.check(is_told, "a client that was there first is told of the tools")
    if not client.is_open:
        client, _ = await connect(user)
    tools = await client.list_tools()
    journal.check("hello__greet" in tools, f"the client lists the tools of the project: {sorted(tools)}")
    required = tools.get("hello__forget", {}).get("inputSchema", {}).get("required", [])
    journal.check("idempotency_key" in required, f"a tool that needs a key requires it in its schema: {required}")
    unknown = await client.call("hello__gret", name="Ana")
    journal.check_text(
        unknown, "a wrong name is answered with one that the client lists", "did you mean hello__greet?",
        without=("hello.greet", "deputize tool list"),
    )  # fmt: skip
    return client


async def read_refusals(user: Newcomer, journal: Journal, client: McpClient) -> None:
    """An agent learns which rule refused it, and which file is missing, but not where rules are kept."""
    folder = user.folder.resolve() / "files"
    denied = await client.call("files__read_text_file", path=f"{folder}/closed/a.txt")
    journal.check_text(
        denied, "an agent reads why it is refused, and no file of rules", "files-in-the-open-folder",
        "Agents read files of the open folder only.", without=("policies/", ".cedar"),
    )  # fmt: skip
    missing = await client.call("files__read_text_file", path=f"{folder}/open/none.txt")
    journal.check_text(
        missing, "a missing file is named by the path that was sent", f"{folder}/open/none.txt", without=("[path]",)
    )
    outside = await client.call("files__list_directory", path="/etc")
    journal.check_text(
        outside, "a folder outside is named, and the one that may be read", "/etc not in", str(folder),
        without=("[path]",),
    )  # fmt: skip
