"""The verifier is installed from its wheel, alone: nothing of the gateway is there, and no library but cryptography."""

import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import orjson
import pytest

from checks.wheel import ROOT, build_wheel
from tests.support.receipts import LOG_SIGNER, make_receipt

pytestmark = [pytest.mark.requirement("NEW-1"), pytest.mark.nightly]
# cryptography and what it needs itself.
DEPENDENCIES = ("cryptography", "cffi", "pycparser")
DEADLINE_SECONDS = 300


def _install_alone(folder: Path) -> Path:
    """Make an environment with the verifier's wheel and its dependency; return its commands."""
    environment = folder / "env"
    venv.create(environment, with_pip=False, symlinks=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    for name in DEPENDENCIES:
        tops = {path.parts[0] for path in distribution(name).files or () if not path.parts[0].startswith("..")}
        for top in tops:
            (packages / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet",
         "--no-index", "--disable-pip-version-check", str(build_wheel(ROOT / "verifier", folder))],
        check=True, timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    return environment / "bin"


def test_the_verifier_installs_alone_and_verifies(tmp_path: Path) -> None:
    commands = _install_alone(tmp_path)
    receipt, key = tmp_path / "call.receipt", tmp_path / "log.key"
    key.write_text(str(LOG_SIGNER.verifier_key))

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env={"PATH": str(commands)}, capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )

    for module in ("deputize", "orjson", "pydantic"):
        assert run("python", "-c", f"import {module}").returncode == 1, f"{module} is there: this shows nothing"
    content = make_receipt(orjson.dumps({"tool": "shop.rename", "outcome": "succeeded"}))
    receipt.write_bytes(content)
    verdict = run("deputize-verify", str(receipt), "--key", str(key))
    assert (verdict.returncode, verdict.stderr) == (0, "")
    assert "shop.rename" in verdict.stdout
    receipt.write_bytes(content.replace(b"index 1", b"index 0"))
    verdict = run("deputize-verify", str(receipt), "--key", str(key))
    assert (verdict.returncode, verdict.stderr) == (1, "")
    assert verdict.stdout.startswith("NOT VALID: ")
