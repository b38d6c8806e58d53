"""Run a shop with three agents for `deputize demo`: a folder, `deputize dev` in it, and calls that never end.

Everything is thrown away with the folder. Approval codes are read from what the gateway prints.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from deputize.client import DeputizeError, SyncClient
from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.project_file import STATE_FOLDER, TOUR_FILE

_SHOP = Path(__file__).parent / "demo_shop"
_DEFAULT_POLICIES = Path(__file__).parents[3] / "govern" / "policy" / "defaults" / "default.cedar"
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_CHECKOUT_SECONDS = 5.0
_MAX_OUTPUT_LINES = 20
# Each agent, the person who delegates to it, the task, and the scope.
AGENTS = {
    "support-bot": ("eva", "answer customers", "orders:write"),
    "cleanup-bot": ("ben", "tidy up old customers", "customers:delete"),
    "scraper-bot": ("mallory", "prepare a mailing", "customers:export"),
}


@dataclass(kw_only=True, slots=True)
class DemoGateway:
    """Gateway of the demo, in a process of its own."""

    folder: Path
    process: subprocess.Popen[str]
    # Its events by name, the newest last, and the last lines that are no events.
    events: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return str(self.events["ready"][-1]["url"])

    def show_station(self, station: Mapping[str, str] | None) -> None:
        """Show a station of the tour on the console's pages, or no longer any."""
        file = self.folder / STATE_FOLDER / TOUR_FILE
        if station is None:
            file.unlink(missing_ok=True)
            return
        # A page that is shown meanwhile reads the old one or the new one.
        new_file = file.with_suffix(".new")
        new_file.write_text(json.dumps(station), encoding="utf-8")
        new_file.replace(file)

    def follow(self, output: IO[str]) -> None:
        """Read what the gateway prints, until it ends."""
        for line in output:
            with self.changed:
                try:
                    event = json.loads(line)
                    self.events.setdefault(event["event"], []).append(event)
                except (ValueError, KeyError, TypeError):
                    self.lines = [*self.lines, line.rstrip()][-_MAX_OUTPUT_LINES:]
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, name: str, **facts: str) -> Mapping[str, Any]:
        """Wait for an event with these facts, and return the newest one."""

        def find() -> Mapping[str, Any] | None:
            events = reversed(self.events.get(name, ()))
            return next((each for each in events if facts.items() <= each.items()), None)

        with self.changed:
            self.changed.wait_for(lambda: find() or self.process.poll() is not None, _START_SECONDS)
            event = find()
        if event is None:
            details = "\n  ".join(("The demo's gateway did not go on:", *self.lines))
            raise ConfigError(f"{details}\n  Try it by hand: deputize init shop && cd shop && deputize dev")
        return event


@contextmanager
def run_demo_gateway(port: int) -> Iterator[DemoGateway]:
    """Start the shop's gateway in a new folder; stop it and delete the folder in the end."""
    folder = Path(tempfile.mkdtemp(prefix="deputize-demo-"))
    # The local PostgreSQL runs as another user if this is root, and must pass through.
    folder.chmod(0o711)
    try:
        shop = folder / "shop"
        _create_shop(shop)
        command = [sys.executable, "-m", "deputize", "dev", "--json", "--accept-changes", "--port", str(port)]
        with subprocess.Popen(
            command,
            cwd=shop,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C is for this command, which then ends the gateway in order.
            start_new_session=True,
        ) as process:
            gateway = DemoGateway(folder=shop, process=process)
            assert process.stdout is not None
            reader = threading.Thread(target=gateway.follow, args=(process.stdout,), name="demo output", daemon=True)
            reader.start()
            try:
                gateway.wait_for("ready")
                yield gateway
            finally:
                _stop(process)
                reader.join(_STOP_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _create_shop(folder: Path) -> None:
    shutil.copytree(_SHOP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(_DEFAULT_POLICIES, folder / "policies" / "default.cedar")
    server = [sys.executable, str(folder / "stock_server.py")]
    # A program of our own, on any host.
    table = f'\n[[servers]]\nname = "stock"\ncommand = {json.dumps(server)}\nsandbox = false\nreads = ["count"]\n'
    with (folder / "deputize.toml").open("a", encoding="utf-8") as settings:
        settings.write(table)


def _stop(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def keep_agents_busy(url: str, tokens: Mapping[str, str], pause: float) -> Iterator[None]:
    """Let the agents go on with their work while the block runs."""
    stop = threading.Event()
    thread = threading.Thread(target=_work, args=(url, tokens, pause, stop), name="demo agents", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Nobody waits for its last call, which ends with the gateway.
        stop.set()


def _work(url: str, tokens: Mapping[str, str], pause: float, stop: threading.Event) -> None:
    """Make one call after the other; what is refused is part of the day."""
    clients = {name: SyncClient(url, token, attempts=1) for name, token in tokens.items()}
    day: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("support-bot", "customers.show", {"number": 7}),
        ("support-bot", "stock.count", {"item": "lamp"}),
        ("cleanup-bot", "orders.find", {"customer": 9}),
        ("support-bot", "orders.place", {"customer": 9, "item": "chair", "count": 1}),
        ("scraper-bot", "customers.show", {"number": 8}),
        ("support-bot", "orders.checkout", {"customer": 11, "item": "table"}),
        ("support-bot", "orders.find", {"customer": 9}),
        ("scraper-bot", "customers.export", {}),
        ("cleanup-bot", "customers.show", {"number": 10}),
    )
    for agent, tool, arguments in itertools.cycle(day):
        if stop.wait(pause):
            break
        with suppress(DeputizeError):
            reply = clients[agent].call(tool, **arguments)
            if reply.pending:
                # A checkout would change what the one before it still takes back.
                clients[agent].wait(reply.call_id, seconds=_CHECKOUT_SECONDS)
    for client in clients.values():
        client.close()
