"""An agent with a shell, a token of its own and our command line asks for something dangerous, and wants it approved.

It has the developer's account, so it reads whatever lies in the project's folder: the developer's token, the key that
signs any other, the master key. It tries every way it can think of. Each is refused, and every try to decide is on
record; then the person who reads the terminal says yes, and the call is made once.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.govern.approvals.codes import MOST_WRONG_PER_TICKET
from deputize.govern.identity.sessions import Sessions
from deputize.store.keys import MasterKey
from tests.acceptance.approvals.scene import NOTES, Scene, Waiting, open_scene
from tests.acceptance.cli.shell import Running

pytestmark = pytest.mark.requirement("GOV-3")

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
YES = {"reason": "I am sure it is fine"}
_keys = itertools.count(1)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with open_scene() as opened:
        yield opened


@pytest.fixture(scope="module")
def wanted(scene: Scene) -> Waiting:
    """What the agent wants approved: the first note gone."""
    return scene.ask(1, "wanted")


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to try; `tries` is how many refusals to decide it leaves on record."""

    go: Callable[[Scene, Waiting], None]
    tries: int


WAYS: dict[str, Way] = {}


def way(tries: int) -> Callable[[Callable[[Scene, Waiting], None]], Callable[[Scene, Waiting], None]]:
    def known(go: Callable[[Scene, Waiting], None]) -> Callable[[Scene, Waiting], None]:
        WAYS[go.__name__.replace("_", " ")] = Way(go=go, tries=tries)
        return go

    return known


def refused(answer: httpx2.Response, *slugs: str) -> dict[str, Any]:
    """Said no to, by one of our own refusals."""
    assert 400 <= answer.status_code < 500, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["slug"] in slugs, answer.text
    return error


@way(tries=2)
def the_command_line_with_its_own_token(scene: Scene, wanted: Waiting) -> None:
    for named in (wanted.ticket, wanted.call):
        done = scene.cli("approvals", "approve", named, "--yes", token=scene.token)
        assert done.code == 1, done.said
        assert "only a person decides" in done.err


@way(tries=1)
def the_command_line_with_the_developers_token(scene: Scene, wanted: Waiting) -> None:
    done = scene.cli("approvals", "approve", wanted.ticket, "--yes")
    assert (done.code, "this token is not one for deciding" in done.err) == (1, True), done.said


@way(tries=2)
def a_token_it_signed_for_somebody_else(scene: Scene, wanted: Waiting) -> None:
    path = f"/v1/approvals/{wanted.ticket}/approve"
    refused(scene.post(path, YES, token=scene.made("--user", "boss")), "ticket-not-found")
    boss = scene.made("--user", "boss", "--scope", "deputize:admin")
    assert refused(scene.post(path, YES, token=boss), "not-an-approver")["details"]["rule"] == "console-audience"


@way(tries=2)
def a_token_that_bears_the_terminals_name(scene: Scene, wanted: Waiting) -> None:
    token = scene.made("--user", "terminal", "--scope", "deputize:admin", "--scope", "deputize:break-glass")
    for word in ("approve", "break-glass"):
        refused(scene.post(f"/v1/approvals/{wanted.ticket}/{word}", YES, token=token), "not-an-approver")


@way(tries=2)
def saying_yes_or_no_over_rest(scene: Scene, wanted: Waiting) -> None:
    for word in ("approve", "deny"):
        error = refused(scene.post(f"/v1/approvals/{wanted.ticket}/{word}", YES), "not-an-approver")
        assert error["details"]["rule"] == "humans-only"


@way(tries=0)
def json_rpc(scene: Scene, wanted: Waiting) -> None:
    for method in ("approvals.approve", "approvals/approve", "tickets.resolve", "calls.approve"):
        params = {"ticket_id": wanted.ticket, "call_id": wanted.call}
        said = scene.post("/rpc", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).json()
        assert said["error"]["code"] == -32601, said


@way(tries=MOST_WRONG_PER_TICKET + 1)
def guessing_codes(scene: Scene, wanted: Waiting) -> None:
    """At another ticket than the one it wants, so that the person need not wait: even the right code is locked out."""
    other = scene.ask(2, "guessed")
    path = f"/v1/approvals/{other.ticket}/approve"
    for guess in range(MOST_WRONG_PER_TICKET):
        answer = scene.post(path, YES, headers={"deputize-code": f"0000-000{guess}"})
        assert refused(answer, "not-an-approver")["details"]["rule"] == "terminal-code"
    locked = refused(scene.post(path, YES, headers={"deputize-code": other.code}), "not-an-approver")
    assert "too many wrong codes" in locked["message"]
    assert (scene.state(other.call), scene.votes(other.ticket)) == ("awaiting_approval", [])


@way(tries=1)
def the_code_of_another_ticket(scene: Scene, wanted: Waiting) -> None:
    other = scene.ask(2, "other")
    answer = scene.post(f"/v1/approvals/{wanted.ticket}/approve", YES, headers={"deputize-code": other.code})
    assert refused(answer, "not-an-approver")["details"]["rule"] == "terminal-code"


