"""Print one line for each edit: what was loaded, refused or left, and why; and ask before authority changes."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from deputize.core.contract.contract import Contract
from deputize.core.display_text import to_display_text
from deputize.core.sensitive.text import redact_secrets
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.interfaces.cli.local.edit_loop.authority_changes import SettingChange
from deputize.interfaces.cli.render.file_changes import PagedLines, describe_differences, wrap_text
from deputize.interfaces.cli.render.output import PAUSE, printer, style_sign

_MAX_REASON_LENGTH = 400
HOW_TO_APPLY = "start deputize dev in a terminal to be asked, or with --accept-changes if you know all of it"


def print_loaded(file: str, contracts: Sequence[Contract]) -> None:
    # The version is not released: the next edit replaces it.
    names = [f"{each.full_name} {each.version}-dev" for each in contracts]
    printer.event("loaded", {"file": file, "tools": names}, f"{file} loaded: {', '.join(names) or 'no tools'}")


def print_removed(file: str, names: Sequence[str], added_names: Sequence[str]) -> None:
    if printer.as_json:
        printer.json({"event": "removed", "file": file, "tools": names, "added": added_names})
    place = f" It has {', '.join(added_names)} now." if added_names else ""
    printer.warn(
        f"{file} no longer has {', '.join(names)}: no list shows what is gone, and calls of it are refused.{place}"
    )


def print_authority_changes(changes: Mapping[str, Sequence[str]]) -> None:
    """Print a line for each tool that callers may do more with than before."""
    for name, reasons in changes.items():
        shown_reasons = [to_display_text(each, _MAX_REASON_LENGTH) for each in reasons]
        if printer.as_json:
            printer.json({"event": "authority", "tool": name, "reasons": shown_reasons})
        printer.warn(f"{name} has more authority than before: {'; '.join(shown_reasons)}")


def print_refused(what: str, reasons: Iterable[str], *, is_old_in_use: bool = True) -> None:
    shown_reasons = [to_display_text(each, _MAX_REASON_LENGTH) for each in reasons]
    if printer.as_json:
        printer.json({"event": "refused", "what": what, "reasons": shown_reasons, "old_in_use": is_old_in_use})
    first, rest = (shown_reasons or ["it is invalid"])[0], shown_reasons[1:]
    closing_sentence = " What was in use before stays in use." if is_old_in_use else ""
    printer.error(f"{what} was not loaded: {first}.{closing_sentence}".replace("..", "."))
    for reason in rest:
        printer.note(f"    {reason}")


def print_settings(changes: Sequence[SettingChange]) -> None:
    """Say that the settings in the file are those of the start again; how others differ, the question shows."""
    if not changes:
        printer.event("settings", {"changes": []}, "deputize.toml says again what this gateway was started with")
    elif printer.as_json:
        facts = [{"key": each.key, "old": each.old, "new": each.new} for each in changes]
        printer.json({"event": "settings", "changes": facts, "applied": False})


def _describe_settings(changes: Iterable[SettingChange]) -> Iterator[str]:
    for each in changes:
        yield from wrap_text(str(each))


class EditQuestion:
    """A question to the person at the terminal, asked on the last page of what would change."""

    def __init__(self, lines: Iterable[str], question: str) -> None:
        self._pages = PagedLines(lines)
        self._question = question

    def show_page(self, *, is_asked: bool = True) -> bool:
        """Show the next page, and tell whether there is another: only the last one asks for a y."""
        lines = self._pages.take_page()
        has_more = self._pages.has_more
        if printer.as_json:
            printer.json({"event": "question", "asked": is_asked, "changes": lines, "all_shown": not has_more})
        for line in lines:
            printer.line(f"  {line}")
        question = (
            "There is more. Press space to see it; you are asked after the last page. Any other key changes nothing."
            if has_more
            else self._question
        )
        if is_asked:
            printer.line(f"{style_sign(PAUSE, sys.stdout)} {question}")
        elif has_more:
            printer.line("  … and more.")
        return has_more


def build_settings_question(changes: Sequence[SettingChange], old: bytes, new: bytes) -> EditQuestion:
    """Ask whether to start with settings that changed: by fields, or as text if the old ones are unreadable."""
    old, new = (redact_secrets(each.decode()).encode() for each in (old, new))
    return EditQuestion(
        _describe_settings(changes) if changes else describe_differences([("deputize.toml", old, new)]),
        "deputize.toml changed since the last start. Press y to start with it, any other key to start with what was "
        "confirmed last.",
    )


def print_settings_left() -> None:
    printer.warn(f"deputize.toml changed, and the settings confirmed last are used: {HOW_TO_APPLY}.")


def print_files_taken(*, is_first: bool) -> None:
    """Say that settings, policies and tools are used as the files have them, without a question."""
    why = "first start" if is_first else "--accept-changes"
    printer.event(
        "files",
        {"first": is_first},
        f"{why}: deputize.toml, policies and tools are in use as they are now. Edited tools are used at once; when "
        "deputize.toml or policies change, this terminal asks you first",
    )


def print_restart(message: str, how: str = "restart deputize dev to apply") -> None:
    if printer.as_json:
        printer.json({"event": "restart_needed", "message": message})
    printer.warn(f"{message}: {how}.")


def print_not_watching(reason: str) -> None:
    if printer.as_json:
        printer.json({"event": "not_watching", "reason": reason})
    printer.warn(f"Edited files are not taken over, because {reason}. Restart deputize dev after each edit.")


def build_question(
    documents: Iterable[tuple[str, bytes | None, bytes | None]], reasons: Iterable[str], *, restarts: bool = False
) -> EditQuestion:
    """Ask whether to take over what changes authority, for these reasons."""
    lines = (line for reason in reasons for line in wrap_text(reason))
    what = "apply it and restart the gateway once its calls have ended" if restarts else "apply it"
    return EditQuestion(
        chain(lines, describe_differences(documents)),
        f"This changes what callers may do. Press y to {what}, any other key to keep what is active.",
    )


def print_not_asked() -> None:
    printer.warn(
        f"This changes what callers may do and was not taken over; what was confirmed last is used: {HOW_TO_APPLY}."
    )


def print_withdrawn() -> None:
    printer.event("withdrawn", {}, "The question is withdrawn: the files changed again.")


def print_left(*, is_answered: bool) -> None:
    if printer.as_json:
        printer.json({"event": "left", "answered": is_answered})
    printer.warn(
        "Not applied: what was active stays active. The file still has the change, and the next start of deputize dev "
        "asks again: undo it in the file if you do not want it."
        if is_answered
        else f"The terminal cannot answer, so nothing was taken over: {HOW_TO_APPLY}."
    )


def print_policies_taken(files: Sequence[PolicyFile]) -> None:
    paths = [each.path for each in files]
    printer.event("policies", {"files": paths}, f"policies active: {', '.join(paths)}")
