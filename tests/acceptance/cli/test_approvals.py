"""A dangerous call at a shell: it waits, somebody looks, says yes or no, and whoever asked hears of it."""

import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.acceptance.cli.shell import PATIENCE, PROGRAM, Done, Running, deputize, make_project

pytestmark = pytest.mark.requirement("GOV-3")

PEOPLE = "https://people.example"
TOOLS = '''
from deputize import Preview, tool

gone = []


def would_go(name: str) -> Preview:
    change = {"resource": "crm.users", "op": "delete", "scope": "1", "before": {"name": name}, "count": 1}
    return Preview(changes=[change], impact={"invoices": 14})


@tool(
    effects="destructive",
    resources=["delete crm.users"],
    scopes=["crm:delete"],
    preview=would_go,
    examples=[{"name": "Bo"}],
)
def delete_user(name: str) -> str:
    """Delete a user with everything that belongs to them.

    Args:
        name: Who goes.
    """
    gone.append(name)
    return f"{name} is gone, {len(gone)} in all"
'''
ISSUER = f"""
[[identity.issuers]]
issuer = "{PEOPLE}"
audience = "deputize"
console_audience = "console"
jwks_file = "people.jwks.json"
tenant = "dev"
human = true
"""


@dataclass
class Desk:
    """A project in which `deputize dev` runs in a terminal that only a person reads."""

    folder: Path
    dev: Running
    key: Ed25519PrivateKey
    codes: dict[str, str] = field(default_factory=dict)

    def type(self, *words: str, **more: Any) -> Done:
        return deputize(*words, folder=self.folder, **more)

    def ask(self, name: str, *more: str) -> dict[str, Any]:
        """A call that waits, as programs hear of it."""
        done = self.type("call", "crm.delete_user", f"name={name}", "--json", *more)
        assert done.code == 3, done.said
        told: dict[str, Any] = done.json
        return told

    def code(self, ticket: str) -> str:
        while ticket not in self.codes:
            _, _, told, rest = self.dev.until("⏸ ticket").split(" ", 3)
            self.codes[told] = rest.rpartition(" ")[2]
        return self.codes[ticket]

    def person(self, name: str, *, ago: int = 5, **more: Any) -> str:
        now = int(time.time())
        claims = {
            "iss": PEOPLE, "aud": "console", "sub": name, "iat": now, "exp": now + 600, "jti": f"{name}-{now}",
            "auth_time": now - ago, "groups": ["approvers"], **more,
        }  # fmt: skip
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "people"})


@pytest.fixture(scope="module")
def at(desk: Path) -> Iterator[Desk]:
    folder, key = make_project(desk / "crm"), Ed25519PrivateKey.generate()
    (folder / "tools" / "crm.py").write_text(TOOLS)
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    (folder / "people.jwks.json").write_text(json.dumps({"keys": [{**jwk, "kid": "people", "use": "sig"}]}))
    with (folder / "deputize.toml").open("a") as file:
        file.write(ISSUER)
    with Running("dev", folder=folder) as dev:
        dev.until("▶")
        yield Desk(folder=folder, dev=dev, key=key)
        assert dev.interrupt() == 0


def test_a_call_that_waits_says_for_whom_and_is_no_error(at: Desk) -> None:
    done = at.type("call", "crm.delete_user", "name=Ana", "--key", "ana")
    assert done.code == 3, done.said
    first, second, third, fourth, last = done.err.splitlines()

    assert (done.code, done.out) == (3, "")
    assert first == (
        "⏸ needs approval: destructive-needs-human (policies/default.cedar:24): "
        "What cannot be taken back needs a human's word."
    )
    assert second == "  asked approvers · a no unless decided within 1 day · you may disconnect"
    assert re.fullmatch(r"  people decide at http://127\.0\.0\.1:\d+/console/tickets/[0-9a-f-]{36}", third)
    assert re.fullmatch(r"  look: deputize approvals show (\S{36})   follow: deputize calls watch \1", fourth)
    assert re.fullmatch(r"  call [0-9a-f-]{36} · ticket [0-9a-f-]{36} · key ana", last)
    again = at.ask("Ana", "--key", "ana")
    assert again["approval"]["ticket_id"] in last
    assert at.type("calls", "cancel", again["call_id"]).out == (
        "✓ canceled: nobody had decided yet, and nothing was done\n"
    )


