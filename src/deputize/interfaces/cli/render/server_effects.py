"""Show what the tools of a server do, and ask a person what each does."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.output import exit_with_error, format_count, printer

EFFECTS = ("read", "write", "destructive")
_SOURCES = {
    "settings": "deputize.toml",
    "confirmed": "confirmed",
    "unconfirmed": "not confirmed",
    "protocol": "MCP",
}
_SKIP = "skip"


def list_unconfirmed_tools(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """List the tools that no one has described yet."""
    return [each for each in tools if each["source"] == "unconfirmed"]


def show_effects(server: str, tools: Sequence[Mapping[str, Any]]) -> None:
    """Print each tool with its effects, who says so, and what is proposed."""
    rows = [
        (
            each["display_name"], each["effects"] or "", _SOURCES[each["source"]],
            (each["proposed_effects"] or "") if each["source"] == "unconfirmed" else "",
            (each["why"] or "") if each["source"] == "unconfirmed" else "",
            ", ".join(each["facts"]),
        )
        for each in tools
    ]  # fmt: skip
    printer.table(("tool", "effects", "by", "proposed", "because", "facts"), rows)
    open_tools = list_unconfirmed_tools(tools)
    if not open_tools:
        printer.line("Every tool is described.")
        return
    printer.warn(f"{format_count(len(open_tools), 'tool')} not confirmed: each counts as destructive until it is")
    example = open_tools[0]["name"]
    tool = example if example.replace("_", "a").replace("-", "a").isalnum() and example.isascii() else "TOOL"
    printer.note(f"  Accept the proposals: deputize servers effects {server} --accept")
    printer.note(f"  Say it yourself: deputize servers effects {server} --set {tool}=read")


def ask_effects(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Ask at the terminal what unconfirmed tools do; return the effects by the server's names, empty for nothing."""
    open_tools = list_unconfirmed_tools(tools)
    answer = _ask("Confirm these proposals? yes, edit one by one, or no", ("yes", "edit", "no"), "no")
    if answer == "no":
        return {}
    if answer == "yes":
        return {each["name"]: each["proposed_effects"] for each in open_tools}
    choices: dict[str, str] = {}
    for each in open_tools:
        question = f"{each['display_name']}: {', '.join(EFFECTS)} or {_SKIP}"
        word = _ask(question, (*EFFECTS, _SKIP), each["proposed_effects"])
        if word != _SKIP:
            choices[each["name"]] = word
    return choices


def parse_choices(tools: Sequence[Mapping[str, Any]], words: Sequence[str], *, accept: bool) -> dict[str, str]:
    """Read the choices of `--set TOOL=EFFECTS` and `--accept`; exit if one names nothing."""
    tools_by_name = {each["name"]: each for each in tools if each["source"] != "protocol"}
    choices = {each["name"]: each["proposed_effects"] for each in list_unconfirmed_tools(tools)} if accept else {}
    for word in words:
        name, _, effects = word.rpartition("=")
        if name not in tools_by_name:
            tool_names = ", ".join(each["display_name"] for each in tools_by_name.values()) or "none"
            exit_with_error(f"--set {to_display_text(word, 120)}: write TOOL=EFFECTS; its tools are {tool_names}.")
        if effects not in EFFECTS:
            exit_with_error(f"--set {to_display_text(word, 120)}: the effects are {', '.join(EFFECTS)}.")
        choices[name] = effects
    return choices


def _ask(question: str, answers: Sequence[str], default: str) -> str:
    """Ask until the answer is one of these words, or the beginning of exactly one."""
    while True:
        reply = str(typer.prompt(question, default=default, err=True)).strip().lower()
        matches = [each for each in answers if each == reply] or [each for each in answers if each.startswith(reply)]
        if len(matches) == 1:
            return matches[0]
        printer.warn(f"Answer {', '.join(answers[:-1])} or {answers[-1]}.")