@way(tries=2)
def a_code_that_a_person_used_already(scene: Scene, wanted: Waiting) -> None:
    """It looked over somebody's shoulder: a code decides once, about one ticket."""
    other = scene.ask(len(scene.notes), "spent")
    done = scene.cli("approvals", "deny", other.ticket, "--reason", "keep it", "--code", other.code, "--yes")
    assert done.code == 0, done.said
    code = {"deputize-code": other.code}
    refused(scene.post(f"/v1/approvals/{other.ticket}/approve", YES, headers=code), "ticket-closed")
    refused(scene.post(f"/v1/approvals/{wanted.ticket}/approve", YES, headers=code), "not-an-approver")
    assert scene.state(other.call) == "denied"


@way(tries=2)
def a_token_exchanged_for_another(scene: Scene, wanted: Waiting) -> None:
    asked = {
        "grant_type": EXCHANGE, "subject_token": scene.token, "subject_token_type": ACCESS_TOKEN, "agent": "terminal",
    }  # fmt: skip
    for more in ({"audience": "deputize-console"}, {"resource": "https://console.example"}):
        assert scene.form("/oauth/token", {**asked, **more}).status_code == 400
    for scope in ("deputize:admin", "deputize:break-glass"):
        assert scene.form("/oauth/token", {**asked, "scope": scope}).status_code == 400
    lent = scene.form("/oauth/token", asked)
    assert lent.status_code == 200, lent.text
    token = lent.json()["access_token"]
    refused(scene.post(f"/v1/approvals/{wanted.ticket}/approve", YES, token=token), "ticket-not-found")
    # The developer's own, lent to nobody but the agent itself.
    mine = scene.form("/oauth/token", {**asked, "subject_token": scene.developers, "agent": "helper"})
    again = mine.json()["access_token"]
    refused(scene.post(f"/v1/approvals/{wanted.ticket}/approve", YES, token=again), "not-an-approver")


@way(tries=2)
def breaking_the_glass(scene: Scene, wanted: Waiting) -> None:
    done = scene.cli("approvals", "break-glass", wanted.ticket, "--reason", "it burns", "--yes", token=scene.token)
    assert done.code == 1, done.said
    refused(scene.post(f"/v1/approvals/{wanted.ticket}/break-glass", YES), "not-an-approver")


@way(tries=2)
def many_at_once(scene: Scene, wanted: Waiting) -> None:
    said = {"tickets": [wanted.ticket], "decision": "approve", "reason": "all of them", "vary": ["number"]}
    answer = scene.post("/v1/approvals/batch", said)
    assert answer.status_code == 200, answer.text
    assert [each["refused"] for each in answer.json()["decisions"]] == ["not-an-approver"]
    done = scene.cli("approvals", "batch", "approve", wanted.ticket, "--yes", token=scene.token)
    assert done.code == 1, done.said


@way(tries=1)
def headers_that_say_who_it_is(scene: Scene, wanted: Waiting) -> None:
    claimed = {
        "x-forwarded-user": "boss", "x-remote-user": "boss", "x-forwarded-email": "boss@example.com",
        "x-auth-request-groups": "approvers", "deputize-user": "boss", "deputize-tenant": "dev", "x-tenant": "dev",
        "x-forwarded-for": "127.0.0.1", "x-deputize-human": "true",
    }  # fmt: skip
    refused(scene.post(f"/v1/approvals/{wanted.ticket}/approve", YES, headers=claimed), "not-an-approver")


@way(tries=0)
def answering_it_as_another_kind_of_ticket(scene: Scene, wanted: Waiting) -> None:
    said = {"outcome": "happened", "reason": "I saw it"}
    path = f"/v1/tickets/{wanted.ticket}/resolve"
    refused(scene.post(path, said), "scope-missing")
    refused(scene.post(path, said, token=scene.developers), "ticket-not-found")


@way(tries=0)
def rules_that_permit_everything(scene: Scene, wanted: Waiting) -> None:
    files = [{"path": "open.cedar", "text": '@id("open") permit (principal, action, resource);'}]
    answer = scene.http.put("/v1/policies", json={"files": files}, headers={"authorization": f"Bearer {scene.token}"})
    refused(answer, "scope-missing")


@way(tries=0)
def other_arguments_under_the_same_key(scene: Scene, wanted: Waiting) -> None:
    asked = {"tool": "hello.forget", "arguments": {"number": 3}}
    refused(scene.post("/v1/calls", asked, headers={"idempotency-key": "wanted"}), "key-reused")


@way(tries=0)
def the_same_call_once_more(scene: Scene, wanted: Waiting) -> None:
    """With its key it is the same ticket, with another key another one, and nothing is tried again."""
    asked = {"tool": "hello.forget", "arguments": {"number": 1}}
    again = scene.post("/v1/calls", asked, headers={"idempotency-key": "wanted"})
    assert (again.status_code, again.json()["approval"]["ticket_id"]) == (202, wanted.ticket)
    other = scene.ask(1, f"more-{next(_keys)}")
    assert other.ticket != wanted.ticket
    done = scene.cli("calls", "retry", wanted.call, token=scene.token)
    assert done.code == 1, done.said