def test_one_screen_tells_all_there_is_to_decide(at: Desk) -> None:
    token = at.type("token", "--user", "ana", "--agent", "billing-bot", "--scope", "crm:delete").out.strip()
    asked = at.ask("Bo", "--token", token)
    shown = at.type("approvals", "show", asked["call_id"])

    assert shown.code == 0
    for line in (
        r"⏸ waits for a decision · ticket [0-9a-f-]{36}",
        r"  billing-bot for ana   crm\.delete_user 0\.1\.0 \(digest [0-9a-f]{12}…\)",
        r'    "name": "Bo"',
        r"    ▶ delete crm\.users/1 \(1\)",
        r'        before: \{"name": "Bo"\}',
        r"    invoices: 14",
        r"  undo: nothing takes it back",
        r"    destructive-needs-human \(policies/default\.cedar:24\): What cannot be taken back needs a human's word\.",
        r"    approvers: one person",
        r"    asked approvers · a no unless decided within 1 hour \(\d{4}-\d\d-\d\d \d\d:\d\d UTC\)",
    ):
        assert re.search(f"^{line}$", shown.out, re.MULTILINE), (line, shown.out)
    assert f"yes: deputize approvals approve {asked['approval']['ticket_id']} --code CODE" in shown.err
    assert at.type("approvals", "show", asked["call_id"], "--json").json["may_decide"] is False
    listed = at.type("approvals", "list").out
    assert asked["approval"]["ticket_id"] in listed
    assert "billing-bot for ana" in listed


def test_the_code_of_the_terminal_decides_and_the_call_goes_on(at: Desk) -> None:
    asked = at.ask("Cy")
    ticket, call = asked["approval"]["ticket_id"], asked["call_id"]
    with Running("calls", "watch", call, folder=at.folder) as watching:
        watching.until("awaiting_approval asked approvers")
        approved = at.type("approvals", "approve", ticket, "--code", "-", typed=f"{at.code(ticket)}\n")
        assert (approved.code, approved.out) == (0, f"✓ approved: call {call} goes on by itself\n")
        watching.until("succeeded")
        assert watching.end() == 0
    assert at.type("calls", "show", call, "--json").json["result"].startswith("Cy is gone")
    assert "✓ approved, and the call was begun" in at.type("approvals", "show", call).out
    late = at.type("approvals", "deny", ticket, "--reason", "too late", "--code", at.code(ticket))
    assert (late.code, "E3714" in late.err) == (1, True)


def test_whoever_does_not_read_the_terminal_decides_nothing(at: Desk) -> None:
    asked = at.ask("Di")
    ticket = asked["approval"]["ticket_id"]
    bare = at.type("approvals", "approve", ticket)
    assert (bare.code, "rule: console-audience" in bare.err) == (1, True)
    assert "add --code with what the terminal of deputize dev shows" in bare.err
    wrong = at.type("approvals", "approve", ticket, "--code", "0000-0000")
    assert (wrong.code, "rule: terminal-code" in wrong.err) == (1, True)
    assert at.type("approvals", "approve", ticket, "--code", "0000–0000").code == 2
    last = at.type("approvals", "approve", "last", "--token", at.person("bo"))
    assert (last.code, "may not be the one you saw" in last.err) == (2, True)
    assert ticket in at.type("approvals", "show", "last").out
    other = at.type("approvals", "approve", "last", "--binding", "0" * 64, "--code", at.code(ticket))
    assert (other.code, "E3229" in other.err) == (1, True)
    eve = at.type("token", "--user", "eve").out.strip()
    assert "E3713" in at.type("approvals", "show", ticket, "--token", eve).err
    assert at.type("approvals", "list", "--token", eve).out == "Nothing waits for a decision.\n"
    assert at.type("calls", "show", asked["call_id"], "--json").json["state"] == "awaiting_approval"


def test_a_no_is_read_by_whoever_asked_and_does_nothing_to_their_terminal(at: Desk) -> None:
    asked = at.ask("Ed", "--key", "ed")
    ticket = asked["approval"]["ticket_id"]
    assert at.type("approvals", "deny", ticket, "--code", at.code(ticket)).code == 2
    why = "he \x1b[31mpays\x1b[0m well"
    denied = at.type("approvals", "deny", ticket, "--code", at.code(ticket), "--reason", why)
    assert (denied.code, "whoever made it reads your reason" in denied.out) == (0, True)
    told = at.type("call", "crm.delete_user", "name=Ed", "--key", "ed")
    watched = at.type("calls", "watch", asked["call_id"])
    shown = at.type("approvals", "show", ticket)

    assert (told.code, watched.code, shown.code) == (1, 1, 0)
    assert "✗ A human said no (E3213)" in told.err
    for said in (told.err, watched.out, shown.out):
        assert r"he \x1b[31mpays\x1b[0m well" in said
        assert "\x1b" not in said


