"""`deputize servers` reads what the models of the REST interface answer."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import BaseModel

from deputize.interfaces.cli.commands import servers
from deputize.interfaces.cli.render.server_effects import ask_effects
from deputize.interfaces.rest.admin.server_models import (
    ChangeFlagModel,
    DifferenceModel,
    PinModel,
    ServerChangeDecisionResult,
    ServerChangeListModel,
    ServerChangeModel,
    ServerListModel,
    ServerProbeResult,
    ServerSummaryModel,
    ServerToolModel,
)

_DIGEST = f"sha256:{'0' * 64}"
_AT = "2030-01-01T10:00:00+00:00"
_SUMMARY = ServerSummaryModel(
    name="shop", kind="http", address="https://shop.example/mcp", sandbox=None, credential="none",
    status="connected", since=_AT, probed_at=_AT, why=None, protocol="2025-06-18", title="Shop", version="1.0",
    tools=2, changes=1,
)  # fmt: skip
_PIN = PinModel(
    item="tool:get", digest=_DIGEST, tool="shop.get", version="1.0.0", accepted_by="ana", accepted_at=_AT, now="changed"
)
_PROBE = ServerProbeResult(
    **_SUMMARY.model_dump(), review="changes", probe_seconds=60, pins=[_PIN], left_out=["tool:bad: no schema"],
    refused_hosts=["api.example.com:443"],
    registered_tools=["shop.put@1.0.0"], new_changes=3,
)  # fmt: skip
_CHANGE = ServerChangeModel(
    item="tool:get", display_item="tool:get[U+200B]", digest=_DIGEST, kind="changed", state="open", tool="shop.get",
    version="1.0.0", seen_at=_AT, flags=[ChangeFlagModel(code="hidden", where="/x", excerpt="y", sentence="Look.")],
    differences=[DifferenceModel(where="/description", before="old", after="new")],
    decided_by=None, decided_at=None, reason=None,
)  # fmt: skip
_DECISION = ServerChangeDecisionResult(
    server="shop", item="tool:get", digest=_DIGEST, decision="reject", registered_tool=None
)
_ANSWERS: dict[str, BaseModel] = {
    "GET /v1/servers": ServerListModel(servers=[_SUMMARY]),
    "POST /v1/servers/shop/test": _PROBE,
    "GET /v1/servers/shop/changes": ServerChangeListModel(changes=[_CHANGE]),
    "POST /v1/servers/shop/changes/decide": _DECISION,
}


class _AnswerHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = _ANSWERS[f"{self.command} {self.path.partition('?')[0]}"].model_dump_json().encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def _answer_requests() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _AnswerHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_command_reads_the_fields_of_the_models(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _answer_requests() as url:
        servers.list_servers(url=url, token="t")
        servers.probe_server("shop", url=url, token="t")
        servers.review("shop", url=url, token="t")
        servers.review("shop", reject=["get"], reason="Not asked for.", url=url, token="t")
    printed = capsys.readouterr()
    text = printed.out + printed.err
    for expected in ("shop.put@1.0.0", "3 new changes found", "tool:get[U+200B]   changed", "[U+200B] rejected"):
        assert expected in text

    tool = ServerToolModel(
        item="tool:get", name="get", display_name="get[U+200B]", digest=_DIGEST, tool="shop.get", version="1.0.0",
        definition={}, effects="destructive", source="unconfirmed", confirmed_effects=None, proposed_effects="read",
        why="its name", facts=[],
    )  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO("edit\nwrite\n"))
    assert ask_effects([tool.model_dump(mode="json")]) == {"get": "write"}
