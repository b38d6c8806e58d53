"""Define `deputize dev --user`: run the development gateway as another user than the project's owner.

An agent that has the owner's account can then read neither the gateway's keys, database and memory, nor change what it
runs: the gateway works in a copy of the project, which is replaced only after a person confirmed the difference in the
terminal. Root's rights are given up before anything of the project is loaded.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from deputize.core.clock import Clock
from deputize.interfaces.cli.commands.service.dev import run_development
from deputize.interfaces.cli.local.dev_environment import hold_dev_lock
from deputize.interfaces.cli.local.process_protection import hide_process
from deputize.interfaces.cli.local.project_file import STATE_FOLDER, load_settings
from deputize.interfaces.cli.local.project_gateway import OpenGateway
from deputize.interfaces.cli.local.separate_user.project_snapshot import Digests, FileChange, Snapshot, compare_files
from deputize.interfaces.cli.local.separate_user.protected_folder import CLIENT_FOLDER, GATEWAY_FOLDER
from deputize.interfaces.cli.local.separate_user.terminal_code import create_code, is_same_code
from deputize.interfaces.cli.local.separate_user.user_account import (
    become_user,
    create_protected_folder,
    find_gateway_account,
    find_project_owner,
    read_project,
    require_protected_program,
    require_protected_settings,
    require_separation,
)
from deputize.interfaces.cli.local.separate_user.working_copy import WorkingCopy
from deputize.interfaces.cli.render.file_changes import PagedLines, describe_differences
from deputize.interfaces.cli.render.output import PAUSE, format_count, printer, style_sign


def run_development_as(open_gateway: OpenGateway, user: str, port: int | None, *, is_quiet: bool = False) -> None:
    """Copy the project with its owner's rights, become the user, confirm what changed, and run the gateway."""
    project = Path.cwd()
    account = find_gateway_account(user)
    owner = find_project_owner(project)
    require_separation(account, owner, project)
    require_protected_program(account, owner)
    snapshot = read_project(owner)
    folder = create_protected_folder(project, account, owner)
    become_user(account)
    hide_process()
    with hold_dev_lock(folder / GATEWAY_FOLDER):
        copy = WorkingCopy(folder / GATEWAY_FOLDER)
        update_copy(copy, snapshot, project)
        os.chdir(copy.files)
        settings = load_settings().model_copy(update={"folder": copy.files / STATE_FOLDER})
        require_protected_settings(settings, owner)
        printer.event(
            "user",
            {"user": user, "owner": owner.name, "folder": str(folder)},
            f"running as {user}; what {owner.name} cannot read is in {folder}",
        )
        run_development(open_gateway, settings, port, client_folder=folder / CLIENT_FOLDER, is_quiet=is_quiet)


def update_copy(copy: WorkingCopy, snapshot: Snapshot, project: Path) -> None:
    """Take over the project's files: at first as they are, later only those that a person confirms."""
    copy.recover()
    digests = copy.load_digests()
    changes = compare_files(digests or {}, snapshot)
    if digests is not None and not changes:
        return
    copy.stage(snapshot)
    if digests is None:
        copy.confirm()
        message = f"first start for {project}: {format_count(len(snapshot), 'file')} taken as they are now"
        printer.event("files", {"taken": len(snapshot), "first": True}, message)
    elif _confirm_changes(copy, digests, changes, snapshot):
        copy.confirm()
        printer.event("files", {"taken": len(changes), "first": False}, f"{format_count(len(changes), 'change')} taken")
    else:
        copy.discard()
        if printer.as_json:
            printer.json({"event": "files", "taken": 0, "ignored": [change.path for change in changes]})
        printer.warn(
            f"{format_count(len(changes), 'change')} ignored: the gateway runs the files that were confirmed before. "
            "Start it again in a terminal to confirm."
        )


def _confirm_changes(copy: WorkingCopy, digests: Digests, changes: Sequence[FileChange], snapshot: Snapshot) -> bool:
    """Show what changed, and ask for a code that only this terminal shows; without a terminal the answer is no."""
    printer.warn(f"{format_count(len(changes), 'file')} of the project changed since you confirmed them:")
    pages = PagedLines(describe_differences(_list_documents(copy, digests, changes, snapshot)))
    can_ask = not printer.as_json and sys.stdin.isatty() and sys.stderr.isatty()
    _print_page(pages)
    while can_ask and pages.has_more:
        printer.note(f"{style_sign(PAUSE, sys.stderr)} There is more; the code is on the last page.")
        answer = typer.prompt(
            "Enter for the next page, n to run the confirmed files", default="", show_default=False, err=True
        )
        if answer:
            return False
        _print_page(pages)
    if not can_ask:
        return False
    code = create_code(Clock())
    printer.note(f"{style_sign(PAUSE, sys.stderr)} To run these files, type the code {code}")
    answer = typer.prompt("Code, or Enter to run the confirmed files", default="", show_default=False, err=True)
    return is_same_code(str(answer), code)


def _print_page(pages: PagedLines) -> None:
    for line in pages.take_page():
        printer.note(f"  {line}")


def _list_documents(
    copy: WorkingCopy, digests: Digests, changes: Sequence[FileChange], snapshot: Snapshot
) -> Iterator[tuple[str, bytes | None, bytes | None]]:
    for change in changes:
        old, new = copy.read_confirmed(change.path, digests.get(change.path, "")), snapshot.get(change.path)
        is_new_right = new is not None and new.is_executable and (old is None or not old.is_executable)
        yield (
            f"{change.path}, now executable" if is_new_right else change.path,
            # What a tool wrote into its copy was never confirmed: all of the new file is shown.
            None if change.kind == "added" else b"" if old is None else old.content,
            None if new is None else new.content,
        )
