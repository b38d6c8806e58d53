"""The first two stations of `deputize demo`, at a terminal."""

from collections.abc import Mapping
from pathlib import Path

from proofs.first_day.newcomer import Journal, Newcomer
from proofs.kit.dev_terminal import DevTerminal

_MARK = "cd "


async def take_tour(user: Newcomer, journal: Journal) -> None:
    """Go to the approval, and say no: the tour does what its reader decided."""
    terminal = DevTerminal()
    user.sandbox.add_cleanup(terminal.stop)
    variables: Mapping[str, str] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(user.home), "BROWSER": "true"}
    await terminal.start(
        user.bin_folder / "deputize", user.home, variables, arguments=["demo"], ready="exports-are-for-people"
    )
    folder = Path(terminal.text.partition(_MARK)[2].splitlines()[0].strip())
    modes = {each.name: each.stat().st_mode & 0o777 for each in folder.glob("*.token")}
    journal.check(modes and set(modes.values()) == {0o600}, f"tokens of the demo are for their owner: {modes}")
    try:
        terminal.press_key("\r")
        await terminal.wait_for("Do you approve?", timeout=30.0)
        terminal.press_key("n\r")
        await terminal.wait_for("Denied: call", timeout=30.0)
        is_asked = True
    except TimeoutError:
        is_asked = False
    journal.check(is_asked, f"the reader of the tour decides at the approval: {terminal.text[-600:]!r}")
    await terminal.stop()
    journal.check(not folder.exists(), "nothing is left of the demo once it has ended")
