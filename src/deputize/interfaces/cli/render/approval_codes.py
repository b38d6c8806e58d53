"""Print the codes of `deputize dev` that people approve and confirm with, on its own terminal and nowhere else."""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.file_changes import describe_differences
from deputize.interfaces.cli.render.output import PAUSE, printer, style_sign

_MAX_NAME_LENGTH = 80
_MAX_SUBJECT_LENGTH = 400
# What a person can scroll back to and read; the code of a longer act is not shown.
_MAX_CHANGED_LINES = 400


class ApprovalCodeNotice(Protocol):
    """Code that decides one approval request, as the gateway hands it over."""

    @property
    def approval_id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def tool(self) -> str: ...

    @property
    def user(self) -> str: ...

    @property
    def code(self) -> str: ...


class DocumentChangeNotice(Protocol):
    """Document that an administrative act changes."""

    @property
    def name(self) -> str: ...

    @property
    def old(self) -> str | None: ...

    @property
    def new(self) -> str | None: ...


class ConfirmationNotice(Protocol):
    """Code that confirms one administrative act, as the gateway hands it over."""

    @property
    def confirmation_id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def caller(self) -> str: ...

    @property
    def command(self) -> str: ...

    @property
    def subject(self) -> str: ...

    @property
    def code(self) -> str: ...

    @property
    def changes(self) -> Sequence[DocumentChangeNotice]: ...


class ApprovalCodePrinter:
    """Printer that keeps codes back until `flush`, so that the lines of the start stay together."""

    def __init__(self) -> None:
        self._backlog: list[ApprovalCodeNotice] | None = []
        self._has_warned = False

    def __call__(self, notice: ApprovalCodeNotice) -> None:
        if self._backlog is not None:
            self._backlog.append(notice)
        else:
            self._print_code(notice)

    def flush(self) -> None:
        """Print the codes kept back, and from now on each one at once."""
        backlog, self._backlog = self._backlog or (), None
        for notice in backlog:
            self._print_code(notice)

    def show_confirmation(self, notice: ConfirmationNotice) -> None:
        """Print the code of an administrative act; none is requested before the gateway serves."""
        if not self._can_print_code("An administrative act waits for confirmation"):
            return
        facts = {
            "confirmation_id": notice.confirmation_id, "tenant": notice.tenant, "user": notice.caller,
            "command": notice.command, "subject": notice.subject,
        }  # fmt: skip
        lines = list(islice(_describe_changes(notice), _MAX_CHANGED_LINES + 1))
        is_complete = len(lines) <= _MAX_CHANGED_LINES
        if printer.as_json:
            changes = {"changes": lines[:_MAX_CHANGED_LINES], "all_shown": is_complete}
            printer.json(
                {"event": "confirmation", **facts, **changes, **({"code": notice.code} if is_complete else {})}
            )
            return
        command, user = (to_display_text(text, _MAX_NAME_LENGTH) for text in (notice.command, notice.caller))
        subject = to_display_text(notice.subject, _MAX_SUBJECT_LENGTH)
        # Before the code, so that it is read first.
        for line in lines[:_MAX_CHANGED_LINES]:
            printer.line(f"  {line}")
        if not is_complete:
            printer.line(
                f"{style_sign(PAUSE, sys.stdout)} {command} {subject} for {user} cannot be confirmed here: it changes "
                f"more than the {_MAX_CHANGED_LINES} lines shown, so it has no code. If you want it, change the "
                "project's files instead, which deputize dev shows page by page, or send it in smaller parts."
            )
            return
        printer.line(
            f"{style_sign(PAUSE, sys.stdout)} confirm {command} {subject} for {user}, if you asked for it · "
            f"code {notice.code}"
        )

    def _print_code(self, notice: ApprovalCodeNotice) -> None:
        if not self._can_print_code("A call waits for approval"):
            return
        if printer.as_json:
            facts = {
                "approval_id": notice.approval_id,
                "tenant": notice.tenant,
                "tool": notice.tool,
                "user": notice.user,
            }
            printer.json({"event": "approval_requested", **facts, "code": notice.code})
            return
        tool, user = (to_display_text(text, _MAX_NAME_LENGTH) for text in (notice.tool.partition("@")[0], notice.user))
        printer.line(
            f"{style_sign(PAUSE, sys.stdout)} approval request {notice.approval_id}: {tool} for {user} · "
            f"code {notice.code}"
        )

    def _can_print_code(self, reason: str) -> bool:
        """Tell whether codes go to a terminal or a pipe. A file stays, and all who can read the folder can read it."""
        if not _is_stdout_file():
            return True
        if not self._has_warned:
            printer.warn(
                f"{reason}, but its code is not written to a file: start deputize dev in a terminal to see codes."
            )
            self._has_warned = True
        return False


def _describe_changes(notice: ConfirmationNotice) -> Iterator[str]:
    return describe_differences((each.name, _encode_text(each.old), _encode_text(each.new)) for each in notice.changes)


def _encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _is_stdout_file() -> bool:
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False
