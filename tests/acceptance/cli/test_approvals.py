"""Decide a dangerous call at a shell: it waits, an approver decides, and the caller sees the outcome."""

import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.acceptance.cli.cli_process import (
    PROGRAM,
    TIMEOUT_SECONDS,
    BackgroundCommand,
    CompletedCommand,
    make_project,
    read_terminal,
    run_deputize,
)

pytestmark = [pytest.mark.requirement("GOV-3"), pytest.mark.nightly]

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


@tool(
    effects="write",
    resources=["create crm.tags/{name}"],
    scopes=["crm:write"],
    undo="crm.untag",
    examples=[{"name": "a"}],
)
def tag(name: str) -> dict[str, str]:
    """Add a tag.

    Args:
        name: The tag.
    """
    return {"name": name}


@tool(
    effects="write",
    resources=["delete crm.tags/{name}"],
    scopes=["crm:write"],
    undo="crm.tag",
    examples=[{"name": "a"}],
)
def untag(name: str) -> dict[str, str]:
    """Remove a tag.

    Args:
        name: The tag.
    """
    return {"name": name}
'''
POLICY = """
@id("undos-ask")
@reason("Somebody else agrees before tags go.")
@decision("ask")
forbid (principal, action == Action::"call", resource == Tool::"crm.untag") when { context has undoes };
"""
ISSUER = f"""
[[identity.issuers]]
issuer = "{PEOPLE}"
audience = "deputize"
console_audience = "console"
jwks_file = "people.jwks.json"
tenant = "dev"
human = true
same_subjects_as = "urn:deputize:development"
"""


@dataclass
class ApprovalProject:
    """A project in which `deputize dev` runs in a terminal that only a person reads."""

    folder: Path
    dev: BackgroundCommand
    key: Ed25519PrivateKey
    codes: dict[str, str] = field(default_factory=dict)

    def run_cli(self, *words: str, **more: Any) -> CompletedCommand:
        return run_deputize(*words, folder=self.folder, **more)

    def request_approval(self, name: str, *more: str) -> dict[str, Any]:
        """Make a call that waits for approval, and return its envelope."""
        done = self.run_cli("call", "crm.delete_user", f"name={name}", "--json", *more)
        assert done.code == 3, done.output
        envelope: dict[str, Any] = done.json
        return envelope

    def read_code(self, request_id: str) -> str:
        while request_id not in self.codes:
            line = self.dev.wait_for_line("⏸ approval request").removeprefix("⏸ approval request ")
            self.codes[line.partition(":")[0]] = line.rpartition(" ")[2]
        return self.codes[request_id]

    def name_versions(self, *request_ids: str) -> tuple[str, ...]:
        """Build the options that say which version of each request was read."""
        shown = [self.run_cli("approvals", "show", each, "--json").json for each in request_ids]
        return tuple(word for each in shown for word in ("--binding", each["binding"]))

    def sign_token(self, name: str, *, ago: int = 5, **more: Any) -> str:
        now = int(time.time())
        claims = {
            "iss": PEOPLE, "aud": "console", "sub": name, "iat": now, "exp": now + 600, "jti": f"{name}-{now}",
            "auth_time": now - ago, "groups": ["approvers"], **more,
        }  # fmt: skip
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "people"})


@pytest.fixture(scope="module")
def project(workspace: Path) -> Iterator[ApprovalProject]:
    folder, key = make_project(workspace / "crm"), Ed25519PrivateKey.generate()
    (folder / "tools" / "crm.py").write_text(TOOLS)
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    (folder / "people.jwks.json").write_text(json.dumps({"keys": [{**jwk, "kid": "people", "use": "sig"}]}))
    with (folder / "deputize.toml").open("a") as file:
        file.write(ISSUER)
    with (folder / "policies" / "default.cedar").open("a") as file:
        file.write(POLICY)
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        yield ApprovalProject(folder=folder, dev=dev, key=key)
        assert dev.interrupt() == 0


def test_a_call_that_waits_says_for_whom_and_is_no_error(project: ApprovalProject) -> None:
    done = project.run_cli("call", "crm.delete_user", "name=Ana", "--key", "ana")
    assert done.code == 3, done.output
    first, second, third, fourth, last = done.err.splitlines()

    assert (done.code, done.out) == (3, "")
    assert first == (
        "⏸ Approval required: destructive-needs-human (policies/default.cedar:24): "
        "Irreversible actions require human approval."
    )
    again = project.request_approval("Ana", "--key", "ana")
    call_id = again["call_id"]
    assert second == (
        "  Waiting for approval by group approvers. Denied automatically in 1 day. "
        f"Safe to exit: `deputize calls watch {call_id}`."
    )
    assert re.fullmatch(r"  Decide in the console: http://127\.0\.0\.1:\d+/console/approvals/[0-9a-f-]{36}", third)
    assert fourth == f"  Details: deputize approvals show {call_id}"
    assert re.fullmatch(r"  call [0-9a-f-]{36} · approval request [0-9a-f-]{36} · key ana", last)
    assert again["approval"]["approval_id"] in last
    assert project.run_cli("calls", "cancel", call_id).out == (
        "✓ Canceled: it was not approved yet, and nothing was executed\n"
    )


def test_one_screen_shows_everything_an_approver_needs(project: ApprovalProject) -> None:
    token = project.run_cli("token", "--user", "ana", "--agent", "billing-bot", "--scope", "crm:delete").out.strip()
    asked = project.request_approval("Bo", "--token", token)
    shown = project.run_cli("approvals", "show", asked["call_id"])

    assert shown.code == 0
    for line in (
        r"⏸ Waiting for approval · approval request [0-9a-f-]{36}",
        r"  billing-bot for ana   crm\.delete_user 0\.1\.0 \(digest [0-9a-f]{12}…\)",
        r'    "name": "Bo"',
        r"    ▶ delete crm\.users/1 \(1\)",
        r'        before: \{"name": "Bo"\}',
        r"    invoices: 14",
        r"  Undo: not possible",
        r"    destructive-needs-human \(policies/default\.cedar:24\): Irreversible actions require human approval\.",
        r"    approvers: one approval",
        # The token for the call is valid for an hour.
        r"    Waiting for approval by group approvers\. Denied automatically in (1 hour|5\d minutes)\. "
        r"Deadline: \d{4}-\d\d-\d\d \d\d:\d\d UTC\.",
    ):
        assert re.search(f"^{line}$", shown.out, re.MULTILINE), (line, shown.out)
    assert f"Approve: deputize approvals approve {asked['approval']['approval_id']} --code CODE" in shown.err
    assert project.run_cli("approvals", "show", asked["call_id"], "--json").json["may_decide"] is False
    listed = project.run_cli("approvals", "list").out
    assert asked["approval"]["approval_id"] in listed
    assert "billing-bot for ana" in listed


def test_the_code_of_the_terminal_decides_and_the_call_continues(project: ApprovalProject) -> None:
    asked = project.request_approval("Cy")
    request_id, call = asked["approval"]["approval_id"], asked["call_id"]
    with BackgroundCommand("calls", "watch", call, folder=project.folder) as watching:
        watching.wait_for_line("awaiting_approval Waiting for approval by group approvers.")
        approved = project.run_cli(
            "approvals", "approve", request_id, "--code", "-", stdin=f"{project.read_code(request_id)}\n"
        )
        assert (approved.code, approved.out) == (0, f"✓ Approved: call {call} continues automatically\n")
        watching.wait_for_line("succeeded")
        assert watching.wait_for_exit() == 0
    assert project.run_cli("calls", "show", call, "--json").json["result"].startswith("Cy is gone")
    assert "✓ Approved; the call was started" in project.run_cli("approvals", "show", call).out
    late = project.run_cli(
        "approvals", "deny", request_id, "--reason", "too late", "--code", project.read_code(request_id)
    )
    assert (late.code, "E3714" in late.err) == (1, True)


def test_without_the_code_of_the_terminal_nothing_is_decided(project: ApprovalProject) -> None:
    asked = project.request_approval("Di")
    request_id = asked["approval"]["approval_id"]
    unseen = project.run_cli("approvals", "approve", request_id)
    assert (unseen.code, "say which version you saw" in unseen.err) == (2, True)
    bare = project.run_cli("approvals", "approve", request_id, *project.name_versions(request_id))
    assert (bare.code, "rule: console-audience" in bare.err) == (1, True)
    assert "add --code with the code that deputize dev shows" in bare.err
    wrong = project.run_cli("approvals", "approve", request_id, "--code", "0000-0000")
    assert (wrong.code, "rule: terminal-code" in wrong.err) == (1, True)
    assert project.run_cli("approvals", "approve", request_id, "--code", "0000–0000").code == 2
    last = project.run_cli("approvals", "approve", "last", "--token", project.sign_token("bo"))
    assert (last.code, "last may mean a newer one" in last.err) == (2, True)
    assert request_id in project.run_cli("approvals", "show", "last").out
    other = project.run_cli(
        "approvals", "approve", "last", "--binding", "0" * 64, "--code", project.read_code(request_id)
    )
    assert (other.code, "E3229" in other.err) == (1, True)
    eve = project.run_cli("token", "--user", "eve").out.strip()
    assert "E3713" in project.run_cli("approvals", "show", request_id, "--token", eve).err
    assert project.run_cli("approvals", "list", "--token", eve).out == "No open approval requests.\n"
    assert project.run_cli("calls", "show", asked["call_id"], "--json").json["state"] == "awaiting_approval"


def test_the_caller_reads_a_denial_and_its_terminal_is_safe(project: ApprovalProject) -> None:
    asked = project.request_approval("Ed", "--key", "ed")
    request_id = asked["approval"]["approval_id"]
    assert project.run_cli("approvals", "deny", request_id, "--code", project.read_code(request_id)).code == 2
    why = "he \x1b[31mpays\x1b[0m well"
    denied = project.run_cli("approvals", "deny", request_id, "--code", project.read_code(request_id), "--reason", why)
    assert (denied.code, "its caller sees your reason" in denied.out) == (0, True)
    repeated = project.run_cli("call", "crm.delete_user", "name=Ed", "--key", "ed")
    watched = project.run_cli("calls", "watch", asked["call_id"])
    shown = project.run_cli("approvals", "show", request_id)

    assert (repeated.code, watched.code, shown.code) == (1, 1, 0)
    assert "✗ An approver denied this call (E3213)" in repeated.err
    for said in (repeated.err, watched.out, shown.out):
        assert r"he \x1b[31mpays\x1b[0m well" in said
        assert "\x1b" not in said


def test_who_waits_gets_the_result_after_the_yes(project: ApprovalProject) -> None:
    with BackgroundCommand("call", "crm.delete_user", "name=Flo", "--wait", folder=project.folder) as waiting:
        waiting.wait_for_line("⏸ Approval required")
        waiting.wait_for_line("awaiting_approval")
        request_id = project.run_cli("approvals", "list", "--json").json["approvals"][0]["approval_id"]
        assert project.run_cli("approvals", "approve", request_id, "--code", project.read_code(request_id)).code == 0
        waiting.wait_for_line('"Flo is gone')
        assert waiting.wait_for_exit() == 0


def test_a_person_at_a_terminal_sees_it_and_is_asked_for_the_code(project: ApprovalProject) -> None:
    request_id = project.request_approval("Gus")["approval"]["approval_id"]
    mine, theirs = pty.openpty()
    command = [PROGRAM, "approvals", "approve", request_id]
    with subprocess.Popen(command, cwd=project.folder, env={}, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = read_terminal(mine, "type the code")
        os.write(mine, f"{project.read_code(request_id)}\n".encode())
        said += read_terminal(mine, "continues automatically")
        assert process.wait(TIMEOUT_SECONDS) == 0
    os.close(mine)
    assert "Waiting for approval" in said
    assert '"name": "Gus"' in said


def test_equal_calls_are_decided_together_by_an_approver(project: ApprovalProject) -> None:
    asked = [project.request_approval(name)["approval"]["approval_id"] for name in ("Hal", "Ida")]
    bo = project.sign_token("bo")
    shown = project.run_cli("approvals", "show", asked[0], "--token", bo, "--json").json
    assert shown["may_decide"] is True
    hint = f"Approve: deputize approvals approve {asked[0]} --binding {shown['binding']}"
    assert hint in project.run_cli("approvals", "show", asked[0], "--token", bo).err
    words = ("approvals", "batch", "approve", *asked)
    unseen = project.run_cli(*words, "--vary", "name", "--token", bo)
    assert (unseen.code, "say which version you saw" in unseen.err) == (2, True)
    words += project.name_versions(*asked)
    assert project.run_cli(*words[:-2], "--vary", "name", "--token", bo).code == 2
    refused = project.run_cli(*words, "--token", bo)
    assert (refused.code, "differs from" in refused.err) == (1, True)
    stale = project.run_cli(*words, "--vary", "name", "--token", project.sign_token("cy", ago=5000))
    assert (stale.code, stale.out.count("not decided, still open: you signed in more than")) == (1, 2)
    done = project.run_cli(*words, "--vary", "name", "--token", bo)
    assert done.code == 0, done.output
    assert [f'"name": "{name}"' in done.out for name in ("Hal", "Ida")] == [True, True]
    assert len(re.findall(r"^✓ .* approved$", done.out, re.MULTILINE)) == 2


def test_two_people_override_in_an_emergency(project: ApprovalProject) -> None:
    request_id = project.request_approval("Jo")["approval"]["approval_id"]
    seen = project.name_versions(request_id)
    words = ("approvals", "break-glass", request_id, *seen, "--reason", "the site is down", "--token")
    assert "rule: break-glass-scope" in project.run_cli(*words, project.sign_token("g0")).err
    first, second = (project.sign_token(name, scope="deputize:break-glass") for name in ("g1", "g2"))
    assert "A second authorised person must run the same command." in project.run_cli(*words, first).out
    assert "rule: one-vote-each" in project.run_cli(*words, first).err
    assert "continues automatically, and all approvers are notified" in project.run_cli(*words, second).out
    assert "g2 by emergency override" in project.run_cli("approvals", "show", request_id).out


def test_callers_cannot_approve_their_own_call(project: ApprovalProject) -> None:
    request_id = project.request_approval("Kim")["approval"]["approval_id"]
    words = ("approvals", "approve", request_id, *project.name_versions(request_id))
    own = project.run_cli(*words, "--token", project.sign_token("developer"))
    assert (own.code, "rule: no-self-approval" in own.err) == (1, True)
    assert "another person must approve it" in own.err


def test_an_undo_of_several_calls_is_approved_once_and_the_command_that_began_goes_on(
    project: ApprovalProject,
) -> None:
    token = project.run_cli("token", "--agent", "bot", "--scope", "crm:write").out.strip()
    for name in ("a", "b", "c"):
        done = project.run_cli("call", "crm.tag", f"name={name}", "--session", "s", "--token", token)
        assert done.code == 0, done.output
    words = ("undo", "--session", "s", "--yes")
    asked = project.run_cli(*words)
    assert asked.code == 3, asked.output
    told = re.search(
        r"Undid 0 calls, and 3 more can be\. 3 steps wait for one approval: deputize approvals show "
        r"([0-9a-f-]{36})\. Then repeat the command\.",
        asked.err,
    )
    assert told is not None, asked.err
    request_id = told[1]
    shown = project.run_cli("approvals", "show", request_id).out
    lines = [
        r"  developer   undo of 3 calls in development", r"  Steps, in this order: one approval for 3",
        r"     1  crm\.untag  needs this approval by undos-ask · takes back crm\.tag in call [0-9a-f-]{36}",
        r'          name: "c"  \(returned by crm\.tag, called by bot\)',
        r"    undos-ask \(policies/default\.cedar:\d+\): Somebody else agrees before tags go\.",
        r"    approvers: one approval",
    ]  # fmt: skip
    for line in lines:
        assert re.search(f"^{line}$", shown, re.MULTILINE), (line, shown)
    approved = project.run_cli("approvals", "approve", request_id, "--code", project.read_code(request_id))
    assert approved.code == 0, approved.output
    assert project.run_cli("calls", "watch", re.findall("[0-9a-f-]{36}", approved.out)[0]).code == 0
    done = project.run_cli(*words)
    assert (done.code, "✓ Undid 2 calls (1 call was undone before)" in done.out) == (0, True), done.output
    assert "✓ Approved; the call was started" in project.run_cli("approvals", "show", request_id).out


HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202eevil\u2066 [bold]x[/] \r✓ approved\n" + "A" * 50_000


def test_what_callers_write_moves_and_hides_nothing(project: ApprovalProject) -> None:
    arguments = json.dumps({"name": HOSTILE})
    done = project.run_cli("call", "crm.delete_user", "--args", "-", "--json", stdin=arguments)
    assert done.code == 3, done.output[:500]
    request_id = done.json["approval"]["approval_id"]
    shown = project.run_cli("approvals", "show", request_id)
    batch = project.run_cli(
        "approvals", "batch", "deny", request_id, "--reason", "no", "--token", project.sign_token("bo")
    )

    for said in (shown.output, batch.output):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", said)
        assert r"\x1b[2J" in said
        assert not re.search(r"^✓ approved", said, re.MULTILINE)
        assert len(said) < 10_000
    assert re.search(r"\[part of 50,0\d\d characters\]", shown.out)
