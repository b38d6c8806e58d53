"""A project in which `deputize dev` runs, an agent on the same machine, and the person who reads the terminal.

The agent has a shell of the same account, our command line, a token that was lent to it, and whatever else lies in the
project's folder. What it never sees is the terminal.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from deputize.store.local_postgres import LocalPostgres
from tests.acceptance.cli.cli_process import (
    TIMEOUT_SECONDS,
    BackgroundCommand,
    CompletedCommand,
    make_project,
    run_deputize,
)

NOTES = ("milk", "bread", "salt", "soap", "string")
_ADDRESS = re.compile(r"REST (http://127\.0\.0\.1:[0-9]+)/v1")
_CODE = re.compile(r"code ([0-9A-Z]{4}-[0-9A-Z]{4})$")


@dataclass(frozen=True, kw_only=True)
class PendingApproval:
    """A call that waits for a person, and the code that only the terminal shows."""

    call_id: str
    request_id: str
    binding: str
    code: str = field(repr=False)

    @property
    def decision(self) -> dict[str, str]:
        """The body of a decision about exactly this call: its binding is never why it is refused."""
        return {"reason": "I am sure it is fine", "binding": self.binding}


@dataclass(kw_only=True)
class Scenario:
    folder: Path
    url: str
    dev: BackgroundCommand
    token: str
    database: LocalPostgres
    http: httpx2.Client

    def run_cli(self, *words: str, token: str | None = None) -> CompletedCommand:
        """Our command line in the agent's hands; without a token it takes the developer's, which lies in the folder."""
        env = {} if token is None else {"DEPUTIZE_TOKEN": token}
        return run_deputize(*words, folder=self.folder, env=env)

    def mint_token(self, *words: str) -> str:
        """Any token whatever that the development issuer's key, which lies in the folder, can sign."""
        done = run_deputize("token", *words, folder=self.folder)
        assert done.code == 0, done.output
        return done.out.strip()

    @property
    def developer_token(self) -> str:
        return (self.folder / ".deputize" / "token").read_text().strip()

    def post(
        self, path: str, body: Any, *, token: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        shown = {"authorization": f"Bearer {token or self.token}"}
        return self.http.post(path, json=body, headers={**shown, **(headers or {})})

    def post_form(self, path: str, fields: Mapping[str, str], **headers: str) -> httpx2.Response:
        """As a browser would send it, with nobody's token."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(path, data=dict(fields), headers=named)

    def request_deletion(self, number: int, key: str) -> PendingApproval:
        """The agent asks for a note to be gone; the person at the terminal reads the code."""
        answer = self.post(
            "/v1/calls", {"tool": "hello.forget", "arguments": {"number": number}}, headers={"idempotency-key": key}
        )
        assert answer.status_code == 202, answer.text
        told = answer.json()
        ticket = told["approval"]["approval_id"]
        line = self.dev.wait_for_line(f"⏸ approval request {ticket}")
        shown = _CODE.search(line)
        assert shown is not None, line
        assert shown[1] not in answer.text
        seen = self.http.get(f"/v1/approvals/{ticket}", headers={"authorization": f"Bearer {self.token}"}).json()
        return PendingApproval(call_id=told["call_id"], request_id=ticket, binding=seen["binding"], code=shown[1])

    def call_state(self, call: str) -> str:
        return self.database.run_sql(f"select state from deputize.calls where id = '{call}'")

    def votes(self, request_id: str) -> list[str]:
        return self.database.run_sql(f"select voter from deputize.votes where id = '{request_id}'").split()

    def list_refusals(self) -> list[dict[str, Any]]:
        """List every refusal on record."""
        kept = "select convert_from(entry, 'utf8') from deputize.audit_entries order by id"
        entries = [json.loads(line) for line in self.database.run_sql(kept).splitlines()]
        return [entry for entry in entries if entry["kind"] == "refusal"]

    def list_decisions(self, request_id: str) -> list[str]:
        kept = "select convert_from(entry, 'utf8') from deputize.audit_entries where call_id is not null order by id"
        entries = [json.loads(line) for line in self.database.run_sql(kept).splitlines()]
        return [each["outcome"] for each in entries if each["kind"] == "decision" and each["subject"] == request_id]

    @property
    def notes(self) -> list[str]:
        return (self.folder / "notes.txt").read_text().splitlines()


@contextmanager
def open_scenario() -> Iterator[Scenario]:
    with tempfile.TemporaryDirectory(prefix="deputize-scene-", ignore_cleanup_errors=True) as desk:
        # A database under another account has to pass through.
        Path(desk).chmod(0o711)
        with _start_scenario(make_project(Path(desk) / "shop")) as scenario:
            yield scenario


@contextmanager
def _start_scenario(folder: Path) -> Iterator[Scenario]:
    (folder / "notes.txt").write_text("".join(f"{note}\n" for note in NOTES))
    with BackgroundCommand("dev", folder=folder) as dev:
        ready = _ADDRESS.search(dev.wait_for_line("▶ REST"))
        assert ready is not None
        lent = run_deputize("token", "exchange", "--agent", "helper", "--scope", "notes:write", folder=folder)
        assert lent.code == 0, lent.output
        with httpx2.Client(base_url=ready[1], trust_env=False, timeout=TIMEOUT_SECONDS) as http:
            yield Scenario(
                folder=folder, url=ready[1], dev=dev, token=lent.out.strip(), http=http,
                database=LocalPostgres(folder / ".deputize").start(),
            )  # fmt: skip
        assert dev.interrupt() == 0
