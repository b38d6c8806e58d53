"""The screens: for each file its commands, those without a gateway and those that share one."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.cli.cli_process import BackgroundCommand, make_project
from tests.acceptance.cli.screens.transcript import render_transcript

FOLDER = Path(__file__).parent

_INCOMPLETE = '''from deputize import tool

PRICES = {"apple": 3}


@tool(effects="read")
def look_up(fruit: str) -> int:
    """Look up the price of a fruit."""
    return PRICES[fruit]


@tool(effects="write")
def change(fruit: str, price: int) -> int:
    """Change the price of a fruit."""
    PRICES[fruit] = price
    return price


@tool
def forget(fruit: str) -> None:
    del PRICES[fruit]
'''
_MISTAKES = '''from deputize import tool


@tool(effects="reads", timeot=3)
def look(fruit: str) -> int:
    """Look at a fruit."""
    return 1
'''
_WRONG_RULE = '@id("mine")\npermit (principal, action, resource == Tool::"hello.gret") when { context.nothing };\n'
_WRONG_CASE = (
    "cases:\n  - name: a note needs nobody\n    tool: hello.forget\n    arguments: {number: 1}\n    expect: allow\n"
)

HELP = {
    "help": ("--help",),
    "help-dev": ("dev --help",),
    "help-call": ("call --help",),
    "help-tool": ("tool --help",),
    "help-tool-check": ("tool check --help",),
    "help-approvals": ("approvals --help",),
    "help-policy": ("policy --help",),
    "help-servers": ("servers --help",),
}
OFFLINE = {
    "init": ("init shop", "init shop"),
    "wrong-commands": ("cal", "call", "call hello.greet --kee x", "token --minutes 0"),
    "without-a-project": ("dev", "token"),
}
PROJECT = {
    "without-a-gateway": ("call hello.greet name=Ana", "tool list", "approvals list"),
    "serve-without-settings": ("serve", "migrate"),
    "policy-check": ("policy check", "policy check wrong.cedar"),
    "policy-test": ("policy test", "policy test wrong.yaml"),
    "policy-explain": ("policy explain --tool hello.forget", "policy explain --tool hello.greet"),
    "doctor": ("doctor",),
}
TOOLS = {
    "tool-new": (
        "tool new stock.count",
        'tool new stock.count --effects read --description "Count a fruit."',
        "tool new stock.count --effects read --description again-and-again",
        "tool new Stock --effects read",
    ),
    "tool-check": ("tool check tools/hello.py", "tool check tools/prices.py", "tool check tools/mistakes.py"),
    "tool-check-fix": ("tool check --fix tools/prices.py",),
}
GATEWAY = {
    "call": ("call hello.greet name=Ana", "call hello.remember text=tea --key monday"),
    "call-with-mistakes": ("call hello.greet", "call hello.greet nam=Ana", "call hello.gret name=Ana"),
    "approval": ("call hello.forget number=1", "approvals show ID", "approvals approve ID"),
    "tool-list": ("tool list", "tool show hello.forget"),
    "dry-run": ("call hello.forget number=1 --dry-run",),
    # The last one: the tool stays off.
    "call-refused": ("switch off tool hello.greet", "call hello.greet name=Ana", "switch on tool hello.greet"),
}
ALL = (*HELP, *OFFLINE, *PROJECT, *TOOLS, *GATEWAY)


def render_screens() -> Iterator[tuple[str, str]]:
    """Render every screen, with one gateway for those that need one."""
    with _open_workspace() as workspace:
        for name, commands in (HELP | OFFLINE).items():
            yield name, render_transcript(commands, workspace)
        project = make_project(workspace / "fruits")
        (project / "wrong.cedar").write_text(_WRONG_RULE)
        (project / "wrong.yaml").write_text(_WRONG_CASE)
        for name, commands in PROJECT.items():
            yield name, render_transcript(commands, project)
        (project / "tools" / "prices.py").write_text(_INCOMPLETE)
        (project / "tools" / "mistakes.py").write_text(_MISTAKES)
        for name, commands in TOOLS.items():
            yield name, render_transcript(commands, project)
        running_project = make_project(workspace / "running")
        with BackgroundCommand("dev", folder=running_project) as dev:
            dev.wait_for_line("▶")
            for name, commands in GATEWAY.items():
                yield name, render_transcript(commands, running_project)


def render_help() -> Iterator[tuple[str, str]]:
    """Render the help alone, which takes no time."""
    with _open_workspace() as workspace:
        for name, commands in HELP.items():
            yield name, render_transcript(commands, workspace)


@contextmanager
def _open_workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="deputize-screens-") as name:
        folder = Path(name).resolve()
        # A database under another account has to pass through.
        folder.chmod(0o711)
        yield folder
