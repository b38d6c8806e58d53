"""Render help as plain text: whole sentences, brackets as they are written, no type for a flag, and the exit codes.

Plain text needs no library for terminals, so that help is fast.
"""

import re
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from deputize.interfaces.cli.render.output import EXIT_CODES

_TYPE = re.compile(r"<(?:list\[)?([\w|-]+)(?: range)?\]?>")
_TYPE_NAMES = {"int": "NUMBER", "float": "NUMBER", "Path": "FILE"}
_EXIT_CODES_TITLE = "Exit codes"
HELP_OPTIONS = ("-h", "--help")
# Longer than any sentence: commands are listed with their whole first sentence.
_NO_LIMIT = 10_000


class HelpCommand(TyperCommand):
    """A command whose help ends with its exit codes and an example that can be copied."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        # Some commands explain their own.
        if f"{_EXIT_CODES_TITLE}:" not in (self.help or ""):
            codes = ", ".join(f"{code} {meaning}" for code, meaning in list(EXIT_CODES.items())[:3])
            formatter.write_paragraph()
            formatter.write_text(f"{_EXIT_CODES_TITLE}: {codes}.")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_epilog(self.epilog, formatter)


class HelpGroup(TyperGroup):
    """A group of commands whose help lists each of them with its whole first sentence."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)
        if ctx.parent is None:
            with formatter.section(_EXIT_CODES_TITLE):
                formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: command for name, command in self.commands.items() if not command.hidden}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_NO_LIMIT)) for name, each in commands.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_epilog(self.epilog, formatter)


def use_plain_help(app: typer.Typer) -> None:
    """Let every command and group of an application, at any depth, print plain help."""
    app.info.cls = HelpGroup
    app.rich_markup_mode = None
    for command in app.registered_commands:
        command.cls = HelpCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            # A group that parses its words differently says so itself.
            if not (isinstance(group.cls, type) and issubclass(group.cls, HelpGroup)):
                group.cls = HelpGroup
            use_plain_help(group.typer_instance)


def find_help(command: Any, words: Sequence[str]) -> str | None:
    """Return the help that `tool check --help` asks for; None if the words are anything but commands and `--help`.

    Parsing the words first would load the library that checks values, which takes longer than all the rest.
    """
    if not words or words[-1] not in HELP_OPTIONS:
        return None
    context = command.context_class(command, info_name=command.name, **command.context_settings)
    for word in words[:-1]:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return None
        context = command.context_class(command, info_name=word, parent=context, **command.context_settings)
    return str(command.get_help(context))


def _write_parameters(command: Any, context: Any, formatter: Any) -> None:
    records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            name, text = record
            is_argument = parameter.param_type_name == "argument"
            name = _TYPE.sub("" if is_argument else _name_type, name).rstrip()
            records[parameter.param_type_name].append((name, text))
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        if records[kind]:
            with formatter.section(title):
                formatter.write_dl(records[kind])


def _name_type(match: re.Match[str]) -> str:
    """Name a type as in the reference; show choices as they are."""
    return match[1] if "|" in match[1] else _TYPE_NAMES.get(match[1], "TEXT")


def _write_epilog(text: str | None, formatter: Any) -> None:
    """Write the example on one line, so that it can be copied."""
    if text:
        formatter.write_paragraph()
        formatter.write(f"{text}\n")
