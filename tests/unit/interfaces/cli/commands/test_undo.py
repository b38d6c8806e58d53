"""`deputize undo` undoes what its plan showed, and stops where something else came to it."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from deputize.interfaces.cli.commands.undo import undo
from deputize.interfaces.cli.render.output import CommandExit

pytestmark = pytest.mark.requirement("NEW-2")


def plan(*entry_ids: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {
            "entry_id": each, "call_id": f"call-{each}", "tool": "book.add", "effects": [], "verdict": "ready",
            "undo_tool": "book.remove", "detail": None, "user": "ana", "agents": ["bot"], "source_agents": ["bot"],
            "arguments": {"name": f"{each}\u202e", "text": "t", "tag": 7, "by": "x"},
            "origins": {"name": "arguments", "text": "before", "tag": "result", "by": "unknown"},
        }
        for each in entry_ids
    ]  # fmt: skip
    counts = {"ready": len(steps), "done": 0, "blocked": 0}
    return {**counts, "steps": steps, "is_complete": True, "missing_scopes": [], "digest": "-".join(entry_ids)}


def made(entry_id: str) -> dict[str, Any]:
    return {"state": "succeeded", "undone_call_id": f"call-{entry_id}", "tool": "book.remove", "call_id": "c"}


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.digests.append(body.get("digest"))
        content = json.dumps(self.server.answers.pop(0)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[dict[str, Any]] = []
        self.digests: list[str | None] = []


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with _Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def answer(left: dict[str, Any], *made_ids: str, **more: Any) -> dict[str, Any]:
    return {"made": [made(each) for each in made_ids], "left": left, "approval": None, **more}


def run(gateway: _Server) -> None:
    undo(agent="bot", since="2h", url=f"http://127.0.0.1:{gateway.server_port}", token="t")


def test_what_the_plan_showed_is_undone_in_as_many_requests_as_it_takes(gateway: _Server) -> None:
    gateway.answers = [plan("b", "a"), answer(plan("a"), "b"), answer(plan(), "a")]
    run(gateway)
    assert gateway.digests == [None, "b-a", "a"]


def test_what_an_agent_did_meanwhile_is_not_undone_unseen(gateway: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.answers = [plan("b", "a"), answer(plan("new", "a"), "b")]
    with pytest.raises(CommandExit):
        run(gateway)
    assert (gateway.digests, gateway.answers) == ([None, "b-a"], [])
    assert "not in the plan that you saw" in capsys.readouterr().err


def test_each_value_that_is_sent_is_shown_with_where_it_is_from(
    gateway: _Server, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answers = [plan("a"), answer(plan(), "a")]
    run(gateway)
    shown = capsys.readouterr().out
    for line in (
        "book.remove for call call-a:", 'name: "a\\u202e"  (written by bot)', 'text: "t"  (as it was before)',
        "tag: 7  (returned by book.add, called by bot)", 'by: "x"  (it was not recorded where from)',
    ):  # fmt: skip
        assert line in shown


def test_a_step_that_would_now_send_something_else_is_not_made_unseen(gateway: _Server) -> None:
    left = plan("a")
    left["steps"][0]["arguments"]["text"] = "other"
    gateway.answers = [plan("b", "a"), answer(left, "b")]
    with pytest.raises(CommandExit):
        run(gateway)
    assert gateway.digests == [None, "b-a"]


@pytest.mark.parametrize(
    ("facts", "code", "said"),
    [
        ({"ready": 0, "blocked": 2}, 1, "Nothing was undone."),
        ({"ready": 0, "steps": []}, 1, "Nothing was undone."),
        ({"missing_scopes": ["deputize:undo", "book:write"]}, 1, "--scope deputize:undo --scope book:write"),
        ({"ready": 0, "done": 2}, 0, "2 calls were undone before"),
    ],
)
def test_where_nothing_was_undone_the_exit_code_says_so(
    gateway: _Server, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], code: int, said: str
) -> None:
    gateway.answers = [{**plan("a"), **facts}]
    try:
        run(gateway)
        ended = 0
    except CommandExit as end:
        ended = end.code
    assert (ended, gateway.digests) == (code, [None])
    assert said in capsys.readouterr().err


def test_what_an_approval_undid_in_between_is_counted(gateway: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.answers = [{**plan("a"), "done": 1}, answer(plan(), "a")]
    run(gateway)
    assert "Undid 1 call (1 call was undone before)" in capsys.readouterr().out


def test_where_the_last_call_was_meant_its_id_goes_on(
    gateway: _Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deputize.interfaces.cli.commands.undo.resolve_call_id", lambda *_: "call-a")
    waiting = {**made("a"), "state": "awaiting_approval"}
    gateway.answers = [plan("a"), answer(plan("a"), made=[waiting], approval={"approval_id": "A", "steps": 1})]
    with pytest.raises(CommandExit):
        undo("last", url=f"http://127.0.0.1:{gateway.server_port}", token="t")
    # The last call is the undo by now.
    assert "Then deputize undo call-a." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (1, "The last step waits for approval: deputize approvals show A. Then repeat the command."),
        (2, "2 steps wait for one approval: deputize approvals show A. Then repeat the command."),
    ],
)
def test_what_waits_for_approval_is_said_with_what_to_do(
    gateway: _Server, capsys: pytest.CaptureFixture[str], steps: int, said: str
) -> None:
    waiting = {**made("b"), "state": "awaiting_approval"}
    approval = {"approval_id": "A", "steps": steps}
    gateway.answers = [plan("b", "a"), answer(plan("b", "a"), made=[waiting], approval=approval)]
    with pytest.raises(CommandExit) as end:
        run(gateway)
    assert end.value.code == 3
    assert f"Undid 0 calls, and 2 more can be. {said}" in capsys.readouterr().err