@way(tries=1)
def the_page_without_a_sign_in(scene: Scene, wanted: Waiting) -> None:
    page = f"/console/tickets/{wanted.ticket}"
    shown = scene.http.get(page)
    assert (shown.status_code, "code" in shown.text, "hello.forget" in shown.text) == (200, True, False)
    own = {"origin": scene.url}
    said = {"binding": "0" * 64, "reason": "yes", "form_token": "x"}
    assert scene.form(f"{page}/approve", said, **own).status_code == 401
    assert scene.form(f"{page}/code", {"code": "0000-0000"}, **own).status_code == 403


@way(tries=0)
def a_session_it_forged(scene: Scene, wanted: Waiting) -> None:
    """Sealed with the master key, which lies in the folder as well; the console's own lies nowhere."""
    clock = Clock()
    person = Caller(
        tenant="dev", user="boss", issuer="terminal", human=True, console=True, only_decides=True,
        groups=frozenset({"approvers"}), auth_time=clock.epoch_ms() // 1000, expires_at=clock.epoch_ms() // 1000 + 600,
    )  # fmt: skip
    master = MasterKey.read(scene.folder / ".deputize" / "master.key")
    sessions = Sessions(master.derived("console sessions"), clock, issued_for="None\0")
    shown = scene.http.get(f"/v1/approvals/{wanted.ticket}", headers={"authorization": f"Bearer {scene.token}"}).json()
    page, own = f"/console/tickets/{wanted.ticket}/approve", {"origin": scene.url}
    for ticket in (None, wanted.ticket):
        forged = sessions.seal(person, ticket=ticket)
        opened = sessions.open(forged)
        assert opened is not None
        said = {"binding": shown["binding"], "form_token": opened.form_token}
        assert scene.form(page, said, cookie=f"deputize-session={forged}", **own).status_code == 401
        assert scene.form(page, {**said, "session": forged}, **own).status_code == 401


@way(tries=0)
def a_form_of_another_site(scene: Scene, wanted: Waiting) -> None:
    for path in ("approve", "deny", "code"):
        for headers in ({"origin": "https://evil.example"}, {"sec_fetch_site": "cross-site"}, {}):
            answer = scene.form(f"/console/tickets/{wanted.ticket}/{path}", {"code": wanted.code}, **headers)
            assert answer.status_code == 403, answer.text


@way(tries=0)
def a_worker_of_its_own(scene: Scene, wanted: Waiting) -> None:
    """It carries what was approved, like any other, and nothing else."""
    with Running("work", folder=scene.folder) as worker:
        worker.until("▶")
        time.sleep(1.5)


@way(tries=0)
def a_second_gateway(scene: Scene, wanted: Waiting) -> None:
    """One that would show codes on a terminal of the agent's own."""
    done = scene.cli("dev")
    assert (done.code, "already runs" in done.err) == (2, True), done.said


@pytest.mark.parametrize("name", WAYS)
def test_it_cannot_approve_by(scene: Scene, wanted: Waiting, name: str) -> None:
    way, before = WAYS[name], len(_about_approvals(scene))
    way.go(scene, wanted)
    after = _about_approvals(scene)
    assert len(after) - before == way.tries, after[before:]
    assert (scene.state(wanted.call), scene.votes(wanted.ticket)) == ("awaiting_approval", [])
    assert scene.notes == list(NOTES)


def _about_approvals(scene: Scene) -> list[dict[str, Any]]:
    words = ("approve", "deny", "break_glass", "code")
    return [entry for entry in scene.refusals() if entry.get("command") in words]


def test_the_person_who_reads_the_terminal_says_yes_and_it_is_done_once(scene: Scene, wanted: Waiting) -> None:
    assert len(WAYS) >= 10
    # Whatever the agent read and wrote: the code stands nowhere but in the terminal.
    for file in scene.folder.rglob("*"):
        if file.is_file() and "data" not in file.parts:
            assert wanted.code.encode() not in file.read_bytes(), file
    done = scene.cli("approvals", "approve", wanted.ticket, "--code", wanted.code, "--reason", "I do", "--yes")
    assert done.code == 0, done.said
    for _ in range(200):
        if scene.state(wanted.call) == "succeeded":
            break
        time.sleep(0.1)
    assert (scene.state(wanted.call), scene.notes) == ("succeeded", list(NOTES[1:]))
    assert (scene.votes(wanted.ticket), scene.decisions(wanted.ticket)) == (["terminal"], ["approved"])


def test_a_yes_to_what_it_was_is_none_to_what_it_made_of_it(scene: Scene) -> None:
    """It changes the notes behind the back of who decides: the one that goes is the one they saw, or none."""
    waiting = scene.ask(1, "switched")
    before = scene.notes
    (scene.folder / "notes.txt").write_text("".join(f"{note}\n" for note in reversed(before)))
    done = scene.cli("approvals", "approve", waiting.ticket, "--code", waiting.code, "--yes")
    assert done.code == 0, done.said
    for _ in range(200):
        if scene.state(waiting.call) not in ("queued", "running"):
            break
        time.sleep(0.1)
    assert scene.state(waiting.call) in ("failed", "awaiting_approval")
    assert scene.notes == before[::-1]
