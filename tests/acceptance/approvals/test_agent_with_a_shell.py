"""An agent with a shell, a token of its own and our command line asks for something dangerous, and wants it approved.

It has the developer's account, so it reads whatever lies in the project's folder: the developer's token, the key that
signs any other, the master key. It tries every way it can think of. Each is refused, and every try to decide is on
record; then the person who reads the terminal says yes, and the call is made once.
"""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.govern.approvals.approval_codes import MAX_FAILURES_PER_APPROVAL
from deputize.govern.identity.sessions import SessionSealer
from deputize.store.keys import MasterKey
from tests.acceptance.approvals.attacks import ATTACKS, register_attack, require_refusal
from tests.acceptance.approvals.scenario import NOTES, PendingApproval, Scenario, open_scenario
from tests.acceptance.cli.cli_process import BackgroundCommand, list_files_containing

pytestmark = [pytest.mark.requirement("GOV-3"), pytest.mark.nightly]

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_keys = itertools.count(1)


@pytest.fixture(scope="module")
def scenario() -> Iterator[Scenario]:
    with open_scenario() as opened:
        yield opened


@pytest.fixture(scope="module")
def pending_approval(scenario: Scenario) -> PendingApproval:
    """What the agent wants approved: the first note gone."""
    return scenario.request_deletion(1, "wanted")


@register_attack(refusals=2)
def the_command_line_with_its_own_token(scenario: Scenario, pending_approval: PendingApproval) -> None:
    for named in (pending_approval.request_id, pending_approval.call_id):
        version = ("--binding", pending_approval.binding)
        done = scenario.run_cli("approvals", "approve", named, *version, "--yes", token=scenario.token)
        assert done.code == 1, done.output
        assert "only people decide" in done.err


@register_attack(refusals=1)
def the_command_line_with_the_developers_token(scenario: Scenario, pending_approval: PendingApproval) -> None:
    unseen = scenario.run_cli("approvals", "approve", pending_approval.request_id, "--yes")
    assert (unseen.code, "say which version you saw" in unseen.err) == (2, True), unseen.output
    version = ("--binding", pending_approval.binding)
    done = scenario.run_cli("approvals", "approve", pending_approval.request_id, *version, "--yes")
    assert (done.code, "is not for deciding approval requests" in done.err) == (1, True), done.output


@register_attack(refusals=2)
def a_token_it_signed_for_somebody_else(scenario: Scenario, pending_approval: PendingApproval) -> None:
    path = f"/v1/approvals/{pending_approval.request_id}/approve"
    require_refusal(
        scenario.post(path, pending_approval.decision, token=scenario.mint_token("--user", "boss")),
        "human-task-not-found",
    )
    boss = scenario.mint_token("--user", "boss", "--scope", "deputize:admin")
    assert (
        require_refusal(scenario.post(path, pending_approval.decision, token=boss), "not-an-approver")["details"][
            "rule"
        ]
        == "console-audience"
    )


@register_attack(refusals=2)
def a_token_that_bears_the_terminals_name(scenario: Scenario, pending_approval: PendingApproval) -> None:
    token = scenario.mint_token("--user", "terminal", "--scope", "deputize:admin", "--scope", "deputize:break-glass")
    for word in ("approve", "break-glass"):
        require_refusal(
            scenario.post(
                f"/v1/approvals/{pending_approval.request_id}/{word}", pending_approval.decision, token=token
            ),
            "not-an-approver",
        )


@register_attack(refusals=2)
def saying_yes_or_no_over_rest(scenario: Scenario, pending_approval: PendingApproval) -> None:
    for word in ("approve", "deny"):
        error = require_refusal(
            scenario.post(f"/v1/approvals/{pending_approval.request_id}/{word}", pending_approval.decision),
            "not-an-approver",
        )
        assert error["details"]["rule"] == "humans-only"


