"""What who runs a gateway does with it: stop an agent, read why a call failed, and take back what was done."""

import re
from typing import Final

from proofs.first_day.console import Console
from proofs.first_day.newcomer import Journal, Newcomer, find_call_id, read_output
from proofs.kit.child_process import ChildProcess, CommandResult

_LOOKS: Final = 8
_FAILING: Final = '''from deputize import tool


@tool(effects="read")
def find(shelf: int) -> str:
    """Look at a shelf that is empty."""
    raise RuntimeError(f"the shelf {shelf} is empty today")
'''
_WAITING: Final = re.compile(r"deputize approvals show ([0-9a-f-]{36})")
FAILING_FILE: Final = "failing.py"


def write_failing_tool(user: Newcomer) -> None:
    """Write it before the start: what its call shows does not depend on how edits are taken over."""
    (user.folder / "tools" / FAILING_FILE).write_text(_FAILING)


async def read_calls(user: Newcomer, journal: Journal, console: Console) -> None:
    """Fail, and succeed, and read both in the console."""
    failed = await user.run_typed("deputize call failing.find shelf=5")
    page = await console.load(f"/calls/{find_call_id(failed)}")
    journal.check_text(page, "the page of a failed read says why it failed", "the shelf 5 is empty today")
    journal.check_text(page, "an error code leads to what it means", "/console/errors/E3401")
    explained = await console.read("/errors/E3401")
    journal.check_text(explained, "and that page says what to do", "E3401", "The tool failed")
    written = await user.run_typed("deputize call hello.remember text=oranges")
    page = await console.read(f"/calls/{find_call_id(written)}")
    journal.check_text(page, "the page of a write says what came back", "What came back", "oranges")
    home = await console.read("")
    journal.check_text(
        home, "home counts failures by what they are", "Failures of tools and services", without=("Errors",)
    )
    journal.check(await console.load("/"), "/console/ leads home")
    before = (await console.read("/audit")).count("search_audit")
    for _ in range(_LOOKS):
        await console.load("/calls")
    entries = (await console.read("/audit")).count("search_audit") - before
    # Two for the two pages, and as many again if the minute ended meanwhile.
    journal.check(entries <= 4 < _LOOKS, f"looking {_LOOKS} times does not fill the audit: {entries} entries")


async def switch_agents(user: Newcomer, journal: Journal, console: Console) -> None:
    """Switch an agent off by a wrong name, then by its own; everybody sees which is off, and why."""
    call = 'deputize call hello.greet name=Ana --token "$(deputize token --agent support-bot)"'
    await user.run_typed(call)
    mistyped = await user.run_typed("deputize switch off agent suport-bot")
    journal.check_result(
        mistyped,
        "a kill switch refuses a name that no agent has",
        "support-bot",
        without=("suport-bot is off",),
        code=1,
    )
    await user.run_typed("deputize switch off agent support-bot --reason 'it asks for too much'")
    listed = await user.run_typed("deputize agents")
    journal.check_result(listed, "the list of agents says which is off", "off, by developer: it asks for too much")
    page = await console.read("/agents")
    journal.check_text(
        page, "the page of the agents says which is off, by whom and why", "switched off by developer",
        "it asks for too much",
    )  # fmt: skip
    refused = await user.run_typed(call)
    page = await console.read(f"/calls/{find_call_id(refused)}")
    journal.check_text(page, "the page of a call that a switch refused has its reason", "it asks for too much")
    found = await console.read("/search?q=support-bot")
    journal.check_text(found, "the search finds the calls of an agent", "Calls of an agent of this name")


async def undo_calls(user: Newcomer, journal: Journal, dev: ChildProcess, console: Console) -> None:
    """Plan an undo, lack what it needs, and ask for it."""
    first = find_call_id(await user.run_typed("deputize call hello.remember text=pears"))
    second = find_call_id(await user.run_typed("deputize call hello.remember text=plums"))
    planned = await user.run_typed("deputize undo last --plan")
    journal.check_result(planned, "undo last means the newest call", "hello.forget", second)
    unscoped = await _undo_with(user, first, "notes:write")
    journal.check_result(
        unscoped, "an undo says first which scope is missing, and how to get it", "--scope deputize:undo", code=1
    )
    powerless = await _undo_with(user, first, "deputize:undo")
    journal.check(powerless.code == 1, f"an undo that undid nothing exits with 1: {read_output(powerless)[-600:]!r}")
    for each in (first, second):
        waiting = await user.run_typed(f"deputize undo {each} --yes")
        journal.check_result(waiting, "an undo that needs a person exits with 3", "waits for approval", code=3)
    rows = await console.read("/calls?tool=hello.forget")
    journal.check_text(rows, "dry runs of an undo are called so", "◌ dry run", without=("✓ succeeded",))
    lines = [each for each in dev.log.read_text().splitlines() if "· hello.forget ·" in each]
    is_told = any("dry run" in each for each in lines) and not any("succeeded" in each for each in lines)
    journal.check(is_told, f"the terminal calls dry runs so: {lines[-3:]}")
    requests = await console.read("/approvals")
    journal.check_text(requests, "two requests of one tool can be told apart", "number=")
    found = _WAITING.search(read_output(waiting))
    page = await console.read(f"/calls/{found[1] if found else ''}")
    journal.check_text(page, "the page of a call that waits shows its arguments", "With what arguments", "number")


async def revoke_delegations(user: Newcomer, journal: Journal) -> None:
    """Delegate to two agents, revoke one, then the person: one delegation is left to end."""
    lines = [
        'token="$(deputize token --user lea --minutes 30)"',
        *(f'deputize token exchange --agent {each} --token "$token"' for each in ("first-bot", "second-bot")),
        "deputize revoke agent first-bot --yes",
        "deputize revoke user lea --yes",
    ]
    revoked = await user.run_typed(" && ".join(lines))
    journal.check_text(
        read_output(revoked), "a revocation counts the delegations that it ended", "1 active delegation ended with it",
        without=("2 active delegations",),
    )  # fmt: skip


async def _undo_with(user: Newcomer, call_id: str, scope: str) -> CommandResult:
    return await user.run_typed(f'deputize undo {call_id} --yes --token "$(deputize token --scope {scope})"')
