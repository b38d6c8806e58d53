"""How `deputize dev` shows the codes people decide with: on its own stdout, and nowhere else."""

import os
import stat
import sys

from deputize.core.plain import plain
from deputize.doors.cli.output import PAUSE, mark, printer
from deputize.govern.approvals.codes import Told

_LONGEST_NAME = 80


class CodesTold:
    """Keeps codes back until the gateway is ready, so that the first lines stay together."""

    def __init__(self) -> None:
        self._waiting: list[Told] | None = []
        self._said = False

    def __call__(self, told: Told) -> None:
        if self._waiting is not None:
            self._waiting.append(told)
        else:
            self._show(told)

    def ready(self) -> None:
        waiting, self._waiting = self._waiting or (), None
        for told in waiting:
            self._show(told)

    def _show(self, told: Told) -> None:
        if _stdout_is_a_file():
            # A file is read by whoever may read the folder, and stays.
            if not self._said:
                printer.warn("a call waits for a person; codes are shown in a terminal, and not written into a file")
                self._said = True
            return
        if printer.as_json:
            facts = {"ticket_id": told.ticket_id, "tenant": told.tenant, "tool": told.tool, "user": told.user}
            printer.json({"event": "ticket", **facts, "code": told.code})
            return
        tool, user = (plain(text, _LONGEST_NAME) for text in (told.tool.partition("@")[0], told.user))
        printer.line(f"{mark(PAUSE, sys.stdout)} ticket {told.ticket_id} {tool} for {user} · code {told.code}")


def _stdout_is_a_file() -> bool:
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False
