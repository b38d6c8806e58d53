"""Assemble `deputize observe`."""

from pathlib import Path
from typing import Any

import typer

from deputize.interfaces.cli.commands.observe.enforce import enforce
from deputize.interfaces.cli.commands.observe.report import report
from deputize.interfaces.cli.commands.observe.start import start
from deputize.interfaces.cli.render.help import HELP_OPTIONS, HelpGroup


class ObserveGroup(HelpGroup):
    """A group in which a file or an option in place of a command belongs to `start`: `deputize observe .mcp.json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and self._begins_start(args[0]):
            args = ["start", *args]
        return super().parse_args(ctx, args)

    def _begins_start(self, word: str) -> bool:
        """Tell a file from a mistyped command: it is there, or has the form of a path."""
        if word in self.commands or word in HELP_OPTIONS:
            return False
        return word.startswith("-") or "." in word or "/" in word or Path(word).exists()


group = typer.Typer(no_args_is_help=True, help="Record what agents do, report it, and begin to enforce policies.")
group.command(epilog="Example: deputize observe start .mcp.json petstore.yaml")(start)
group.command(epilog="Example: deputize observe report --since 7d --html report.html")(report)
group.command(epilog="Example: deputize observe enforce observed.cedar")(enforce)
