"""Define `deputize demo`: a shop with three agents, one careless and one hostile, and a tour of what happens to them.

The tour types ordinary commands and shows what they print, so that each can be typed again in the demo's folder.
"""

import os
import re
import signal
import subprocess
import sys
import webbrowser
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit, Json, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.local.demo_gateway import DemoGateway

_COMMAND_SECONDS = 60.0
# Seconds between two calls of the agents: a pace to watch, and one to fill the lists with.
_PAUSE, _HEADLESS_PAUSE = 1.5, 0.05
_ID = re.compile(r"\bcall ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
# Typed twice.
_ORDER = 'deputize call orders.place customer=7 item=lamp count=2 --key order-881 --token "$(cat support-bot.token)"'


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedCommand:
    """Command of the tour, and what shows that it did what the tour says."""

    line: str
    exit_code: int = 0
    shows: str
    # Where a person decides: what is typed if they say no.
    otherwise: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Station:
    """One thing to see. In the address of the console's page that shows it, {call} stands for the newest call."""

    name: str
    title: str
    story: str
    page: str
    commands: tuple[TypedCommand, ...]


TOUR = (
    Station(
        name="refusal",
        title="A refusal with its reason",
        story="scraper-bot acts for Mallory and wants all customers. Its token has the scope; a rule says no.",
        page="calls?tool=customers.export",
        commands=(
            TypedCommand(
                line='deputize call customers.export --token "$(cat scraper-bot.token)"',
                exit_code=1,
                shows="exports-are-for-people",
            ),
        ),
    ),
    Station(
        name="approval",
        title="An approval with its preview",
        story="cleanup-bot is careless: it deletes a customer with three invoices. You see them, and decide.",
        page="calls/{call}",
        commands=(
            TypedCommand(
                line='deputize call customers.delete number=8 --key cleanup-1 --token "$(cat cleanup-bot.token)"',
                exit_code=3,
                shows="Approval required",
            ),
            TypedCommand(line="deputize approvals show last", shows="delete invoices/of/8 (3)"),
            TypedCommand(
                line="deputize approvals approve last --code {code} --reason 'Bo asked for it' --wait",
                shows="succeeded",
                otherwise="deputize approvals deny last --code {code} --reason 'Bo is still a customer'",
            ),
        ),
    ),
    Station(
        name="retry",
        title="A retry that does nothing twice",
        story="support-bot lost the answer to an order and sends it again. The key is the same: nothing is repeated.",
        page="calls/{call}",
        commands=(
            TypedCommand(
                line=_ORDER,
                shows="key order-881",
            ),
            TypedCommand(
                line=_ORDER,
                shows="nothing was repeated",
            ),
        ),
    ),
    Station(
        name="undo",
        title="An undo",
        story="The order was a mistake. The journal knows what takes it back, and who wrote to it since: nobody.",
        page="calls/{call}",
        commands=(
            TypedCommand(line="deputize undo {call} --plan", shows="orders.cancel"),
            TypedCommand(line="deputize undo {call} --yes", shows="Undid 1 call"),
        ),
    ),
    Station(
        name="switch",
        title="A kill switch",
        story="Enough of scraper-bot. Every gateway refuses it before the command returns, reads included.",
        page="switches",
        commands=(
            TypedCommand(
                line="deputize switch off agent scraper-bot --reason 'it tries to export everybody'", shows="is off"
            ),
            TypedCommand(
                line='deputize call customers.show number=9 --token "$(cat scraper-bot.token)"',
                exit_code=1,
                shows="kill switch",
            ),
        ),
    ),
    Station(
        name="backtest",
        title="A policy change, backtested",
        story="Should agents ask before they order? The draft is tried on the calls that were made before it counts.",
        page="policies/backtest?file=drafts/orders-ask.cedar&text={draft}",
        commands=(
            TypedCommand(
                line="deputize policy backtest policies/*.cedar drafts/orders-ask.cedar --since 1h",
                shows="ask by orders-by-agents-ask",
            ),
        ),
    ),
)


def demo(
    headless: Annotated[
        bool, typer.Option("--headless", help="Take the tour without a browser and without waiting, then end.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the demo's gateway; 0 picks a free one.")] = 0,
    json: Json = False,
) -> None:
    """Show a gateway at work: a shop, three agents, and a tour of six stations. Nothing is left behind."""
    # Its client takes a fifth of a second to import, which other commands would pay for.
    from deputize.core.settings.urls import CALLS_PAGE_PATH
    from deputize.interfaces.cli.local.demo_gateway import keep_agents_busy, run_demo_gateway

    has_person = not headless and not json and sys.stdin.isatty()
    # As Ctrl-C does, SIGTERM ends the gateway and deletes the folder.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    surprises: list[str] = []
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        with printer.spinner("Starting a database and a gateway"):
            gateway = stack.enter_context(run_demo_gateway(port))
        link = str(gateway.events["ready"][-1].get("console", f"{gateway.url}/console"))
        printer.event("demo", {"folder": str(gateway.folder), "url": gateway.url, "console": link}, f"Shop: {link}")
        printer.line(f"  Its files, and where to type commands of your own: cd {gateway.folder}")
        with printer.spinner("Delegating to three agents"):
            tokens = create_tokens(gateway)
        stack.enter_context(keep_agents_busy(gateway.url, tokens, _PAUSE if has_person else _HEADLESS_PAUSE))
        if has_person:
            webbrowser.open(link)
        surprises.extend(take_tour(gateway, has_person=has_person))
        if has_person:
            printer.line("That was the tour. The agents go on: look around, and press Ctrl-C to end it all.")
            # Those of support-bot fail at the payment.
            checkouts = f"{gateway.url}{CALLS_PAGE_PATH}?tool=orders.checkout"
            printer.line(f"  Flows that fail and take back what they did: {checkouts}")
            gateway.process.wait()
    printer.event("stopped", {"surprises": surprises}, "Stopped. Nothing is left of the demo.")
    if surprises:
        raise CommandExit(EXIT_FAILED)


def create_tokens(gateway: "DemoGateway") -> dict[str, str]:
    """Delegate to each agent, and leave its token in the folder for the commands of the tour."""
    from deputize.interfaces.cli.local.demo_gateway import AGENTS

    tokens = {}
    for agent, (user, task, scope) in AGENTS.items():
        person_token = f'"$(deputize token --user {user} --scope {scope})"'
        result = _run_typed(gateway, f"deputize token exchange --agent {agent} --task '{task}' --token {person_token}")
        if result.returncode:
            raise ConfigError(f"{user} could not delegate to {agent}: {result.stderr}")
        file = os.open(gateway.folder / f"{agent}.token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "w", encoding="utf-8") as token_file:
            token_file.write(result.stdout)
        tokens[agent] = result.stdout.strip()
    return tokens


def take_tour(gateway: "DemoGateway", *, has_person: bool) -> list[str]:
    """Go from station to station; return the names of those where something else happened than was told."""
    surprises = []
    values = {"draft": quote((gateway.folder / "drafts" / "orders-ask.cedar").read_text(encoding="utf-8"), safe="")}
    for number, station in enumerate(TOUR, 1):
        printer.line(f"\n{number} of {len(TOUR)}  {station.title}\n  {station.story}\n")
        is_as_told = True
        for command in station.commands:
            if command.otherwise and has_person and not typer.confirm("Do you approve?", default=False):
                command = TypedCommand(line=command.otherwise, shows="Denied: call")
            is_as_told &= _show(gateway, command, values)
        if not is_as_told:
            surprises.append(station.name)
        gateway.show_station(
            {
                "place": f"{number} of {len(TOUR)}",
                "title": station.title,
                "story": station.story,
                "page": station.page.format(**values),
            }
        )
        if printer.as_json:
            printer.json({"event": "station", "name": station.name, "title": station.title, "as_told": is_as_told})
        if has_person:
            typer.prompt("Press Enter to go on", default="", show_default=False, prompt_suffix=" ")
    gateway.show_station(None)
    return surprises


def _show(gateway: "DemoGateway", command: TypedCommand, values: dict[str, str]) -> bool:
    """Type a command, print what it prints, and tell whether that is what the tour promised."""
    if "{code}" in command.line:
        values["code"] = str(gateway.wait_for("approval_requested")["code"])
    line = command.line.format(**values)
    printer.line(f"$ {line}")
    result = _run_typed(gateway, line)
    text = result.stdout + result.stderr
    for each in text.splitlines():
        printer.line(f"  {each}")
    if found := _ID.search(text):
        values["call"] = found[1]
    return result.returncode == command.exit_code and command.shows in text


def _run_typed(gateway: "DemoGateway", line: str) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=gateway.folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
