"""Print one line for each edit: what was loaded, refused or left, and why; and ask before authority changes."""

import sys
from collections.abc import Iterable, Sequence

from deputize.core.contract.contract import Contract
from deputize.core.display_text import to_display_text
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.interfaces.cli.project.edit_loop.authority_changes import SettingChange
from deputize.interfaces.cli.render.file_changes import describe_differences
from deputize.interfaces.cli.render.output import PAUSE, format_count, printer, style_sign

_MAX_REASON_LENGTH = 400
_HOW_TO_APPLY = "start deputize dev in a terminal to be asked, or with --accept-changes if you know all of it"


def print_loaded(file: str, contracts: Sequence[Contract]) -> None:
    # The version is not released: the next edit replaces it.
    names = [f"{each.full_name} {each.version}-dev" for each in contracts]
    printer.event("loaded", {"file": file, "tools": names}, f"{file} loaded: {', '.join(names) or 'no tools'}")


def print_removed(file: str, contracts: Sequence[Contract]) -> None:
    names = [each.full_name for each in contracts]
    if printer.as_json:
        printer.json({"event": "removed", "file": file, "tools": names})
    printer.warn(f"{file} has no tools any more; calls of these are refused: {', '.join(names)}")


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
    if not changes:
        printer.event("settings", {"changes": []}, "deputize.toml says again what this gateway was started with")
        return
    facts = [{"key": each.key, "old": each.old, "new": each.new} for each in changes]
    if printer.as_json:
        printer.json({"event": "settings", "changes": facts, "applied": False})
    _print_changes(changes)
    printer.warn(f"{format_count(len(changes), 'setting')} changed in deputize.toml: restart deputize dev to apply.")


def _print_changes(changes: Sequence[SettingChange]) -> None:
    for each in changes:
        printer.line(f"  {each.key}: {each.old} → {each.new}")


def print_settings_question(changes: Sequence[SettingChange], *, is_asked: bool) -> None:
    """Show which settings changed since they were confirmed, and ask; without a terminal, say what is used."""
    if printer.as_json:
        facts = [{"key": each.key, "old": each.old, "new": each.new} for each in changes]
        printer.json({"event": "settings", "changes": facts, "applied": False, "asked": is_asked})
    _print_changes(changes)
    if not changes:
        printer.line("  deputize.toml changed, and this release cannot read what was confirmed before.")
    if is_asked:
        printer.line(
            f"{style_sign(PAUSE, sys.stdout)} deputize.toml changed since the last start. Press y to start with it, "
            "any other key to start with what was confirmed last."
        )
    elif changes:
        printer.warn(f"deputize.toml changed, and the settings confirmed last are used: {_HOW_TO_APPLY}.")


def print_files_taken(*, is_first: bool) -> None:
    """Say that settings, policies and tools are used as the files have them, without a question."""
    why = "first start" if is_first else "--accept-changes"
    printer.event(
        "files",
        {"first": is_first},
        f"{why}: settings, policies and tools are taken as they are now; later changes of authority wait for your key",
    )


def print_restart(message: str) -> None:
    if printer.as_json:
        printer.json({"event": "restart_needed", "message": message})
    printer.warn(f"{message}: restart deputize dev to apply.")


def print_not_watching(reason: str) -> None:
    if printer.as_json:
        printer.json({"event": "not_watching", "reason": reason})
    printer.warn(f"Edited files are not taken over, because {reason}. Restart deputize dev after each edit.")


def print_question(
    documents: Iterable[tuple[str, bytes | None, bytes | None]], reasons: Sequence[str], *, is_asked: bool
) -> None:
    """Show what would change, and ask; without a terminal, say that nothing is taken over."""
    difference = describe_differences(documents)
    if printer.as_json:
        facts = {"changes": difference.lines, "all_shown": difference.is_complete, "reasons": reasons}
        printer.json({"event": "question", "asked": is_asked, **facts})
    for line in difference.lines:
        printer.line(f"  {line}")
    if not difference.is_complete:
        printer.line("  … and more, which does not fit here: take it over only if you know all of it.")
    for reason in reasons:
        printer.line(f"  {to_display_text(reason, _MAX_REASON_LENGTH)}")
    if is_asked:
        printer.line(
            f"{style_sign(PAUSE, sys.stdout)} This changes what callers may do. Press y to apply it, any other key to "
            "keep what is active."
        )
    else:
        printer.warn(
            "This changes what callers may do and was not taken over; what was confirmed last is used: "
            f"{_HOW_TO_APPLY}."
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
        else f"The terminal cannot answer, so nothing was taken over: {_HOW_TO_APPLY}."
    )


def print_policies_taken(files: Sequence[PolicyFile]) -> None:
    paths = [each.path for each in files]
    printer.event("policies", {"files": paths}, f"policies active: {', '.join(paths)}")
