"""A real NATS server with JetStream for tests, on a port of its own; what it stores is gone with the block."""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proofs.kit.reserved_port import reserve_port


class NatsServer:
    """A server that can be killed, frozen and started again with what it has stored."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = reserve_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        assert program, "this needs nats-server: apt-get install -y nats-server"
        arguments = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder), *self._options]
        self._process = subprocess.Popen(
            [program, *arguments], stdout=subprocess.DEVNULL, stderr=(self._folder / "nats.log").open("ab")
        )
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "nats.log").read_text()[-2000:]
                assert time.monotonic() < until, "nats-server did not start"
                time.sleep(0.02)

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def run_nats_server(*options: str) -> Iterator[NatsServer]:
    with tempfile.TemporaryDirectory(prefix="nats-") as folder:
        server = NatsServer(Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()
