"""Store the token of `deputize login` in a real keyring: the library `keyring` with a backend that encrypts a file.

The Secret Service of a desktop needs a session bus and a person who unlocks it, so it is not started here.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import TIMEOUT_SECONDS

pytestmark = pytest.mark.nightly

SECRET = "ey.a-token-that-no-file-may-show"
PASSWORD = "correct horse battery staple"
GATEWAY = "https://gateway.example"
# What `deputize login` calls after the identity provider answered, each step in a process of its own.
PROGRAM = f"""
import json, sys
from dataclasses import asdict
from deputize.interfaces.cli.local.stored_tokens import StoredToken, delete_token, load_token, save_token
token = StoredToken(gateway={GATEWAY!r}, issuer="https://idp.example", client_id="deputize-cli", audience="gateway",
    access_token={SECRET!r}, expires_at=2**33)
steps = {{
    "save": lambda: save_token(token),
    "load": lambda: None if (loaded := load_token({GATEWAY!r})) is None else loaded == token,
    "delete": lambda: delete_token({GATEWAY!r}),
}}
print(json.dumps(steps[sys.argv[1]]()))
"""


def run_step(step: str, folder: Path, **variables: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, step],
        cwd=folder,
        env={
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_DATA_HOME": str(folder / "data"),
            **variables,
        },
        # The keyring asks for its password: without a terminal, on the standard input.
        input=f"{PASSWORD}\n" * 4,
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The keyring prints its questions on the same line.
    return json.loads(done.stdout.splitlines()[-1].rpartition(": ")[2])


def list_files_with_secret(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]


def test_a_keyring_holds_the_token_and_no_file_shows_it(tmp_path: Path) -> None:
    pytest.importorskip("keyrings.cryptfile.cryptfile", reason="pip install 'deputize[keyring,dev]'")
    unlocked = {"PYTHON_KEYRING_BACKEND": "keyrings.cryptfile.cryptfile.CryptFileKeyring"}
    assert run_step("save", tmp_path, **unlocked) == "keyring"
    assert list_files_with_secret(tmp_path) == []
    assert run_step("load", tmp_path, **unlocked) is True
    run_step("delete", tmp_path, **unlocked)
    assert run_step("load", tmp_path, **unlocked) is None


def test_without_a_keyring_a_file_that_only_its_owner_reads_holds_the_token(tmp_path: Path) -> None:
    # As without a desktop: the library is there or not, and finds nothing that it could unlock.
    absent = {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
    place = run_step("save", tmp_path, **absent)
    assert [str(file) for file in list_files_with_secret(tmp_path)] == [place]
    assert Path(str(place)).stat().st_mode & 0o777 == 0o600
    assert run_step("load", tmp_path, **absent) is True
    run_step("delete", tmp_path, **absent)
    assert list_files_with_secret(tmp_path) == []