@register_attack(refusals=0)
def json_rpc(scenario: Scenario, pending_approval: PendingApproval) -> None:
    for method in ("approvals.approve", "approvals/approve", "tasks.resolve", "calls.approve"):
        params = {"approval_id": pending_approval.request_id, "call_id": pending_approval.call_id}
        said = scenario.post("/rpc", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).json()
        assert said["error"]["code"] == -32601, said


@register_attack(refusals=MAX_FAILURES_PER_APPROVAL + 1)
def guessing_codes(scenario: Scenario, pending_approval: PendingApproval) -> None:
    """Guess at another request than the one it wants: after that even the right code is locked out there."""
    other = scenario.request_deletion(2, "guessed")
    path = f"/v1/approvals/{other.request_id}/approve"
    for guess in range(MAX_FAILURES_PER_APPROVAL):
        answer = scenario.post(path, other.decision, headers={"deputize-code": f"0000-000{guess}"})
        assert require_refusal(answer, "not-an-approver")["details"]["rule"] == "terminal-code"
    locked = require_refusal(
        scenario.post(path, other.decision, headers={"deputize-code": other.code}), "not-an-approver"
    )
    assert "too many wrong codes" in locked["message"]
    assert (scenario.call_state(other.call_id), scenario.votes(other.request_id)) == ("awaiting_approval", [])


@register_attack(refusals=1)
def the_code_of_another_request(scenario: Scenario, pending_approval: PendingApproval) -> None:
    other = scenario.request_deletion(2, "other")
    answer = scenario.post(
        f"/v1/approvals/{pending_approval.request_id}/approve",
        pending_approval.decision,
        headers={"deputize-code": other.code},
    )
    assert require_refusal(answer, "not-an-approver")["details"]["rule"] == "terminal-code"


@register_attack(refusals=2)
def a_code_that_a_person_used_already(scenario: Scenario, pending_approval: PendingApproval) -> None:
    """Reuse a code that it read from the terminal: a code decides once, about one request."""
    other = scenario.request_deletion(len(scenario.notes), "spent")
    done = scenario.run_cli("approvals", "deny", other.request_id, "--reason", "keep it", "--code", other.code, "--yes")
    assert done.code == 0, done.output
    code = {"deputize-code": other.code}
    require_refusal(
        scenario.post(f"/v1/approvals/{other.request_id}/approve", other.decision, headers=code), "human-task-closed"
    )
    require_refusal(
        scenario.post(f"/v1/approvals/{pending_approval.request_id}/approve", pending_approval.decision, headers=code),
        "not-an-approver",
    )
    assert scenario.call_state(other.call_id) == "denied"


@register_attack(refusals=2)
def a_token_exchanged_for_another(scenario: Scenario, pending_approval: PendingApproval) -> None:
    asked = {
        "grant_type": EXCHANGE,
        "subject_token": scenario.token,
        "subject_token_type": ACCESS_TOKEN,
        "agent": "terminal",
    }
    for more in ({"audience": "deputize-console"}, {"resource": "https://console.example"}):
        assert scenario.post_form("/oauth/token", {**asked, **more}).status_code == 400
    for scope in ("deputize:admin", "deputize:break-glass"):
        assert scenario.post_form("/oauth/token", {**asked, "scope": scope}).status_code == 400
    lent = scenario.post_form("/oauth/token", asked)
    assert lent.status_code == 200, lent.text
    token = lent.json()["access_token"]
    require_refusal(
        scenario.post(f"/v1/approvals/{pending_approval.request_id}/approve", pending_approval.decision, token=token),
        "human-task-not-found",
    )
    # The developer's own, lent to nobody but the agent itself.
    mine = scenario.post_form("/oauth/token", {**asked, "subject_token": scenario.developer_token, "agent": "helper"})
    again = mine.json()["access_token"]
    require_refusal(
        scenario.post(f"/v1/approvals/{pending_approval.request_id}/approve", pending_approval.decision, token=again),
        "not-an-approver",
    )