def test_who_waits_gets_the_result_after_the_yes(at: Desk) -> None:
    with Running("call", "crm.delete_user", "name=Flo", "--wait", folder=at.folder) as waiting:
        waiting.until("⏸ needs approval")
        waiting.until("awaiting_approval")
        ticket = at.type("approvals", "list", "--json").json["approvals"][0]["ticket_id"]
        assert at.type("approvals", "approve", ticket, "--code", at.code(ticket)).code == 0
        waiting.until('"Flo is gone')
        assert waiting.end() == 0


def test_a_person_at_a_terminal_sees_it_and_is_asked_for_the_code(at: Desk) -> None:
    ticket = at.ask("Gus")["approval"]["ticket_id"]
    mine, theirs = pty.openpty()
    command = [PROGRAM, "approvals", "approve", ticket]
    with subprocess.Popen(command, cwd=at.folder, env={}, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = _read_until(mine, "type the code")
        os.write(mine, f"{at.code(ticket)}\n".encode())
        said += _read_until(mine, "goes on by itself")
        assert process.wait(PATIENCE) == 0
    os.close(mine)
    assert "waits for a decision" in said
    assert '"name": "Gus"' in said


def _read_until(terminal: int, words: str) -> str:
    said = ""
    while words not in said:
        assert select.select([terminal], [], [], PATIENCE)[0], said
        said += os.read(terminal, 65_536).decode(errors="replace")
    return said


def test_equal_calls_are_decided_together_by_somebody_signed_in(at: Desk) -> None:
    asked = [at.ask(name)["approval"]["ticket_id"] for name in ("Hal", "Ida")]
    bo = at.person("bo")
    assert at.type("approvals", "show", asked[0], "--token", bo, "--json").json["may_decide"] is True
    refused = at.type("approvals", "batch", "approve", *asked, "--token", bo)
    assert (refused.code, "differs from" in refused.err) == (1, True)
    stale = at.type("approvals", "batch", "approve", *asked, "--vary", "name", "--token", at.person("cy", ago=5000))
    assert (stale.code, stale.out.count("left open: you signed in longer ago")) == (1, 2)
    done = at.type("approvals", "batch", "approve", *asked, "--vary", "name", "--token", bo)
    assert done.code == 0, done.said
    assert [f'"name": "{name}"' in done.out for name in ("Hal", "Ida")] == [True, True]
    assert len(re.findall(r"^✓ .* approved$", done.out, re.MULTILINE)) == 2


def test_two_people_break_the_glass(at: Desk) -> None:
    ticket = at.ask("Jo")["approval"]["ticket_id"]
    words = ("approvals", "break-glass", ticket, "--reason", "the site is down", "--token")
    assert "rule: break-glass-scope" in at.type(*words, at.person("g0")).err
    first, second = (at.person(name, scope="deputize:break-glass") for name in ("g1", "g2"))
    assert "a second person who may has to do the same" in at.type(*words, first).out
    assert "rule: one-vote-each" in at.type(*words, first).err
    assert "goes on by itself, and everybody is told" in at.type(*words, second).out
    assert "g2 broke the glass" in at.type("approvals", "show", ticket).out


def test_nobody_decides_about_their_own_call(at: Desk) -> None:
    ticket = at.ask("Kim")["approval"]["ticket_id"]
    own = at.type("approvals", "approve", ticket, "--token", at.person("developer"))
    assert (own.code, "rule: no-self-approval" in own.err) == (1, True)
    assert "somebody else decides about it" in own.err


HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202eevil\u2066 [bold]x[/] \r✓ approved\n" + "A" * 50_000


def test_what_callers_write_moves_and_hides_nothing(at: Desk) -> None:
    arguments = json.dumps({"name": HOSTILE})
    done = at.type("call", "crm.delete_user", "--args", "-", "--json", typed=arguments)
    assert done.code == 3, done.said[:500]
    ticket = done.json["approval"]["ticket_id"]
    shown = at.type("approvals", "show", ticket)
    batch = at.type("approvals", "batch", "deny", ticket, "--reason", "no", "--token", at.person("bo"))

    for said in (shown.said, batch.said):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", said)
        assert r"\x1b[2J" in said
        assert not re.search(r"^✓ approved", said, re.MULTILINE)
        assert len(said) < 10_000
    assert re.search(r"more of 50,0\d\d characters⟩", shown.out)
