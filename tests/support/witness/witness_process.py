"""Build and run the witness in Go, on a port of its own; a new process has forgotten every log."""

import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.evidence.log.checkpoint import get_witness_key
from deputize.evidence.log.signed_note import NoteSigner, VerifierKey
from proofs.kit.reserved_port import reserve_port

_SOURCE = Path(__file__).with_name("witness.go")
_MODULES = Path("/usr/share/gocode")


def build_program(source: Path) -> Path:
    """Build a program in Go once for each version of its source."""
    go = shutil.which("go")
    has_modules = (_MODULES / "src" / "golang.org" / "x" / "mod").exists()
    if go is None or not has_modules:
        raise RuntimeError("these tests need Go: apt-get install -y golang-go golang-golang-x-mod-dev")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"deputize-witness-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    program = folder / digest
    if not program.exists():
        pending = folder / f"{digest}.{os.getpid()}"
        env = {"PATH": os.environ["PATH"], "GO111MODULE": "off", "GOPATH": str(_MODULES), "HOME": str(folder)}
        subprocess.run([go, "build", "-o", str(pending), str(source)], check=True, env=env, timeout=600)
        pending.replace(program)
    return program


class WitnessProcess:
    """A witness under a name, with a key of its own; `start` tells it which log it knows."""

    def __init__(self, name: str = "witness.example/w1") -> None:
        self._program = build_program(_SOURCE)
        self._seed = hashlib.sha256(name.encode()).digest()
        signer = NoteSigner(name=name, private_key=Ed25519PrivateKey.from_private_bytes(self._seed))
        self.key: VerifierKey = get_witness_key(signer)
        self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, log_key: VerifierKey) -> None:
        """Start, knowing one log by its key and nothing of what it signed."""
        arguments = {"-listen": f"127.0.0.1:{self.port}", "-name": self.key.name, "-seed": self._seed.hex()}
        command = [str(self._program), *(part for pair in arguments.items() for part in pair), "-log", str(log_key)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < until, "the witness did not start"
                time.sleep(0.02)

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