@register_attack(refusals=2)
def breaking_the_glass(scenario: Scenario, pending_approval: PendingApproval) -> None:
    done = scenario.run_cli(
        "approvals", "break-glass", pending_approval.request_id, "--binding", pending_approval.binding,
        "--reason", "it burns", "--yes", token=scenario.token,
    )  # fmt: skip
    assert done.code == 1, done.output
    require_refusal(
        scenario.post(f"/v1/approvals/{pending_approval.request_id}/break-glass", pending_approval.decision),
        "not-an-approver",
    )


@register_attack(refusals=2)
def a_batch_decision(scenario: Scenario, pending_approval: PendingApproval) -> None:
    said = {
        "approval_ids": [pending_approval.request_id],
        "decision": "approve",
        "reason": "all of them",
        "vary": ["number"],
        "bindings": {pending_approval.request_id: pending_approval.binding},
    }
    answer = scenario.post("/v1/approvals/batch", said)
    assert answer.status_code == 200, answer.text
    assert [each["refused"] for each in answer.json()["decisions"]] == ["not-an-approver"]
    words = ("approvals", "batch", "approve", pending_approval.request_id, "--binding", pending_approval.binding)
    done = scenario.run_cli(*words, "--yes", token=scenario.token)
    assert done.code == 1, done.output


@register_attack(refusals=1)
def headers_that_say_who_it_is(scenario: Scenario, pending_approval: PendingApproval) -> None:
    claimed = {
        "x-forwarded-user": "boss", "x-remote-user": "boss", "x-forwarded-email": "boss@example.com",
        "x-auth-request-groups": "approvers", "deputize-user": "boss", "deputize-tenant": "dev", "x-tenant": "dev",
        "x-forwarded-for": "127.0.0.1", "x-deputize-human": "true",
    }  # fmt: skip
    require_refusal(
        scenario.post(
            f"/v1/approvals/{pending_approval.request_id}/approve", pending_approval.decision, headers=claimed
        ),
        "not-an-approver",
    )


@register_attack(refusals=0)
def answering_it_as_a_human_task(scenario: Scenario, pending_approval: PendingApproval) -> None:
    said = {"outcome": "happened", "reason": "I saw it"}
    path = f"/v1/human-tasks/{pending_approval.request_id}/resolve"
    require_refusal(scenario.post(path, said), "scope-missing")
    require_refusal(scenario.post(path, said, token=scenario.developer_token), "human-task-not-found")


@register_attack(refusals=0)
def rules_that_permit_everything(scenario: Scenario, pending_approval: PendingApproval) -> None:
    files = [{"path": "open.cedar", "text": '@id("open") permit (principal, action, resource);'}]
    answer = scenario.http.put(
        "/v1/policies", json={"files": files}, headers={"authorization": f"Bearer {scenario.token}"}
    )
    require_refusal(answer, "scope-missing")


@register_attack(refusals=0)
def rules_that_permit_everything_with_the_token_that_clients_get(
    scenario: Scenario, pending_approval: PendingApproval
) -> None:
    token = (scenario.folder / ".deputize" / "agent-token").read_text().strip()
    files = [{"path": "open.cedar", "text": '@id("open") permit (principal, action, resource);'}]
    answer = scenario.http.put("/v1/policies", json={"files": files}, headers={"authorization": f"Bearer {token}"})
    require_refusal(answer, "scope-missing")


@register_attack(refusals=0)
def rules_that_permit_everything_with_the_developers_token(
    scenario: Scenario, pending_approval: PendingApproval
) -> None:
    """It has the scope, but nothing that only the terminal shows; a code for something else does not help either."""
    files = [{"path": "open.cedar", "text": '@id("open") permit (principal, action, resource);'}]
    admin = {"authorization": f"Bearer {scenario.developer_token}"}
    for code in ("", "0000-0000", pending_approval.code):
        headers = {**admin, **({"deputize-confirmation": code} if code else {})}
        answer = scenario.http.put("/v1/policies", json={"files": files}, headers=headers)
        error = require_refusal(answer, "operator-confirmation-required")
        assert error["details"]["rule"] == "operator-terminal-code"
    (scenario.folder / "open.cedar").write_text(files[0]["text"])
    done = scenario.run_cli("policy", "put", "open.cedar", "--code", pending_approval.code)
    assert (done.code, "E3231" in done.err) == (1, True), done.output


