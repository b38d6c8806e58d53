"""Test the keys that answer a question of several pages, at a real pseudo-terminal."""

import os
import pty
import select
import sys

import pytest

PROGRAM = """
import asyncio
from deputize.interfaces.cli.local.edit_loop.edit_messages import EditQuestion
from deputize.interfaces.cli.local.edit_loop.terminal_keys import TerminalKeys

keys, question = TerminalKeys(), EditQuestion((f"line {number}" for number in range(1, 201)), "Press y.")
assert keys.begin()
assert question.show_page()
print("answer:", asyncio.run(keys.ask(question.show_page)))
"""


@pytest.mark.parametrize(
    ("keys", "answer", "last_line"), [("  y", "yes", 200), ("y", "no", 80), (" y", "no", 160), ("  n", "no", 200)]
)
def test_only_the_last_page_can_be_answered_with_yes(keys: str, answer: str, last_line: int) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
    shown = ""
    for key in [*keys, ""]:
        shown += _read_until(terminal, "⏸" if key else "answer:")
        os.write(terminal, key.encode())
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
    assert f"answer: {answer}" in shown
    assert (f"line {last_line}\r" in shown, f"line {last_line + 1}\r" in shown) == (True, False)


def _read_until(terminal: int, text: str) -> str:
    """Read what is shown up to the end of the line that has the text."""
    shown = b""
    while text.encode() not in shown or not shown.endswith(b"\n"):
        assert select.select([terminal], [], [], 30)[0], shown
        shown += os.read(terminal, 1)
    return shown.decode()
