"""A reader of a log keeps its connections, waits while the gateway is busy, and says what it cannot read."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from deputize.core.config_error import ConfigError
from deputize.core.errors import ConcurrencyLimitReached, LogNotFound, Problem, ScopeMissing
from deputize.core.outcome import build_problem_fields
from deputize.interfaces.cli.client.log_client import LogClient
from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.client.rest_client import GatewayClient

pytestmark = pytest.mark.requirement("GOV-5")


class _Server(ThreadingHTTPServer):
    """Answers with what is next in its list, and counts connections."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[bytes | Problem] = []
        self.closes_after_answer = False
        self.connections = 0
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        answer = self.server.answers.pop(0)
        status, content = 200, answer
        if isinstance(answer, Problem):
            status, content = answer.spec.http, json.dumps(build_problem_fields(answer, trace_id="0" * 32)).encode()
        assert isinstance(content, bytes)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        # Closed without a word, as a gateway does that restarts.
        self.close_connection = self.server.closes_after_answer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def log(server: _Server) -> Iterator[LogClient]:
    client = LogClient(GatewayClient(url=server.url, token="t"), "a/b")
    yield client
    client.close()


def test_one_connection_serves_many_requests(server: _Server, log: LogClient) -> None:
    server.answers = [b"one", b"two", b"three"]
    assert [log.read(path) for path in ("checkpoint", "tile/0/000", "keys")] == [b"one", b"two", b"three"]
    assert server.connections == 1
    assert server.paths[0] == "/log/a%2Fb/checkpoint"


def test_a_connection_that_the_gateway_closed_is_opened_again(server: _Server, log: LogClient) -> None:
    server.closes_after_answer = True
    server.answers = [b"one", b"two"]
    assert [log.read("keys"), log.read("keys")] == [b"one", b"two"]
    assert server.connections == 2


def test_a_busy_gateway_is_asked_again(server: _Server, log: LogClient) -> None:
    server.answers = [ConcurrencyLimitReached("busy"), ConcurrencyLimitReached("busy"), b"one"]
    assert log.read("tile/entries/000") == b"one"
    assert len(server.paths) == 3


def test_what_the_log_does_not_have_is_none_and_other_refusals_are_raised(server: _Server, log: LogClient) -> None:
    server.answers = [LogNotFound("no such tile"), ScopeMissing("no administrator")]
    assert log.read("tile/0/999") is None
    with pytest.raises(GatewayRefusal):
        log.read("keys")


def test_an_answer_that_is_no_gateways_and_no_answer_are_named() -> None:
    with _Server() as server:
        url = server.url
    client = LogClient(GatewayClient(url=url, token="t"), "dev")
    with pytest.raises(ConfigError, match="cannot be reached"):
        client.read("keys")