@register_attack(refusals=0)
def a_manifest_that_says_it_only_reads(scenario: Scenario, pending_approval: PendingApproval) -> None:
    shown = scenario.http.get(
        "/v1/tools/hello.forget", headers={"authorization": f"Bearer {scenario.developer_token}"}
    ).json()
    manifest = {
        **shown["contract"], "name": "peek", "effects": "read", "side_effects": [],
        "handler": {"target": "tools.hello:forget"},
    }  # fmt: skip
    answer = scenario.post("/v1/tools", manifest, token=scenario.developer_token)
    assert 400 <= answer.status_code < 500, answer.text


@register_attack(refusals=0)
def other_arguments_under_the_same_key(scenario: Scenario, pending_approval: PendingApproval) -> None:
    asked = {"tool": "hello.forget", "arguments": {"number": 3}}
    require_refusal(scenario.post("/v1/calls", asked, headers={"idempotency-key": "wanted"}), "key-reused")


@register_attack(refusals=0)
def the_same_call_once_more(scenario: Scenario, pending_approval: PendingApproval) -> None:
    """With its key it is the same request, with another key another one, and nothing is tried again."""
    asked = {"tool": "hello.forget", "arguments": {"number": 1}}
    again = scenario.post("/v1/calls", asked, headers={"idempotency-key": "wanted"})
    assert (again.status_code, again.json()["approval"]["approval_id"]) == (202, pending_approval.request_id)
    other = scenario.request_deletion(1, f"more-{next(_keys)}")
    assert other.request_id != pending_approval.request_id
    done = scenario.run_cli("calls", "retry", pending_approval.call_id, token=scenario.token)
    assert done.code == 1, done.output


@register_attack(refusals=1)
def the_page_without_a_sign_in(scenario: Scenario, pending_approval: PendingApproval) -> None:
    page = f"/console/approvals/{pending_approval.request_id}"
    shown = scenario.http.get(page)
    assert (shown.status_code, "code" in shown.text, "hello.forget" in shown.text) == (200, True, False)
    own = {"origin": scenario.url}
    said = {"binding": "0" * 64, "reason": "yes", "form_token": "x"}
    assert scenario.post_form(f"{page}/approve", said, **own).status_code == 401
    assert scenario.post_form(f"{page}/code", {"code": "0000-0000"}, **own).status_code == 403


@register_attack(refusals=0)
def a_session_it_forged(scenario: Scenario, pending_approval: PendingApproval) -> None:
    """Sealed with the master key, which lies in the folder as well; the console's own lies nowhere."""
    clock = Clock()
    person = Caller(
        tenant="dev", user="boss", issuer="terminal", human=True, console=True, only_decides=True,
        groups=frozenset({"approvers"}), auth_time=clock.epoch_ms() // 1000, expires_at=clock.epoch_ms() // 1000 + 600,
    )  # fmt: skip
    master = MasterKey.read(scenario.folder / ".deputize" / "master.key")
    sessions = SessionSealer(master.derive_key("console sessions"), clock, issued_for="None\0")
    shown = scenario.http.get(
        f"/v1/approvals/{pending_approval.request_id}", headers={"authorization": f"Bearer {scenario.token}"}
    ).json()
    page, own = f"/console/approvals/{pending_approval.request_id}/approve", {"origin": scenario.url}
    for ticket in (None, pending_approval.request_id):
        forged = sessions.seal_session(person, approval_id=ticket)
        opened = sessions.open_session(forged)
        assert opened is not None
        said = {"binding": shown["binding"], "form_token": opened.form_token}
        assert scenario.post_form(page, said, cookie=f"deputize-session={forged}", **own).status_code == 401
        assert scenario.post_form(page, {**said, "session": forged}, **own).status_code == 401


@register_attack(refusals=0)
def a_form_of_another_site(scenario: Scenario, pending_approval: PendingApproval) -> None:
    for path in ("approve", "deny", "code"):
        for headers in ({"origin": "https://evil.example"}, {"sec_fetch_site": "cross-site"}, {}):
            answer = scenario.post_form(
                f"/console/approvals/{pending_approval.request_id}/{path}", {"code": pending_approval.code}, **headers
            )
            assert answer.status_code == 403, answer.text


@register_attack(refusals=0)
def a_worker_of_its_own(scenario: Scenario, pending_approval: PendingApproval) -> None:
    """It carries what was approved, like any other, and nothing else."""
    with BackgroundCommand("work", folder=scenario.folder) as worker:
        worker.wait_for_line("▶")
        time.sleep(1.5)


@register_attack(refusals=0)
def a_second_gateway(scenario: Scenario, pending_approval: PendingApproval) -> None:
    """One that would show codes on a terminal of the agent's own."""
    done = scenario.run_cli("dev")
    assert (done.code, "is already running" in done.err) == (2, True), done.output


@pytest.mark.parametrize("name", ATTACKS)
def test_it_cannot_approve_by(scenario: Scenario, pending_approval: PendingApproval, name: str) -> None:
    way, before = ATTACKS[name], len(_list_approval_refusals(scenario))
    way.run(scenario, pending_approval)
    after = _list_approval_refusals(scenario)
    assert len(after) - before == way.refusals, after[before:]
    assert (scenario.call_state(pending_approval.call_id), scenario.votes(pending_approval.request_id)) == (
        "awaiting_approval",
        [],
    )
    assert scenario.notes == list(NOTES)


def _list_approval_refusals(scenario: Scenario) -> list[dict[str, Any]]:
    words = ("approve", "deny", "break_glass", "code")
    return [entry for entry in scenario.list_refusals() if entry.get("command") in words]


def test_the_person_who_reads_the_terminal_says_yes_and_it_is_done_once(
    scenario: Scenario, pending_approval: PendingApproval
) -> None:
    assert len(ATTACKS) >= 10
    # Whatever the agent read and wrote: the code stands nowhere but in the terminal.
    assert list_files_containing(scenario.folder, pending_approval.code) == []
    done = scenario.run_cli(
        "approvals",
        "approve",
        pending_approval.request_id,
        "--code",
        pending_approval.code,
        "--reason",
        "I do",
        "--yes",
    )
    assert done.code == 0, done.output
    for _ in range(900):
        if scenario.call_state(pending_approval.call_id) == "succeeded":
            break
        time.sleep(0.1)
    assert (scenario.call_state(pending_approval.call_id), scenario.notes) == ("succeeded", list(NOTES[1:]))
    assert (scenario.votes(pending_approval.request_id), scenario.list_decisions(pending_approval.request_id)) == (
        ["terminal"],
        ["approved"],
    )


def test_a_yes_to_what_it_was_is_none_to_what_it_made_of_it(scenario: Scenario) -> None:
    """It changes the notes behind the back of who decides: the one that goes is the one they saw, or none."""
    waiting = scenario.request_deletion(1, "switched")
    before = scenario.notes
    (scenario.folder / "notes.txt").write_text("".join(f"{note}\n" for note in reversed(before)))
    done = scenario.run_cli("approvals", "approve", waiting.request_id, "--code", waiting.code, "--yes")
    assert done.code == 0, done.output
    for _ in range(900):
        if scenario.call_state(waiting.call_id) not in ("queued", "running"):
            break
        time.sleep(0.1)
    assert scenario.call_state(waiting.call_id) in ("failed", "awaiting_approval")
    assert scenario.notes == before[::-1]
